"""Tokens as text: every blank can be told from every other, and bytes are joined to letters."""

import pytest

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.explorer.subject import PieceReader, visible


@pytest.fixture(scope="module")
def tokenizer():
    """One of single bytes, as that of a text in a script which training has not seen."""
    return VanillaTransformerTokenizer.train(["one two three"], vocab_size=265)


def pieces_of(tokenizer, text, is_source=True):
    reader = PieceReader(tokenizer, {*tokenizer.all_special_ids})
    return reader.pieces(tokenizer(text, add_special_tokens=False)["input_ids"], is_source)


@pytest.mark.parametrize("is_source", [True, False])
@pytest.mark.parametrize("text", ["مرحبا", "日本", "naïve", "👍🏽", "हि", "a\N{COMBINING ACUTE ACCENT}"])
def test_bytes_are_joined_to_letters(tokenizer, text, is_source):
    first, *found = pieces_of(tokenizer, text, is_source)
    assert first.text == "␣"
    assert "".join(piece.text for piece in found if piece.part == 1) == tokenizer.decode(tokenizer.encode(text)[1:-1])
    places = [piece.part for piece in found]
    assert places == [part for piece in found if piece.part == 1 for part in range(1, piece.parts + 1)]


def test_a_piece_is_a_letter_where_it_ends_one_and_its_bytes_before(tokenizer):
    reader = PieceReader(tokenizer, {*tokenizer.all_special_ids})
    blank, *ids = tokenizer("日", add_special_tokens=False)["input_ids"]
    found = [reader.piece([blank, *ids[:place]], ids[place]) for place in range(3)]
    assert [piece.text for piece in found] == ["<0xE6>", "<0x97>", "日"]
    assert [piece.parts for piece in found] == [1, 1, 3]
    # Behind a special token, the same bytes are no letter.
    assert reader.piece([*ids[:2], tokenizer.eos_token_id], ids[2]).text == "<0xA5>"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "␣"), (" ", "␣"), ("  ", "␣␣"), ("\n", "⏎"), ("\n\n", "⏎⏎"), ("\t", "⇥"), ("\r\n", "␍⏎"),
        ("\N{NO-BREAK SPACE}", "U+00A0"), ("\N{IDEOGRAPHIC SPACE}", "U+3000"), ("\N{ZERO WIDTH SPACE}", "U+200B"),
        ("\N{ZERO WIDTH JOINER}", "U+200D"), ("\0", "U+0000"), ("\N{RIGHT-TO-LEFT MARK}", "U+200F"),
        ("ab", "ab"), (" ab", "ab"), ("a b", "a b"), ("ab\n", "ab⏎"), ("می\N{ZERO WIDTH NON-JOINER}روم",) * 2,
    ],
)  # fmt: skip
def test_what_cannot_be_seen_has_a_sign_of_its_own(text, shown):
    assert visible(text) == shown
