"""Texts that are too long, and batches of so many tokens."""

import copy

import pytest
import torch
from machine import is_linear, seconds_of
from tokenizers import processors
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.translation.scoring.scoring import encode_pairs
from vanilla_transformer_hf.translation.text.splitting import Part
from vanilla_transformer_hf.translation.text.tally import Tally
from vanilla_transformer_hf.translation.text.texts import (
    TextEncoder,
    has_letters,
    pad_rows,
    sorted_batches,
    without_empty,
)


LINE = "One two three. Four five six! Seven  eight nine ten eleven twelve thirteen? Fourteen."


@pytest.fixture(scope="module")
def tokenizer():
    return VanillaTransformerTokenizer.train([LINE.lower()] * 2, vocab_size=300, show_progress=False)


def encode(tokenizer, text, limit, too_long="split"):
    tally = Tally()
    (parts,) = TextEncoder(tokenizer, limit, too_long)([text], tally)
    return parts, tally.too_long


def test_a_text_that_fits_is_one_part(tokenizer):
    line = LINE.replace("  ", " ")
    ids = tokenizer(line)["input_ids"]
    for too_long in ("split", "truncate", "error"):
        parts, count = encode(tokenizer, LINE, len(ids), too_long)
        assert [(part.text, part.ids, part.first_word) for part in parts] == [(line, ids, 0)]
        assert count == 0
    assert encode(tokenizer, " \t\u3000", 1) == ([], 0)


@pytest.mark.parametrize("limit", range(3, 60, 4))
def test_parts_fit_and_are_the_whole(tokenizer, limit):
    parts, count = encode(tokenizer, LINE, limit)
    assert count == (len(parts) > 1)
    assert all(len(part.ids) <= limit for part in parts)
    assert "".join("".join(part.text for part in parts).split()) == "".join(LINE.split())
    words = LINE.split()
    for part in parts:
        assert part.ids == tokenizer(part.text)["input_ids"]
        assert part.text.split()[0] in words[part.first_word]


def test_sentences_are_parts_of_their_own_and_no_word_is_cut(tokenizer):
    length = len(tokenizer("One two three. Four five six!")["input_ids"])
    parts, _ = encode(tokenizer, LINE, length)
    texts = [part.text for part in parts]
    assert texts[:2] == ["One two three.", "Four five six!"]
    assert texts[-1] == "Fourteen."
    assert all(word in LINE.split() for text in texts for word in text.split())


def test_chinese_is_split_where_sentences_end(tokenizer):
    parts, _ = encode(tokenizer, "一二三。四五六。", 14)
    assert [part.text for part in parts] == ["一二三。", "四五六。"]


def test_white_space_around_a_line_is_no_part_of_it(tokenizer):
    inside, _ = encode(tokenizer, LINE, 9)
    around, _ = encode(tokenizer, f" \t {LINE} ", 9)
    assert [(part.text, part.first_word) for part in around] == [(part.text, part.first_word) for part in inside]


def test_a_word_without_end_is_cut_into_parts_that_know_their_word(tokenizer):
    parts, _ = encode(tokenizer, "one " + "x" * 50 + " two", 12)
    assert "".join(part.text for part in parts).replace(" ", "") == "one" + "x" * 50 + "two"
    assert [part.first_word for part in parts] == [0, *[1] * (len(parts) - 2), 2]


def test_truncation_keeps_the_beginning_and_the_end_token(tokenizer):
    parts, count = encode(tokenizer, LINE, 5, "truncate")
    assert [part.ids for part in parts] == [[*tokenizer(LINE)["input_ids"][:4], tokenizer.eos_token_id]]
    assert count == 1


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("template", ["$A </s>", "</s> $A", "</s> $A </s> <pad>", "$A"])
def test_truncation_is_the_hosts(tokenizer, template, side):
    """But the tokenizer is not asked for it: it would keep it in a state that threads share."""
    line = LINE.replace("  ", " ")
    theirs = TokenizersBackend(
        tokenizer_object=tokenizer.backend_tokenizer, pad_token="<pad>", truncation_side=side, verbose=False
    )
    specials = [("</s>", 1), ("<pad>", 0)]
    backend = theirs.backend_tokenizer
    backend.post_processor = processors.TemplateProcessing(single=template, pair="$A $B", special_tokens=specials)
    for limit in range(4, 30):
        ids = theirs(line, truncation=True, max_length=limit)["input_ids"]
        theirs(line)
        (part,), _ = encode(theirs, line, limit, "truncate")
        encoders = TextEncoder(theirs, limit, "truncate"), TextEncoder(theirs, 99, "truncate", is_target=True)
        tally = Tally()
        source, _ = encode_pairs(encoders, [(line, "one")], tally, return_offsets_mapping=True)
        assert part.ids == source["input_ids"][0] == ids and backend.truncation is None and tally.too_long == 1
        assert {len(values[0]) for values in source.values()} == {limit}


@pytest.mark.parametrize("is_registered", [False, True])
@pytest.mark.parametrize("tags", ["<2de> ", "<2de>", " <de> <2de> "])
def test_tags_of_a_text_are_before_every_part(tokenizer, tags, is_registered):
    tagged = copy.deepcopy(tokenizer)
    tagged.add_tokens(["<2de>", "<de>", "<x>"], special_tokens=True)
    if is_registered:
        tagged.init_kwargs["target_lang_tags"] = {"de": "<2de>", "formal": "<de>"}
    (whole,), _ = encode(tagged, tags + "One.", 99)
    words, tags = (tags + LINE).split(), tags.lstrip()
    assert whole.text == tags + "One."
    parts, _ = encode(tagged, tags + LINE, 30)
    assert len(parts) > 2
    for part in parts:
        assert part.text.startswith(tags) and len(part.ids) <= 30
        assert part.ids == tagged(part.text)["input_ids"]
        assert part.text.split()[len(part.repeated)].endswith(words[part.first_word].removeprefix(tags))
    assert " ".join(part.text.removeprefix(tags) for part in parts).split() == LINE.split()
    lines, _ = encode(tagged, f"\n{tags}One two.\n\nFour\n<de> Six\n seven", 99)
    assert [part.text for part in lines] == [f"{tags}One two.", f"{tags}Four", "<de> Six", "<de> seven"]
    count = len(f"{tags}.".split()) - 1
    assert [len(part.repeated) for part in lines] == [0, count, 0, 1]
    parts, _ = encode(tagged, "<x> " + LINE, 30)  # not a language
    assert [part.text for part in parts if "<x>" in part.text] == [parts[0].text]


@pytest.mark.parametrize(
    "text", ["-", ".", "***", "\u200b", "\U0001f600", "\U0001f1e9\U0001f1ea", "345", "3.5 %", "۱۲", "— 12:30 —", "½"]
)
def test_a_text_without_letters_is_recognised(text):
    assert not has_letters(text) and has_letters(text + "é") and has_letters("你" + text) and has_letters(text + "ٱ")


def test_error_names_the_text(tokenizer):
    with pytest.raises(ValueError, match=r"'One two three\. .*' has \d+ tokens|at most 5 go through"):
        encode(tokenizer, LINE, 5, "error")
    with pytest.raises(ValueError, match="too_long='drop': must be one of 'split', 'truncate', 'error'"):
        encode(tokenizer, LINE, 5, "drop")


def test_batches_hold_so_many_tokens_longest_first():
    lengths = [3, 9, 1, 4, 4, 20, 2]
    assert list(sorted_batches(lengths, batch_tokens=9)) == [[5], [1], [3, 4], [0, 6, 2]]
    assert list(sorted_batches(lengths, batch_size=3)) == [[5, 1, 3], [4, 0, 6], [2]]
    assert list(sorted_batches(lengths, batch_size=2, batch_tokens=9)) == [[5], [1], [3, 4], [0, 6], [2]]
    assert [len(batch) for batch in sorted_batches([1] * 300)] == [128, 128, 44]
    assert [len(batch) for batch in sorted_batches([100] * 30)] == [20, 10]
    assert list(sorted_batches([])) == []
    for name in ("batch_size", "batch_tokens"):
        with pytest.raises(ValueError, match=f"{name}=0: must be at least 1"):
            list(sorted_batches(lengths, **{name: 0}))


def test_tags_that_lines_repeat_are_few(tokenizer):
    tagged = copy.deepcopy(tokenizer)
    tagged.add_tokens(["<2de>"], special_tokens=True)
    lines, _ = encode(tagged, "<2de>" * 30 + "One.\nTwo.", 99)
    assert lines[1].text == "<2de>" * 9 + "Two."


@pytest.mark.parametrize(
    "call",
    [
        lambda size: without_empty([Part("12", [], 0, copied="12", before=None) for _ in range(size)]),
        lambda size: list(sorted_batches([5] * size, batch_size=1)),
    ],
    ids=["parts that are copied", "batches of one"],
)
def test_time_grows_with_the_text(call):
    assert is_linear(lambda size: seconds_of(lambda: call(size)), 50_000)


def test_rows_are_padded():
    ids, mask = pad_rows([[5, 6], [], [7]], 1)
    assert torch.equal(ids, torch.tensor([[5, 6], [1, 1], [7, 1]]))
    assert torch.equal(mask, torch.tensor([[1, 1], [0, 0], [1, 0]]))
    assert pad_rows([[]], 1)[0].shape == (1, 1)
