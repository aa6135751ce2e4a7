"""Texts with codes: no code is lost, whatever is nested and wherever the words go."""

import random

import torch

from vanilla_transformer_hf.translation.documents.inline import WIDE_SPACE, Piece, Text, apart, as_string


def test_pairs_that_cross_stand_alone():
    pieces = [
        *(Piece("begin", "(", 1), Piece("begin", "[", 2), Piece("text", "one"), Piece("end", ")", 1)),
        *(Piece("end", "]", 2), Piece("end", "}", 3), Piece("begin", "<", 4)),
    ]
    found = Text(pieces).render(["eins"], [None])
    assert [(piece.kind, piece.value) for piece in found] == [
        ("alone", "("), ("begin", "["), ("text", "eins"), ("alone", ")"), ("end", "]"), ("alone", "}"), ("alone", "<")
    ]  # fmt: skip
    inside = [
        Piece("begin", "x", "x", True),
        Piece("begin", "(", 1),
        Piece("text", "one"),
        Piece("end", "x", "x", True),
    ]
    found = Text([*inside, Piece("end", ")", 1)]).render(["eins"], [None])
    assert [piece.kind for piece in found] == ["begin", "alone", "text", "end", "alone"]


def test_an_element_over_two_sentences_stays_around_both():
    pieces = [Piece("begin", "x", "x", True), Piece("text", "one "), Piece("begin", "(", 1), Piece("ending", "\n")]
    pieces += [Piece("text", "two"), Piece("end", ")", 1), Piece("end", "/x", "x", True), Piece("text", " three")]
    found = Text(pieces).render(["eins", "zwei drei"], [None, None])
    assert [(piece.kind, piece.value) for piece in found if piece.kind in ("begin", "end")] == [
        ("begin", "x"),
        ("end", "/x"),
    ]
    assert as_string(found) == "xeins (\nzwei)/x drei"


def test_wide_space_stays():
    text = Text(apart([Piece("text", "Name:   "), Piece("text", "   two  words")], WIDE_SPACE, "ending"))
    assert [sentence.text for sentence in text.sentences] == ["Name:", "two words"]
    assert as_string(text.render(["Name:", "zwei Wörter"], [None, None])) == "Name:      zwei Wörter"


def test_codes_find_their_place_where_words_and_marks_change():
    for source, translation, expected in [
        ("'|'", "''", "'|'"),
        ("file: |.", "Datei:.", "Datei: |."),
        ("file: |.", "Datei", "Datei |"),
        ('the "|", that', "das „“, das", "das „|“, das"),
        ("wait (|) now", "jetzt () warten", "jetzt (|) warten"),
        ("a | b", "x y", "x | y"),
        ("a | b", "x", "x |"),
        ("run | , now", "lauf, jetzt", "lauf | , jetzt"),
        ("un|happy", "unglücklich", "un|glücklich"),
        ("dog| sleeps", "Hund, der", "Hund,| der"),
        ("in '|'.", "in Aufschrift.", "in Aufschrift |."),
        ("in '|' now", "jetzt darin", "jetzt darin |"),
        ("dog|s sleep", "Hunde schlafen", "Hunde| schlafen"),
    ]:
        pieces = [
            Piece("text", f"x {source}".partition("|")[0]),
            Piece("alone", "|"),
            Piece("text", source.partition("|")[2]),
        ]
        text = Text(pieces)
        assert as_string(text.render([f"x {translation}"], [None])) == f"x {expected}", source


def test_every_code_is_there_once_and_pairs_stay_nested():
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    for _ in range(400):
        pieces = [*random_pieces(rng, 0, [0])]
        text = Text(apart(pieces, WIDE_SPACE, "ending"))
        words = [
            " ".join(rng.choices(["a", "b <i>", "&amp;", "c\xa0d", "."], k=rng.randint(0, 6))) for _ in text.sentences
        ]
        sizes = [(len(one.split()), len(sentence.text.split())) for one, sentence in zip(words, text.sentences)]
        found = text.render(words, [torch.rand(size, generator=generator) for size in sizes])
        codes = [[id(each.value) for each in row if not isinstance(each.value, str)] for row in (pieces, found)]
        assert sorted(codes[0]) == sorted(codes[1])
        depth = 0
        for piece in found:
            depth += {"begin": 1, "end": -1}.get(piece.kind, 0) if piece.is_element else 0
            assert depth >= 0
        assert depth == 0


def random_pieces(rng, depth, count):
    for _ in range(rng.randint(0, 4)):
        kind = rng.choice(["text", "alone", "ending", "pair", "element", "open", "close"])
        count[0] += 1
        if kind == "text":
            yield Piece("text", " ".join(rng.choices(["one", "two", "<b>", "& ", " ", "three."], k=3)))
        elif kind in ("alone", "ending"):
            yield Piece(kind, [count[0]])
        elif kind in ("open", "close"):
            yield Piece("begin" if kind == "open" else "end", [count[0]], rng.randint(0, 3))
        elif depth < 4:
            key, is_element = [count[0]], kind == "element"
            yield Piece("begin", [key], id(key), is_element)
            yield from random_pieces(rng, depth + 1, count)
            yield Piece("end", [key], id(key), is_element)
