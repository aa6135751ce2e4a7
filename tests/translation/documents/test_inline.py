"""Texts with codes: no code is lost, whatever is nested and wherever the words go."""

import random

import torch

from vanilla_transformer_hf.translation.documents.inline import Pair, Piece, as_markup, from_markup, without_crossings
from vanilla_transformer_hf.translation.text.markup import MarkupText


def test_pairs_that_cross_stand_alone():
    pieces = [
        *(Piece("begin", "(", 1), Piece("begin", "[", 2), Piece("text", "one"), Piece("end", ")", 1)),
        *(Piece("end", "]", 2), Piece("end", "}", 3), Piece("begin", "<", 4)),
    ]
    kinds = [(piece.kind, piece.value) for piece in without_crossings(pieces)]
    pair = Pair("[", "]")
    expected = [("alone", "("), ("begin", pair), ("text", "one"), ("alone", ")"), ("end", pair)]
    assert kinds == [*expected, ("alone", "}"), ("alone", "<")]
    inside = [
        Piece("begin", "x", "x", True),
        Piece("begin", "(", 1),
        Piece("end", "x", "x", True),
        Piece("end", ")", 1),
    ]
    assert [piece.kind for piece in without_crossings(inside)] == ["begin", "alone", "end", "alone"]


def test_wide_space_stays():
    markup, codes = as_markup([Piece("text", "Name:      two  words")])
    text = MarkupText(markup)
    assert [sentence.text for sentence in text.sentences] == ["Name:", "two words"]
    rendered = text.render(["NAME:", "TWO WORDS"], [None, None])
    assert "".join(piece.value for piece in from_markup(rendered, codes)) == "NAME:      TWO WORDS"


def test_every_code_is_there_once_and_pairs_stay_nested():
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    for _ in range(300):
        markup, codes = as_markup(without_crossings([*random_pieces(rng, 0, [0])]))
        text = MarkupText(markup)
        words = [rng.choices(["a", "b <i>", "&amp;", "c\xa0d", "."], k=rng.randint(0, 6)) for _ in text.sentences]
        sizes = [(len(one), len(sentence.text.split())) for one, sentence in zip(words, text.sentences)]
        weights = [torch.rand(size, generator=generator) for size in sizes]
        rendered = text.render([" ".join(one) for one in words], weights)
        pieces = [*from_markup(rendered, codes)]
        found = [piece.value for piece in pieces if piece.kind not in ("text", "end")]
        assert sorted(map(id, found)) == sorted(id(code) for code in codes if not isinstance(code, str))
        assert sum(piece.kind == "begin" for piece in pieces) == sum(piece.kind == "end" for piece in pieces)


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
            yield Piece("begin", key, id(key), is_element)
            yield from random_pieces(rng, depth + 1, count)
            yield Piece("end", key, id(key), is_element)
