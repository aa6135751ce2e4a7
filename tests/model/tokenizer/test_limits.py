"""Tokenizers from strangers: what would hang or kill whoever opens them is refused in one line."""

import base64
import json
import time

import pytest
from machine import is_within, within
from transformers import AutoTokenizer

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.common.opening import open_tokenizer
from vanilla_transformer_hf.conversion.formats import moses, subword_text
from vanilla_transformer_hf.model.tokenization_vanilla_transformer import WORDS
from vanilla_transformer_hf.model.tokenizer.limits import check_pattern, check_tokenizer_file


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def split(pattern):
    return {
        "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip


def sequence(part, steps):
    names = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
    names["post_processor"] = "processors"
    return {part: {"type": "Sequence", names[part]: steps}}


def added(number, length=5):
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": 300 + each, "content": f"<{each:0{length}}>", **plain} for each in range(number)]


def template(count):
    parts = [{"Sequence": {"id": "A", "type_id": 0}}] * count
    return {"type": "TemplateProcessing", "single": parts, "pair": parts, "special_tokens": {}}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
CHARSMAP = base64.b64encode((8).to_bytes(4, "little") + b"\xff" * 8 + b"abc").decode()
HOSTILE = {
    "24 steps double a letter": sequence("normalizer", [replace("a", "aa")] * 24),
    "steps that double each other's": sequence("normalizer", [replace("a", "bb"), replace("b", "aa")] * 12),
    "a pattern that doubles": sequence("normalizer", [replace("[a-z]", "xy", "Regex")] * 24),
    "an empty pattern that inserts": sequence("normalizer", [replace(r"(?=.)", "x", "Regex")] * 24),
    "long texts": sequence("normalizer", [replace(f"{each:0999}", f"{each:01000}") for each in range(999)]),
    "an empty text": sequence("normalizer", [replace("", "x")]),
    "one long insertion": sequence("normalizer", [replace("a", "b" * 10**6)]),
    "24 decoders double a letter": sequence("decoder", [replace("e", "ee")] * 24),
    "24 byte levels": sequence("pre_tokenizer", [BYTE_LEVEL] * 24),
    "24 byte levels of a normalizer": sequence("normalizer", [{"type": "ByteLevel"}] * 24),
    "20,000 steps": sequence("normalizer", [replace("a", "b")] * 20_000),
    "a decoder that strips more than there is": {"decoder": {"type": "Strip", "content": " ", "start": 0, "stop": 9}},
    "deep sequences": sequence("normalizer", [{"type": "Sequence", "normalizers": []}] * 9),
    "(a+)+$": sequence("pre_tokenizer", [split("(a+)+$")]),
    "(a+)+$ in a normalizer": sequence("normalizer", [replace("(a+)+$", "", "Regex")]),
    "(a|a)*$ in a decoder": sequence("decoder", [replace("(a|a)*$", "", "Regex")]),
    "100,000 special tokens": {"added_tokens": added(100_000)},
    "a special token of a megabyte": {"added_tokens": added(1, 2**20)},
    "a template that copies": {"post_processor": template(10_000)},
    "unknown step": {"normalizer": {"type": "Explode"}},
    "table of characters": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}},
    "no table of characters": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "////"}},
    "padding to 10^12": {
        "padding": {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
        | {"pad_type_id": 0, "pad_token": "<pad>"}
    },
    "model of another kind": {"model": {"type": "Neural", "vocab": {}}},
    "a piece out of range": {"model": {"type": "Unigram", "vocab": [["<unk>", 0.0]], "unk_id": 5}},
    "long words": {"model": {"type": "WordPiece", "vocab": {"<unk>": 0}, "max_input_chars_per_word": 10**9}},
}  # fmt: skip
ALLOWED = {"deep sequences"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    VanillaTransformerTokenizer.train(["one two"], vocab_size=270, show_progress=False).save_pretrained(folder)
    return folder


@pytest.fixture
def change(saved, tmp_path):
    """`change(**parts)`: the tokenizer with other parts of its file; the folder."""

    def change(file="tokenizer.json", **parts):
        for path in saved.glob("*.json"):
            content = json.loads(path.read_text())
            (tmp_path / path.name).write_text(json.dumps({**content, **parts} if path.name == file else content))
        return tmp_path

    return change


@pytest.mark.parametrize(
    ("class_name", "kind"),
    [
        *(("VanillaTransformerTokenizer", kind) for kind in sorted(HOSTILE.keys() - ALLOWED)),
        *(("PreTrainedTokenizerFast", kind) for kind in ("24 steps double a letter", "(a+)+$", "table of characters")),
    ],
)
def test_a_hostile_tokenizer_is_one_line_at_once(kind, class_name, change):
    folder = change(**HOSTILE[kind])
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings = {**settings, "tokenizer_class": class_name, "auto_map": {}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    start = time.process_time()
    with pytest.raises(OSError, match=r"cannot open the tokenizer of .*tokenizer\.json") as refused:
        open_tokenizer(folder)
    assert is_within(time.process_time() - start, 2)
    message = str(refused.value)
    assert "\n" not in message and len(message) < 700
    if class_name == "VanillaTransformerTokenizer":  # without this package's opening, too
        with pytest.raises((OSError, ValueError)):
            VanillaTransformerTokenizer.from_pretrained(folder)


def test_what_is_allowed_opens(change):
    for kind in ALLOWED:
        assert AutoTokenizer.from_pretrained(change(**HOSTILE[kind]))("one")["input_ids"]
    steps = [{"type": "NFKC"}, {"type": "Lowercase"}, {"type": "StripAccents"}, replace("’", "'"), replace("é", "e")]
    assert open_tokenizer(change(**sequence("normalizer", steps)))("one")["input_ids"]


@pytest.mark.parametrize("place", ["added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"])
def test_settings_that_add_too_many_tokens_are_refused(place, change):
    names = [f"<{number}>" for number in range(20_000)]
    value = dict(enumerate({"content": name} for name in names)) if place == "added_tokens_decoder" else names
    folder = change("tokenizer_config.json", **{place: value})
    for opens in (open_tokenizer, VanillaTransformerTokenizer.from_pretrained):
        start = time.process_time()
        with pytest.raises((OSError, ValueError), match=place):
            opens(folder)
        assert is_within(time.process_time() - start, 2)


def test_many_tags_are_read_in_linear_time(change):
    before = json.loads((change() / "tokenizer.json").read_text())["added_tokens"]
    tokenizer = open_tokenizer(change(added_tokens=[*before, *added(5_000)]))
    start = time.process_time()
    assert tokenizer("<00017> one")["input_ids"][0] == tokenizer.convert_tokens_to_ids("<00017>")
    assert is_within(time.process_time() - start, 1)


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"(a+)+$", r"(a|a)*b", r"(a*)*", r"a*a*a*a*b", r"(a?){30}a{30}", r"a?a?a?a?a?aaaaa", r"(\w+\s?)+!"),
        *(r"((a{100}){100}){100}", r"(a)\1", r"(?<x>a)\k<x>", r"a{1,9}+", r"a**", r"(?:a{1,64}){1,64}", r".*.*.*="),
        *(r"(?=(a+)+$)", r"(?>(a+)+)b", "(", "a)", r"(?:\s|\s)+x", r"[a-z]+[a-z]+[a-z]+1", r"(?i:(a+)+)"),
        *(r"(?:(?:a+)b?)+", "a{0,64}a{0,64}a{0,64}b", r"(?#c)(a+)+", r"(*FAIL)", r"(?~a)", r"(?(1)a|b)", r"[(]+(a+)+"),
        *("a{1000000}", "(?:a{1000}){1000}", r"(?<=(a+)+)b", r"(?!(a|aa)+$)", r"(a+){2,}", r"(a{2,})*"),
        r"\p{L}+\d*\w+!",
    ],
)
def test_patterns_that_may_backtrack_without_end_are_refused(pattern):
    with within(2), pytest.raises(ValueError, match="could take time without end"):
        check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *(WORDS, r"\A ", r"[^abc\]]{2,}", r"(?<=a)(?=b)|(?<=c)(?=d)", r"(ab)+", r"\z", r"[\s\S]"),
        r"[[:alpha:]&&[^a]]+",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
)
def test_patterns_of_known_tokenizers_are_allowed(pattern):
    check_pattern(pattern)


def test_what_conversion_writes_is_allowed(saved, tmp_path):
    content = json.loads((saved / "tokenizer.json").read_text())
    path = tmp_path / "tokenizer.json"
    for language in ("en", "de", "fr", "cs"):
        steps = moses.moses(language, moses.abbreviations_of(language) or ["Mr", "No #NUMERIC_ONLY#"])
        path.write_text(json.dumps({**content, "normalizer": json.loads(steps.__getstate__())}))
        check_tokenizer_file(path)
    subword_text.subwords(["a_", "b_", "\\", "_", "u", ";", *"0123456789"]).save(str(path))
    check_tokenizer_file(path)
