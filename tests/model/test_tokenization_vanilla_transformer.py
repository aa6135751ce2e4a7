import copy
import itertools
import json
import os
import pickle
import random
import subprocess
import sys
import unicodedata
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from datasets.fingerprint import Hasher
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer
from transformers.tokenization_utils_tokenizers import TokenizersBackend
from transformers.utils import logging

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerTokenizer
from vanilla_transformer_hf.common.white_space import EDGES, normalize_space


SOURCE = ["the small dog runs over the green field .", "a dog and a cat", "the cat runs over a field"] * 2
TARGET = ["der kleine Hund läuft über das grüne Feld .", "ein Hund und eine Katze", "die Katze läuft"] * 2

CHOICES = {
    "bpe": {"vocab_size": 330},
    "wordpiece": {"vocab_size": 330, "model": "wordpiece"},
    "two vocabularies": {"vocab_size": 290, "separate_vocabularies": True, "src_lang": "en", "tgt_lang": "de"},
}

AWKWARD_TEXTS = [
    *("", " ", "  ", "\n", "\t\r\n ", "dog", " dog", "  two  spaces  ", "a </s> b<pad> <unk>", "</s>"),
    *("## ##a Ġ Ċ ▁dog ▁ @@ ￭", "e\u0301 \u0301 é", "\x00\x01\x7f\x85\u2028\ufeff\u200d\u00a0x"),
    *("👩\u200d👩\u200d👧 🇩🇪 \U0010ffff", "漢字かな交じり文、ไม่มีเว้นวรรค, नमस्ते दुनिया, שלום عليكم", "\\A ^ $ \\p{L}"),
    "字" * 300 + "a" * 300 + " " * 300,
]


@pytest.fixture(scope="module")
def trained():
    return {
        name: VanillaTransformerTokenizer.train(iter(SOURCE), iter(TARGET), show_progress=False, **choices)
        for name, choices in CHOICES.items()
    }


@pytest.fixture(params=CHOICES)
def tokenizer(request, trained):
    return copy.deepcopy(trained[request.param])


def round_trips(tokenizer, text):
    source, target = tokenizer(text)["input_ids"], tokenizer(text_target=text)["input_ids"]
    assert tokenizer.unk_token_id not in source + target, repr(text)
    assert tokenizer.decode_source(source, skip_special_tokens=True) == text
    assert tokenizer.decode(target, skip_special_tokens=True) == text


@pytest.mark.parametrize("text", AWKWARD_TEXTS)
def test_awkward_text_comes_back(tokenizer, text):
    round_trips(tokenizer, text)


def test_any_text_comes_back(tokenizer):
    draw = random.Random(0)
    ranges = [(0, 0x80), (0, 0x300), (0x2000, 0x2070), (0x4E00, 0x4F00), (0x1F300, 0x1F700), (0, 0x110000), (32, 33)]
    for _ in range(1000):
        codes = [draw.randrange(*draw.choice(ranges)) for _ in range(draw.randrange(30))]
        round_trips(tokenizer, "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000))


def test_special_tokens_and_their_ids(tokenizer):
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<pad>", "</s>", "<unk>"]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    assert tokenizer.bos_token is None
    for backend in (tokenizer.backend_tokenizer, tokenizer.source_backend_tokenizer):
        assert [backend.id_to_token(i) for i in range(3)] == ["<pad>", "</s>", "<unk>"]
        assert set(pre_tokenizers.ByteLevel.alphabet()) <= set(backend.get_vocab())


def test_end_is_appended_once_and_survives_truncation(tokenizer):
    assert tokenizer.num_special_tokens_to_add() == 1
    assert tokenizer.num_special_tokens_to_add(pair=True) == 2
    texts = ["the small dog runs over the field", "cat"]
    batch = tokenizer(texts, text_target=texts, padding=True, truncation=True, max_length=5)
    for ids in batch["input_ids"] + batch["labels"]:
        assert ids.count(1) == 1
    assert batch["input_ids"][0][-1] == 1
    assert [len(ids) for ids in batch["input_ids"]] == [5, 5]
    assert batch["attention_mask"][1] == [int(i != 0) for i in batch["input_ids"][1]]
    mask = tokenizer("dog", return_special_tokens_mask=True)["special_tokens_mask"]
    assert mask[-1] == 1 and sum(mask) == 1
    assert tokenizer("")["input_ids"] == [1]


def test_offsets_cover_the_original_text(tokenizer):
    for text in ("the dog  über\tFeld 漢 ", " cat"):
        offsets = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"]
        spans = list(dict.fromkeys(span for span in offsets))
        covered = "".join(text[max(start, spans[i - 1][1] if i else 0) : end] for i, (start, end) in enumerate(spans))
        assert covered == text


def test_a_word_has_the_same_pieces_first_and_inside(tokenizer):
    assert tokenizer.tokenize("dog dog")[: len(tokenizer.tokenize("dog"))] == tokenizer.tokenize("dog")
    assert len(set(tokenizer.tokenize("dog dog"))) == len(tokenizer.tokenize("dog"))
    assert tokenizer(["the", "dog"], is_split_into_words=True) == tokenizer("the dog")


def test_two_vocabularies(trained):
    tokenizer = copy.deepcopy(trained["two vocabularies"])
    source, target = tokenizer.source_backend_tokenizer, tokenizer.backend_tokenizer
    assert source.get_vocab() != target.get_vocab() == tokenizer.get_vocab()
    assert tokenizer.source_vocab_size == source.get_vocab_size()
    assert len(tokenizer) == tokenizer.vocab_size == target.get_vocab_size()
    both = tokenizer("the dog", text_target="der Hund")
    assert both["input_ids"] == tokenizer("the dog")["input_ids"] == source.encode("the dog").ids
    assert both["labels"] == tokenizer(text_target="der Hund")["input_ids"] == target.encode("der Hund").ids
    assert tokenizer.batch_decode([both["labels"]]) == ["der Hund</s>"]
    assert tokenizer.decode_source(both["input_ids"]) == "the dog</s>"
    with pytest.raises(ValueError, match="must be of type `str`"):
        tokenizer(text_target=3)
    assert tokenizer.encode("the dog") == both["input_ids"]  # an error leaves no target mode behind
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer), source_vocab_size=tokenizer.source_vocab_size, embedding_sharing="decoder"
    )
    assert (config.source_vocab_size, config.vocab_size) == (source.get_vocab_size(), target.get_vocab_size())


def test_no_call_changes_the_tokenizer(tokenizer):
    """Threads that share it would see the change, and datasets' fingerprint of it would be another one."""
    backends = tokenizer.backend_tokenizer, tokenizer.source_backend_tokenizer

    def state():
        return [(backend.to_str(), backend.encode_special_tokens) for backend in backends], Hasher.hash(tokenizer)

    before = state()
    texts = ["the dog runs over a field", "a"]
    tokenizer(texts, text_target=texts, padding="max_length", truncation=True, max_length=3, stride=1)
    assert state() == before
    tokenizer(texts, padding=True, split_special_tokens=False, return_tensors="pt")
    assert state() == before
    with pytest.raises(ValueError, match="must be of type `str`"):
        tokenizer("a dog", text_target=3, truncation=True, max_length=2)
    assert state() == before


def test_threads_read_as_each_alone(trained):
    """One reads sources, one targets, one truncates, one pads and one finds special tokens."""
    tokenizer = copy.deepcopy(trained["two vocabularies"])
    text = "the small dog </s> runs over the green field ."
    calls = [
        {"text": text},
        {"text_target": text},
        {"text": text, "text_target": "Hund", "truncation": True, "max_length": 4},
        {"text": [text, "dog"], "padding": "max_length", "max_length": 99},
        {"text": text, "split_special_tokens": False},
    ]
    expected = [dict(tokenizer(**call)) for call in calls]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(calls)) as threads:
            found = list(threads.map(lambda place: dict(tokenizer(**calls[place])), [*range(len(calls))] * 100))
    finally:
        sys.setswitchinterval(interval)
    assert found == expected * 100


LONG, SHORT = "the small dog runs over the green field .", "a cat"
TEXTS = {
    "a text": {"text": LONG},
    "texts": {"text": [LONG, SHORT, ""]},
    "a pair": {"text": LONG, "text_pair": SHORT},
    "pairs": {"text": [LONG, SHORT], "text_pair": [SHORT, LONG]},
    "words": {"text": LONG.split(), "is_split_into_words": True},
}
CUTS = [
    {},
    *({"truncation": how, "max_length": 9} for how in (True, "only_first", "longest_first", "only_second")),
    {"truncation": True, "max_length": 9, "stride": 1, "return_overflowing_tokens": True},
    {"truncation": True, "max_length": 8, "return_overflowing_tokens": True},
]
FILLINGS = [
    {},
    {"padding": True, "padding_side": "left"},
    {"padding": "max_length", "max_length": 20},
    {"padding": True, "pad_to_multiple_of": 8, "return_tensors": "np"},
]
EXTRAS = dict.fromkeys(
    ("return_token_type_ids", "return_special_tokens_mask", "return_offsets_mapping", "return_length"), True
)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("texts", TEXTS)
def test_every_argument_does_what_it_does_in_the_host(trained, texts, side):
    settings = {name: getattr(trained["bpe"], name) for name in ("pad_token", "eos_token", "unk_token")}
    settings |= {"truncation_side": side, "split_special_tokens": True}
    theirs = TokenizersBackend(tokenizer_object=trained["bpe"].backend_tokenizer, **settings)
    ours = VanillaTransformerTokenizer(tokenizer_object=trained["bpe"].backend_tokenizer, **settings)

    def outcome(tokenizer, options):
        try:
            found = tokenizer(**TEXTS[texts], **options, **EXTRAS)
        except Exception as error:  # pyo3 has errors that only this class catches
            return type(error), str(error)
        return {name: getattr(value, "tolist", lambda value=value: value)() for name, value in found.items()}

    for cut, filling in itertools.product(CUTS, FILLINGS):
        assert outcome(ours, {**filling, **cut}) == outcome(theirs, {**filling, **cut}), (cut, filling)


def test_shared_vocabulary(trained):
    tokenizer = trained["bpe"]
    assert tokenizer.source_vocab_size is None
    assert tokenizer.source_backend_tokenizer is tokenizer.backend_tokenizer
    assert tokenizer("Hund")["input_ids"] == tokenizer(text_target="Hund")["input_ids"]


def test_added_tokens_go_to_both_sides(tokenizer, tmp_path):
    before = len(tokenizer), tokenizer.source_vocab_size
    assert tokenizer.add_tokens(["<2de>"]) == 1
    assert len(tokenizer) == before[0] + 1
    assert tokenizer.source_vocab_size == (before[1] and before[1] + 1)
    tokenizer.save_pretrained(tmp_path)
    for one in (tokenizer, VanillaTransformerTokenizer.from_pretrained(tmp_path)):
        assert one.tokenize("<2de> the dog")[0] == "<2de>"
        assert one.tokenize("the <2de>")[-1] == "<2de>"
        round_trips(one, "<2de> the dog<2de> and <2de>")


@pytest.mark.parametrize("way", ["additional_special_tokens", "extra_special_tokens", "add_tokens"])
def test_special_tokens_of_the_user_are_recognised(tokenizer, tmp_path, way):
    if way == "add_tokens":
        tokenizer.add_tokens(["<de>", AddedToken("<fr>", rstrip=True)], special_tokens=True)
    else:
        tokenizer.add_special_tokens({way: ["<de>", AddedToken("<fr>", rstrip=True)]})
    tokenizer.save_pretrained(tmp_path / "once")
    again = VanillaTransformerTokenizer.from_pretrained(tmp_path / "once")
    again.save_pretrained(tmp_path / "twice")
    for one in (tokenizer, again, VanillaTransformerTokenizer.from_pretrained(tmp_path / "twice")):
        size = len(one) - 2
        tags = {"<de>": size, "<fr>": size + 1}
        source_size = (one.source_vocab_size or len(one)) - 2
        assert {tag: one.convert_tokens_to_ids(tag) for tag in tags} == tags
        for side, first in (("text", source_size), ("text_target", size)):
            ids = one(**{side: "<de> the dog<fr>  and </s><pad> a cat"})["input_ids"]
            assert (ids[0], ids.count(first), ids.count(first + 1)) == (first, 1, 1)
            assert ids.count(one.eos_token_id) == 1 == ids.index(one.eos_token_id) - len(ids) + 2
            assert one.pad_token_id not in ids and one.unk_token_id not in ids
            decode = one.decode_source if side == "text" else one.decode
            assert "<de>" in decode(ids) and "</s><pad> a cat" in decode(ids, skip_special_tokens=True)
            assert "<de>" not in decode(ids, skip_special_tokens=True)
            assert "<fr>" not in decode(ids, skip_special_tokens=True)
            all_of_them = one(**{side: "<de></s>"}, split_special_tokens=False)["input_ids"]
            assert all_of_them == [first, one.eos_token_id, one.eos_token_id]
        batch = one(["<de> dog", "a"], padding=True, truncation=True, max_length=2, return_tensors="pt")
        assert batch["input_ids"].shape == (2, 2) and batch["input_ids"][0].tolist() == [source_size, 1]
        assert one.tokenize("<de>dog")[0] == "<de>"


SPACED = ["the dog <x> runs", "<x> runs", "a <x> <x> b", "<x>runs", "runs <x>", "a<x>b", " <x>  a ", "<x>", "  a<x> "]


@pytest.mark.parametrize("special", [True, False])
def test_a_text_with_an_added_token_comes_back(tokenizer, tmp_path, special):
    tokenizer.add_tokens([AddedToken("<x>", normalized=False)], special_tokens=special)
    tokenizer.save_pretrained(tmp_path)
    for one in (tokenizer, VanillaTransformerTokenizer.from_pretrained(tmp_path)):
        for text in [*SPACED, "\ufdd0", " \ufdd0 ", "<x>\ufdd0 a", "<x> \ufdd0"]:
            ids = one(text, text_target=text, add_special_tokens=False)
            assert one.decode_source(ids["input_ids"]) == one.decode(ids["labels"]) == text
        plain = one("the dog")["input_ids"]
        assert one("<x> the dog")["input_ids"] == [one.source_backend_tokenizer.token_to_id("<x>"), *plain]


def test_saved_tokenizers_keep_their_ids_beside_added_tokens():
    """One of the first release doubles the space after an added token, and models were trained with that."""
    tokenizer = AutoTokenizer.from_pretrained(Path(__file__).parents[1] / "data" / "first_release")
    tokenizer.add_tokens(["<x>"], special_tokens=True)
    ids = tokenizer("<x> a", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == "<x>  a"


@pytest.mark.parametrize("way", ["add_special_tokens", "constructor"])
def test_a_mask_in_a_text_has_the_ids_of_a_mask_in_training(trained, tmp_path, way):
    tokenizer = copy.deepcopy(trained["bpe"])
    if way == "add_special_tokens":
        tokenizer.add_special_tokens({"mask_token": "<mask>"})
        tokenizer.save_pretrained(tmp_path)
    else:
        tokenizer.save_pretrained(tmp_path)
        tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path, mask_token="<mask>")
    for one in (tokenizer, VanillaTransformerTokenizer.from_pretrained(tmp_path, mask_token="<mask>")):
        ids = one("the cat runs")["input_ids"]
        place = one.convert_ids_to_tokens(ids).index("Ġcat")
        ids[place] = one.mask_token_id
        assert one("the <mask> runs")["input_ids"] == ids
        assert one("<mask> cat")["input_ids"][0] == one.mask_token_id
    exact = copy.deepcopy(trained["bpe"])
    exact.add_special_tokens({"mask_token": AddedToken("<mask>", special=True)})
    assert not exact.added_tokens_decoder[exact.mask_token_id].lstrip


def test_bpe_dropout_is_within_reach(trained):
    """Of texts with tags, too."""
    two, tagged = copy.deepcopy(trained["two vocabularies"]), copy.deepcopy(trained["bpe"])
    tagged.add_special_tokens({"additional_special_tokens": ["<de>"]})
    for tokenizer, backend, arguments in (
        (two, two.source_backend_tokenizer, {"text": "the dog"}),
        (two, two.backend_tokenizer, {"text_target": "der Hund"}),
        (tagged, tagged.backend_tokenizer, {"text": "<de> the dog"}),
    ):
        usual = len(tokenizer(**arguments)["input_ids"])
        backend.model.dropout = 1.0
        assert len(tokenizer(**arguments)["input_ids"]) > usual
        backend.model.dropout = None


def test_lossy_choices_are_kept_and_lose_nothing_else(tmp_path):
    train = {"vocab_size": 300, "show_progress": False}
    tokenizer = VanillaTransformerTokenizer.train(SOURCE, lowercase=True, unicode_normalization="NFKC", **train)
    tokenizer.save_pretrained(tmp_path)
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path)
    ids = tokenizer(" ＤOG  e\u0301")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == " dog  é"
    decomposing = VanillaTransformerTokenizer.train(SOURCE, unicode_normalization="NFD", **train)
    assert decomposing.decode(decomposing("É")["input_ids"], skip_special_tokens=True) == "E\u0301"


@pytest.mark.parametrize("two", [False, True])
def test_normalised_white_space_is_saved_and_equals_what_training_reads(tmp_path, two):
    train = {"vocab_size": 320, "show_progress": False, "separate_vocabularies": two, "unicode_normalization": "NFC"}
    plain = VanillaTransformerTokenizer.train(SOURCE, TARGET, **train)
    VanillaTransformerTokenizer.train(SOURCE, TARGET, normalize_white_space=True, **train).save_pretrained(tmp_path)
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path)
    assert tokenizer.get_vocab() == plain.get_vocab(), "the pieces of text that was normalised before"
    saved = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert (saved["unicode_normalization"], saved["normalize_white_space"]) == ("NFC", True)
    every = "the{}dog{}"
    texts = [every.format(chr(code), chr(code)) for code in [*range(0x80), *range(0x80, 0x3100, 20), 0xFEFF]]
    texts += [f"{each}the" for each in EDGES]
    texts += [every.format(each, each) for each in (*EDGES, " \u200b\u00a0 ", "\r\n\t")]
    texts += ["  the dog\n", "\u200bthe", " ", "", "e\u200b\u0301", "e\u0301 e\u0323\u0301"]
    for side in ({"text": texts}, {"text_target": texts}):
        name = next(iter(side))
        expected = [
            plain(**{name: unicodedata.normalize("NFC", normalize_space(text))})["input_ids"] for text in texts
        ]
        assert tokenizer(**side)["input_ids"] == expected
    ids = tokenizer(text_target="der\u00a0 Hund\n")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "der Hund"
    spans = tokenizer("  e\u0301  dog ", return_offsets_mapping=True)["offset_mapping"]
    assert spans[-2][1] == 9, "offsets are those of the given text"
    tokenizer.add_tokens(["<x>"])
    ids = tokenizer(text_target="der  <x>  Hund ")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "der <x> Hund"


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_both_forms_of_a_text_are_the_same_pieces(form):
    phrase = "Ẹ̀kọ́ ọ̀fẹ́ ni fún àwọn ọmọdé"
    forms = [unicodedata.normalize(name, phrase) for name in ("NFC", "NFD")]
    assert forms[0] != forms[1]
    new = VanillaTransformerTokenizer.train(
        [phrase] * 9, vocab_size=320, unicode_normalization=form, show_progress=False
    )
    old = VanillaTransformerTokenizer.train([phrase] * 9, vocab_size=320, show_progress=False)
    assert new(forms[0])["input_ids"] == new(forms[1])["input_ids"]
    assert old(forms[0])["input_ids"] != old(forms[1])["input_ids"], "of an earlier tokenizer they stay as they were"


@pytest.mark.parametrize("model", ["bpe", "wordpiece"])
def test_training_does_not_depend_on_the_order_of_texts(model):
    def train(texts):
        tokenizer = VanillaTransformerTokenizer.train(texts, vocab_size=330, model=model, show_progress=False)
        return tokenizer.backend_tokenizer.to_str()

    assert train(SOURCE + TARGET) == train(reversed(SOURCE + TARGET))


def test_training_reads_texts_one_at_a_time(trained):
    alive = 0
    most = 0

    class Text(str):
        def __new__(cls, text):
            nonlocal alive, most
            alive += 1
            most = max(most, alive)
            return super().__new__(cls, text)

        def __del__(self):
            nonlocal alive
            alive -= 1

    texts = (Text("the dog") for _ in range(20_000))
    VanillaTransformerTokenizer.train(texts, vocab_size=270, show_progress=False)
    assert most < 2_000


@pytest.mark.parametrize(
    "source, target, choices, error, message",
    [
        ([], None, {}, ValueError, "source corpus is empty"),
        (SOURCE, ["", " "], {}, ValueError, "target corpus is empty"),
        (SOURCE, [], {}, ValueError, "target corpus is empty"),
        (["a", 3], None, {}, TypeError, "source text 2 is int, not str"),
        (SOURCE, None, {"vocab_size": 258}, ValueError, "vocab_size=258 cannot hold the 256 bytes and 3 special"),
        (SOURCE, None, {"model": "unigram"}, ValueError, "model='unigram' is unknown; allowed are 'bpe', 'wordpiece'"),
        (SOURCE, None, {"unicode_normalization": "NFX"}, ValueError, "allowed are 'NFC', 'NFKC', 'NFD', 'NFKD'"),
        (SOURCE, None, {"separate_vocabularies": True}, ValueError, "needs target_texts"),
    ],
)
def test_what_training_refuses(source, target, choices, error, message):
    with pytest.raises(error, match=message):
        VanillaTransformerTokenizer.train(source, target, show_progress=False, **choices)


def test_save_load_save(tokenizer, tmp_path, monkeypatch):
    def refuse(message, *args, **kwargs):
        raise AssertionError(message)

    for name in ("warning", "warning_once"):
        monkeypatch.setattr(logging.get_logger("transformers.tokenization_utils_base"), name, refuse)
        monkeypatch.setattr(logging.get_logger("transformers.tokenization_utils_tokenizers"), name, refuse)
    first, second = tmp_path / "first", tmp_path / "second"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer(["the dog", "a"], padding="max_length", truncation=True, max_length=4)  # must not be saved
        tokenizer.save_pretrained(first)
        loaded = AutoTokenizer.from_pretrained(first)
        loaded(["the dog", "a"], padding=True)
        loaded.save_pretrained(second)
    assert type(loaded) is VanillaTransformerTokenizer
    files = {path.name: path.read_bytes() for path in first.iterdir()}
    assert files == {path.name: path.read_bytes() for path in second.iterdir()}
    assert ("source_tokenizer.json" in files) == tokenizer.separate_vocabularies
    languages = ("en", "de") if tokenizer.separate_vocabularies else (None, None)
    assert (loaded.src_lang, loaded.tgt_lang) == (tokenizer.src_lang, tokenizer.tgt_lang) == languages
    assert loaded.split_special_tokens and not loaded.clean_up_tokenization_spaces
    text = "the </s> Katze ."
    assert loaded(text, text_target=text) == tokenizer(text, text_target=text)
    unpickled = pickle.loads(pickle.dumps(loaded))
    assert unpickled(text, text_target=text) == tokenizer(text, text_target=text)


@pytest.mark.parametrize("file", ["tokenizer.json", "source_tokenizer.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "{}", '{"added_tokens": []}', "no JSON"])
def test_damaged_files_are_named(trained, tmp_path, file, damage):
    trained["two vocabularies"].save_pretrained(tmp_path)
    text = (tmp_path / file).read_text(encoding="utf-8")
    if damage == "missing":
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(text[:-2000] if damage == "truncated" else damage, encoding="utf-8")
    with pytest.raises((OSError, ValueError)) as caught:
        AutoTokenizer.from_pretrained(tmp_path)
    message = str(caught.value)
    assert str(tmp_path) in message and file in message.replace("source_" * (file[0] == "t"), "")
    assert "\n" not in message and ("missing" if damage == "missing" else "complete") in message


def test_vocabularies_that_disagree_are_refused(trained):
    other = Tokenizer(models.WordLevel({"</s>": 0, "<pad>": 1, "<unk>": 2}, unk_token="<unk>"))
    with pytest.raises(ValueError, match="pad_token_id is 1 in the source and 0 in the target"):
        VanillaTransformerTokenizer(
            tokenizer_object=trained["bpe"].backend_tokenizer,
            source_tokenizer_object=other,
            separate_vocabularies=True,
            pad_token="<pad>",
            eos_token="</s>",
            unk_token="<unk>",
        )


def test_any_backend_will_do(tmp_path):
    backend = Tokenizer(models.WordLevel({"<s>": 0, "a": 1, "b": 2, "<unk>": 3}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    VanillaTransformerTokenizer(tokenizer_object=backend, bos_token="<s>", unk_token="<unk>").save_pretrained(tmp_path)
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path)
    assert tokenizer("a b c")["input_ids"] == [1, 2, 3]
    assert tokenizer.decode([1, 2]) == "a b"


@pytest.mark.parametrize("name", ["bpe", "wordpiece"])
def test_the_hosts_retraining_keeps_the_pipeline(trained, name):
    retrained = trained[name].train_new_from_iterator([TARGET], 300, show_progress=False)
    assert retrained.backend_tokenizer.get_vocab() != trained[name].backend_tokenizer.get_vocab()
    for text in AWKWARD_TEXTS:
        round_trips(retrained, text)


def test_the_hosts_retraining_refuses_two_vocabularies(trained):
    with pytest.raises(ValueError, match="separate_vocabularies=True"):
        trained["two vocabularies"].train_new_from_iterator([TARGET], 300)


OPEN_WITHOUT_PACKAGE = """
import sys
sys.modules["vanilla_transformer_hf"] = None  # as if it were not installed
import dill
from datasets.fingerprint import Hasher
from transformers import AutoTokenizer

first, second = sys.argv[1:]
for folder, copy in ((first, second), (second, None)):
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    batch = tokenizer("the dog", text_target="der Hund")
    print(batch["input_ids"], tokenizer.decode_source(batch["input_ids"]), tokenizer.decode(batch["labels"]))
    if copy:
        tokenizer.save_pretrained(copy)
        again = dill.loads(dill.dumps(tokenizer, recurse=True))  # as datasets' map(num_proc=2) does
        assert again("the dog", text_target="der Hund") == batch
        before = Hasher.hash(tokenizer)
        tokenizer(["the dog", "a"], padding=True)
        assert Hasher.hash(tokenizer) == before
"""


def test_opens_without_the_package(trained, tmp_path):
    tokenizer = trained["two vocabularies"]
    first, second = tmp_path / "first", tmp_path / "second"
    tokenizer.save_pretrained(first)
    done = subprocess.run(
        [sys.executable, "-c", OPEN_WITHOUT_PACKAGE, str(first), str(second)],
        env={**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    line = f"{tokenizer('the dog')['input_ids']} the dog</s> der Hund</s>"
    assert done.stdout.splitlines() == [line, line]
    assert done.stderr == ""
    assert {path.name: path.read_bytes() for path in first.iterdir() if path.is_file()} == {
        path.name: path.read_bytes() for path in second.iterdir() if path.is_file()
    }


MAP = """
import sys
sys.modules["vanilla_transformer_hf"] = None  # as if it were not installed
from datasets import Dataset
from datasets.fingerprint import Hasher
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)

def prepare(rows):
    return tokenizer(rows["text"], text_target=rows["text"])

rows = Dataset.from_dict({"text": ["the dog", "Hund"]}).map(prepare, batched=True, num_proc=2)
print(Hasher.hash(prepare), rows[:]["input_ids"], rows[:]["labels"])
"""


@pytest.mark.slow
def test_datasets_maps_with_it_and_finds_its_results_again(trained, tmp_path):
    trained["two vocabularies"].save_pretrained(tmp_path)
    results = []
    for seed in "12":
        settings = {"HF_MODULES_CACHE": str(tmp_path / f"modules{seed}"), "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", MAP, str(tmp_path)]
        done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        results.append(done.stdout)
    assert results[0] == results[1]
    both = trained["two vocabularies"](["the dog", "Hund"], text_target=["the dog", "Hund"])
    assert results[0].split(maxsplit=1)[1].strip() == f"{both['input_ids']} {both['labels']}"
