"""Where texts that are too long are cut."""

import time

import pytest
from machine import is_within

from vanilla_transformer_hf.translation.splitting import sentences, split_text


def words(texts):
    return [len(text.split()) for text in texts]


def parts(text, limit, count=words):
    return [text[start:end] for start, end in split_text(text, limit, count)]


@pytest.mark.parametrize(
    "expected",
    [
        ["He came.", "She left!", "Why?", "“Really?”", "No …", "Yes."],
        ["he came.", "she left . . .", "all in small letters ."],
        ["Dr. Smith met J. R. Brown on the 3. of May, e.g. in Mt. Vernon.", "Then they left."],
        ["Version 1.5 is out.", "It costs 3.50 now."],
        ["... What?", "Nothing.", "“Who?”"],
        ["One sentence without an end"],
    ],
)
def test_sentences(expected):
    text = "  ".join(expected)
    assert [text[start:end] for start, end in sentences(text)] == expected


def test_no_sentence_goes_on_in_another_line():
    text = "twenty-one\nforty\n\n  Mt.\nVernon"
    assert [text[start:end] for start, end in sentences(text)] == ["twenty-one", "forty", "Mt.", "Vernon"]


def test_chinese_and_japanese_need_no_space():
    text = "「一二三。」四五六！七八？"
    assert [text[start:end] for start, end in sentences(text)] == ["「一二三。」", "四五六！", "七八？"]


def test_each_sentence_is_a_part_of_its_own():
    assert parts("one two. three four. five six.", 4) == ["one two.", "three four.", "five six."]


def test_a_long_sentence_is_cut_at_clauses_then_words_then_characters():
    assert parts("a b c, d e, f g h, one. two.", 5) == ["a b c, d e,", "f g h, one.", "two."]
    assert parts("a b, c d; e f, g h", 5) == ["a b, c d;", "e f, g h"], "semicolons come before commas"
    assert parts("a b c d e f g", 4) == ["a b c d", "e f g"], "of about the same length"
    assert parts("a b c d e f, g", 5) == ["a b c", "d e f,", "g"]
    characters = parts("x" * 50, 7, lambda texts: list(map(len, texts)))
    assert "".join(characters) == "x" * 50 and {len(part) for part in characters} <= {6, 7}


def test_parts_of_a_long_sentence_are_shorter_than_the_longest_sentence():
    """A model has seen few sentences of the greatest length, and lost 25 % of the words of parts as long as that."""
    text = "a b c d e fa. a b c d, e f g h, i j k la."
    assert [text[start:end] for start, end in split_text(text, 8, words, 4)] == [
        "a b c d e fa.", "a b c d,", "e f g h,", "i j k la.",
    ]  # fmt: skip
    assert parts(text, 8) == ["a b c d e fa.", "a b c d, e f g h,", "i j k la."]


def test_nothing_is_lost_where_tokens_of_a_text_are_not_those_of_its_pieces():
    text = "one two, three. four five six seven, eight nine ten. eleven twelve"
    for limit in range(2, 40):
        found = parts(text, limit, lambda texts: [len(text) + 3 * text.count(" ") for text in texts])
        assert "".join("".join(found).split()) == "".join(text.split())
        assert all(len(part) + 3 * part.count(" ") <= limit for part in found)


@pytest.mark.parametrize(
    "piece",
    ["one two. ", "one two, ", "one ", "x", ". ", "“", "。", "one\n\n", "  "],
)
def test_the_time_is_linear(piece):
    """A megabyte took 25 to 67 seconds."""
    text = piece * (2**20 // len(piece.encode()))
    counted = []

    def count(texts):
        counted.append(sum(map(len, texts)))
        return [-(-len(text) // 4) for text in texts]

    start = time.process_time()
    found = parts(text, 100, count)
    assert is_within(time.process_time() - start, 20), "about 2 seconds where nothing else runs"
    assert sum(counted) <= 8 * len(text), "no text is counted again and again"
    assert sum(len("".join(part.split())) for part in found) == len("".join(text.split()))
