"""Translator, pipeline and streams of lines, on a tiny model that has learned to count backwards in German."""

import copy
import io
import itertools
import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig, BertModel, MarianConfig, MarianMTModel, pipeline
from transformers.pipelines.pt_utils import KeyDataset
from transformers.utils import logging as host_logging

import vanilla_transformer_hf
import vanilla_transformer_hf.translation as translation_module
from vanilla_transformer_hf import (
    TranslationPipeline,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
    packed_weights_vanilla_transformer,
)
from vanilla_transformer_hf.matmul import available_matmuls
from vanilla_transformer_hf.streams.lines import translate_lines
from vanilla_transformer_hf.text_batches import ConstrainedText, Tally
from vanilla_transformer_hf.translation import Translation, Translator


NUMBERS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}
SOURCES = [" ".join(words) for length in (1, 2, 3) for words in itertools.product(NUMBERS, repeat=length)]
TARGETS = [" ".join(NUMBERS[word] for word in reversed(source.split())) for source in SOURCES]
MIXED = ["four five one", "two", "", "three one", " \t ", "five five two", "one two", "three"]
TRANSLATED = ["eins fünf vier", "zwei", "", "eins drei", "", "zwei fünf fünf", "zwei eins", "drei"]
SIZES = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "dropout": 0.0,
    "max_position_embeddings": 64,
}


def trained_model(tokenizer: VanillaTransformerTokenizer) -> VanillaTransformerForConditionalGeneration:
    torch.manual_seed(0)
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=len(tokenizer), **SIZES))
    batch = tokenizer(SOURCES, text_target=TARGETS, padding=True, return_tensors="pt")
    batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(250):
        rows = torch.randperm(len(SOURCES))[:64]
        model(**{name: tensor[rows] for name, tensor in batch.items()}).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def saved_model(folder) -> str:
    tokenizer = VanillaTransformerTokenizer.train(SOURCES, TARGETS, vocab_size=300, show_progress=False)
    trained_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def shared_translator(folder):
    return Translator.from_pretrained(folder, device="cpu")


@pytest.fixture
def translator(shared_translator):
    """A `Translator` whose settings a test may change."""
    return Translator(shared_translator.model, shared_translator.tokenizer)


@pytest.fixture
def generated(translator, monkeypatch):
    """The arguments of every call of the model's `generate()`."""
    calls, generate = [], translator.model.generate
    monkeypatch.setattr(translator.model, "generate", lambda **kwargs: calls.append(kwargs) or generate(**kwargs))
    return calls


@pytest.fixture
def broken(folder, tmp_path):
    """A copy of the saved folder, to be damaged."""
    return shutil.copytree(folder, tmp_path / "broken")


def test_model_translates(translator):
    assert translator.translate(SOURCES) == TARGETS


@pytest.mark.parametrize("batch_size", [1, 3, 100])
@pytest.mark.parametrize("num_beams", [1, 4])
def test_batched_equals_single_and_order_is_restored(translator, batch_size, num_beams):
    options = {"num_beams": num_beams, "num_return_sequences": num_beams, "return_scores": True}
    single = [translator.translate(text, **options) for text in MIXED]
    batched = translator.translate(MIXED, batch_size=batch_size, **options)
    assert batched == single
    if num_beams == 1:
        assert batched == TRANSLATED
        single, batched = [[line] for line in single], [[line] for line in batched]
    for one, other in zip(itertools.chain(*single), itertools.chain(*batched), strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-5)


def test_a_text_gives_a_string_and_a_list_gives_a_list(translator):
    assert isinstance(translator.translate("two"), str)
    assert translator.translate("two") == "zwei"
    assert translator.translate("two").score is None
    assert translator.translate(["two"]) == ["zwei"]
    assert translator.translate(text for text in ("two", "one")) == ["zwei", "eins"]
    assert translator.translate([]) == []


def test_blank_lines_do_not_reach_the_model(translator, generated):
    assert translator.translate("") == ""
    assert translator.translate([" ", "", "\u2003\t"], num_beams=2, num_return_sequences=2) == [["", ""]] * 3
    assert generated == []
    assert translator.translate(["", "two"], return_scores=True)[0].score == 0
    assert len(generated[0]["input_ids"]) == 1


@pytest.mark.parametrize("length_penalty", [None, 0.0, 0.6])
def test_n_best_scores_are_those_of_beam_search(translator, length_penalty):
    options = {"num_beams": 4, "num_return_sequences": 4, "length_penalty": length_penalty}
    best = translator.translate("four five one", return_scores=True, **options)
    scores = [candidate.score for candidate in best]
    assert scores == sorted(scores, reverse=True)
    assert best[0] == "eins fünf vier"
    inputs = translator.tokenizer("four five one", return_tensors="pt")
    options = {name: value for name, value in options.items() if value is not None}
    limits = {"max_new_tokens": 50, "output_scores": True, "return_dict_in_generate": True}
    expected = translator.model.generate(**inputs, **options, **limits).sequences_scores
    assert scores == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("penalty", ["power", "gnmt"])
def test_scores_of_a_search_and_of_a_second_pass_are_the_same(translator, monkeypatch, penalty):
    """Beam search tells its scores; greedy search, and models of other kinds, need the pass."""
    options = {"length_penalty": 0.6, "length_penalty_type": penalty, "return_scores": True}
    beams = {"num_beams": 3, "num_return_sequences": 3}
    told = translator.translate(MIXED, **beams, **options)
    passes = []
    score = translation_module.score_sequences
    monkeypatch.setattr(translation_module, "score_sequences", lambda *a, **k: passes.append(1) or score(*a, **k))
    assert translator.translate(MIXED, **beams, **options) == told
    assert not passes
    search = translator.model.generate_stream
    silent = lambda *a, **k: (SimpleNamespace(sequences=found.sequences) for found in search(*a, **k))  # noqa: E731
    monkeypatch.setattr(translator.model, "generate_stream", silent)
    computed = translator.translate(MIXED, **beams, **options)
    assert passes and computed == told
    for one, other in zip(itertools.chain(*told), itertools.chain(*computed), strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-5)


def test_score_of_greedy_search_follows_the_length_penalty(translator):
    plain = translator.translate("four five one", num_beams=1, length_penalty=0.0, return_scores=True)
    length = len(plain.tokens)
    for kind, divisor in (("power", length**0.6), ("gnmt", ((5 + length) / 6) ** 0.6)):
        options = {"length_penalty": 0.6, "length_penalty_type": kind}
        score = translator._length_penalty(options)(torch.tensor(length))
        assert float(score) == pytest.approx(divisor)
    found = translator.translate("four five one", num_beams=1, length_penalty=0.6, return_scores=True)
    assert found.score == pytest.approx(plain.score / length**0.6, abs=1e-5)


def test_tokens_are_the_pieces_with_their_end(translator):
    for beams in (1, 3):
        for translation in translator.translate(MIXED, num_beams=beams):
            ids = translator.tokenizer.convert_tokens_to_ids(translation.tokens)
            assert translator.tokenizer.decode(ids, skip_special_tokens=True) == translation
            assert translation.tokens[-1:] == (["</s>"] if translation else [])


def test_a_split_line_is_joined_and_scored_as_a_whole(translator, caplog):
    line = "one two three four five one two"
    translator.max_source_length = 4
    options = {"num_beams": 2, "num_return_sequences": 2, "return_scores": True}
    parts = translator.translate(["one two three", "four five one", "two"], **options)
    joined = translator.translate(line, **options)
    assert joined == [" ".join(texts) for texts in zip(*parts)]
    assert caplog.messages == ["1 over-long line split into parts of at most 4 tokens"]
    for whole, each in zip(joined, zip(*parts), strict=True):
        assert whole.tokens == [token for part in each for token in part.tokens]
        total = sum(part.score * len(part.tokens) for part in each)
        assert whole.score == pytest.approx(total / len(whole.tokens), abs=1e-5)
    with pytest.raises(ValueError, match="has 8 tokens and at most 4 go through the model at once"):
        translator.translate(line, too_long="error")


def test_batches_by_tokens_change_nothing(translator, generated):
    for limits in ({"batch_tokens": 6}, {"batch_tokens": 1}, {"batch_size": 3, "batch_tokens": 100}):
        assert translator.translate(MIXED, **limits) == TRANSLATED
        sizes = [call["input_ids"].numel() for call in generated]
        most = max(len(call["input_ids"]) for call in generated)
        assert most == 3 if "batch_size" in limits else max(sizes) <= max(limits["batch_tokens"], 4)
        generated.clear()


def test_progress_counts_lines_and_tokens(translator):
    tally = Tally()
    translator.max_source_length = 3
    lines = [*MIXED, "one two three four five"]
    found = list(translator.translate_stream(lines, batch_size=2, tally=tally))
    assert tally.sentences == len(lines), "a line of several parts once"
    assert tally.tokens == sum(len(best[0].tokens) for best in found)
    assert tally.too_long == 3


def test_scores_do_not_depend_on_how_many_logits_are_held(translator, monkeypatch):
    at_once = translator.score(SOURCES[:9], TARGETS[:9])
    monkeypatch.setattr("vanilla_transformer_hf.forced_decoding.SCORED_LOGITS", 1)
    for one, other in zip(at_once, translator.score(SOURCES[:9], TARGETS[:9]), strict=True):
        assert one.token_log_probabilities == pytest.approx(other.token_log_probabilities, abs=1e-5)


def test_score_survives_copies():
    import pickle

    copied = pickle.loads(pickle.dumps(Translation("zwei", -0.5)))
    assert (copied, copied.score) == ("zwei", -0.5)
    assert json.dumps([copied]) == '["zwei"]'


def test_length_limit_is_source_plus_50_where_nobody_gives_one(translator, generated, monkeypatch):
    translator.translate(["two", "four five"])
    assert (generated[-1]["max_extra_tokens"], "max_new_tokens" in generated[-1]) == (50, False), "for each its own"
    for given in ({"max_new_tokens": 7}, {"max_length": 9}, {"max_extra_tokens": 3}):
        translator.translate("two", **given)
        limits = {name: value for name, value in generated[-1].items() if name.startswith("max")}
        assert limits == given
    monkeypatch.setattr(translator, "_has_own_options", False)  # a model of another kind
    translator.translate(["two", "four five"])
    longest = len(translator.tokenizer("four five")["input_ids"])
    assert (generated[-1]["max_new_tokens"], "max_extra_tokens" in generated[-1]) == (longest + 50, False)
    monkeypatch.setattr(translator.model.generation_config, "max_length", 30)
    translator.translate("two")
    assert "max_new_tokens" not in generated[-1]


def test_search_follows_generation_config(translator, monkeypatch):
    monkeypatch.setattr(translator.model.generation_config, "num_beams", 4)
    assert len(translator.translate("two", num_return_sequences=3)) == 3
    with pytest.raises(ValueError, match=r"num_return_sequences=2: needs num_beams of at least 2, not 1"):
        translator.translate("two", num_beams=1, num_return_sequences=2)


@pytest.mark.parametrize("name", ["num_beams", "num_return_sequences", "max_new_tokens", "batch_size", "batch_tokens"])
def test_counts_below_one_are_refused(translator, name):
    with pytest.raises(ValueError, match=f"{name}=0: must be at least 1"):
        translator.translate("two", **{name: 0})


def test_over_long_lines_are_cut_and_counted(translator, generated, caplog):
    assert translator.max_source_length == 64
    translator.max_source_length = 5
    long = "one two three four five one two"
    translator.translate([long, "two", "one", long], batch_size=2, too_long="cut")
    assert caplog.messages == ["2 over-long lines cut to the first 5 tokens"]
    assert generated[0]["input_ids"].shape == (2, 5)
    assert generated[0]["input_ids"][:, -1].tolist() == [translator.tokenizer.eos_token_id] * 2


def test_stream_reads_no_further_than_its_window(translator):
    read = []
    endless = (read.append(text) or text for text in itertools.cycle(MIXED))
    stream = translator.translate_stream(endless, batch_size=2, window=8)
    assert [best[0] for best in itertools.islice(stream, 12)] == TRANSLATED + TRANSLATED[:4]
    assert len(read) == 16


@pytest.mark.parametrize("wrong", [5, None, b"two", {"text": "two"}])
def test_what_is_no_text_is_refused(translator, wrong):
    with pytest.raises(TypeError, match=f"cannot translate {type(wrong).__name__}.*must be a str"):
        translator.translate(["two", wrong])
    with pytest.raises(TypeError, match=f"cannot translate {type(wrong).__name__}.*must be a str"):
        pipeline("translation", model=translator.model, tokenizer=translator.tokenizer)(wrong)


def test_vocabulary_that_does_not_fit_is_refused(translator, tiny_model):
    size = len(translator.tokenizer)
    for rows in (99, 600):
        with pytest.raises(ValueError, match=f"tokenizer has {size} source pieces and the model {rows}"):
            Translator(tiny_model(vocab_size=rows), translator.tokenizer)
    Translator(tiny_model(vocab_size=size + 10), translator.tokenizer)  # padded to a round number


def test_two_vocabularies(tiny_model):
    tokenizer = VanillaTransformerTokenizer.train(
        SOURCES, TARGETS, vocab_size=300, separate_vocabularies=True, show_progress=False
    )
    source, target = tokenizer.source_vocab_size, len(tokenizer)
    model = tiny_model(vocab_size=target, source_vocab_size=source, embedding_sharing="decoder")
    assert isinstance(Translator(model, tokenizer).translate("two", max_new_tokens=3), str)
    for sizes in ((target, source + 200), (target + 200, source)):
        model = tiny_model(vocab_size=sizes[0], source_vocab_size=sizes[1], embedding_sharing="decoder")
        with pytest.raises(ValueError, match="do not belong together"):
            Translator(model, tokenizer)


def test_model_that_does_not_translate_is_refused(translator):
    bert = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8))
    with pytest.raises(ValueError, match="BertModel is no encoder–decoder"):
        Translator(bert, translator.tokenizer)


def test_a_model_that_it_has_opened_itself_begins_at_once(folder, monkeypatch):
    texts, opened = MIXED, Translator.from_pretrained(folder, device="cpu")
    given = Translator(opened.model.from_pretrained(folder), opened.tokenizer)
    expected = given.translate(texts)
    monkeypatch.setattr(packed_weights_vanilla_transformer, "fingerprint", lambda tensor: 1 / 0)
    assert opened.translate(texts) == expected
    with pytest.raises(ZeroDivisionError):  # somebody else may change this one through `.data`
        given.translate(texts)


def test_from_pretrained_takes_dtype_and_device(folder):
    opened = Translator.from_pretrained(folder, device="cpu", dtype="bfloat16")
    assert opened.model.dtype == torch.bfloat16
    assert opened.translate("two") == "zwei"
    with pytest.raises(ValueError, match="device 'nonsense' cannot be used here"):
        Translator.from_pretrained(folder, device="nonsense")


def _one_line(folder):
    with pytest.raises((OSError, ValueError)) as raised:
        Translator.from_pretrained(folder)
    assert "\n" not in str(raised.value)
    assert str(folder) in str(raised.value)
    return str(raised.value)


def test_missing_folder_is_named(tmp_path):
    assert "no such folder" in _one_line(tmp_path / "nothing")
    assert "no such folder" in _one_line("no-such-model")  # may be a Hub id too, but the Hub is not there


@pytest.mark.parametrize("content", [b"", b"\xff" * 99, "half"])
def test_damaged_weights_are_named(broken, content):
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000] if content == "half" else content)
    assert "cannot open the weights" in _one_line(broken)


def test_missing_files_are_named(broken):
    (broken / "model.safetensors").unlink()
    assert "cannot open the weights" in _one_line(broken)
    (broken / "tokenizer.json").unlink()
    assert "cannot open the tokenizer" in _one_line(broken)
    (broken / "config.json").write_text("{")
    assert "cannot open the config" in _one_line(broken)


@pytest.mark.parametrize(("field", "value"), [("encoder_layers", 2), ("encoder_ffn_dim", 128)])
def test_weights_of_another_model_are_refused_instead_of_drawn_at_random(broken, field, value):
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, field: value}))
    assert "missing or of another shape, the first is model.encoder.layers" in _one_line(broken)


def test_folder_of_another_model_type_is_refused(tmp_path):
    BertConfig().save_pretrained(tmp_path)
    assert "model type 'bert' is no encoder–decoder" in _one_line(tmp_path)


@pytest.fixture
def quiet(caplog, recwarn):
    """Fails the test if transformers logs a warning or Python issues one."""
    host_logging.enable_propagation()
    yield
    host_logging.disable_propagation()
    assert [record.getMessage() for record in caplog.records if record.levelname != "INFO"] == []
    assert [str(warning.message) for warning in recwarn.list] == []


def test_pipeline_answers_as_the_one_of_transformers_4(folder, quiet):
    translate = pipeline("translation", model=folder)
    assert type(translate) is TranslationPipeline
    assert type(translate.tokenizer) is VanillaTransformerTokenizer
    expected = [{"translation_text": text} for text in TRANSLATED]
    assert translate("two") == [{"translation_text": "zwei"}]
    assert translate(MIXED) == expected
    assert translate(MIXED, batch_size=3) == expected
    assert translate([]) == []
    assert list(translate(text for text in MIXED)) == [[item] for item in expected]
    rows = KeyDataset([{"en": text} for text in MIXED], "en")
    assert list(translate(rows, batch_size=3)) == [[item] for item in expected]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_pipeline_equals_translator(translator, batch_size, quiet):
    translate = pipeline("translation", model=translator.model, tokenizer=translator.tokenizer, num_beams=4)
    options = {"num_return_sequences": 3, "return_scores": True, "batch_size": batch_size}
    for found, expected in zip(
        translate(MIXED, **options), translator.translate(MIXED, num_beams=4, **options), strict=True
    ):
        assert [candidate["translation_text"] for candidate in found] == expected
        scores = [candidate.score for candidate in expected]
        assert [candidate["score"] for candidate in found] == pytest.approx(scores, abs=1e-5)
    assert [len(candidates) for candidates in translate(MIXED, num_return_sequences=2)] == [2] * len(MIXED)


def test_pipeline_returns_tensors(translator):
    translate = pipeline("translation", model=translator.model, tokenizer=translator.tokenizer)
    (record,) = translate("two", return_tensors=True)
    assert list(record) == ["translation_token_ids"]
    assert translator.tokenizer.decode(record["translation_token_ids"], skip_special_tokens=True) == "zwei"


def test_pipeline_saves_a_folder_that_opens_without_running_its_code(folder, tmp_path):
    pipeline("translation", model=folder).save_pretrained(tmp_path)
    assert "custom_pipelines" not in json.loads((tmp_path / "config.json").read_text())
    assert pipeline("translation", model=str(tmp_path))("two") == [{"translation_text": "zwei"}]


def test_pipeline_without_a_model_or_with_misspelt_arguments_is_refused(translator):
    with pytest.raises(ValueError, match="default"):
        pipeline("translation")
    translate = pipeline("translation", model=translator.model, tokenizer=translator.tokenizer)
    with pytest.raises(ValueError, match="num_beam"):
        translate("two", num_beam=4)


def test_registering_leaves_an_existing_translation_pipeline_alone(monkeypatch):
    from transformers import pipelines

    theirs = {"impl": object}
    monkeypatch.setitem(pipelines.PIPELINE_REGISTRY.supported_tasks, "translation", theirs)
    vanilla_transformer_hf._register_pipeline(pipelines)
    assert pipelines.PIPELINE_REGISTRY.supported_tasks["translation"] is theirs


def test_marian_model_translates_too(translator):
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": None}
    marian = MarianMTModel(MarianConfig(vocab_size=len(translator.tokenizer), **SIZES, **special)).eval()
    theirs = Translator(marian, translator.tokenizer)
    best = theirs.translate(MIXED, num_beams=3, num_return_sequences=3, max_new_tokens=5, return_scores=True)
    assert best[2] == ["", "", ""]
    for candidates in best:
        scores = [candidate.score for candidate in candidates]
        assert scores == pytest.approx(sorted(scores, reverse=True), abs=1e-5)
    translate = pipeline("translation", model=marian, tokenizer=translator.tokenizer)
    assert translate("two", max_new_tokens=5)[0]["translation_text"] == theirs.translate("two", max_new_tokens=5)


def test_terminal_is_answered_line_by_line(translator):
    events = []

    class Terminal(io.BytesIO):
        def isatty(self):
            return True

        def seekable(self):
            return False

        def __next__(self):
            line = super().__next__()
            events.append(line)
            return line

    class Screen(io.BytesIO):
        def write(self, line):
            events.append(line)

    translate_lines(translator, Terminal(b"one\n\ntwo\n"), Screen())
    assert events == [b"one\n", b"eins\n", b"\n", b"\n", b"two\n", b"zwei\n"]


def test_line_feed_within_a_translation_starts_no_line(translator, monkeypatch):
    monkeypatch.setattr(translator.tokenizer, "batch_decode", lambda rows, **kwargs: ["a\nb"] * len(rows))
    target = io.BytesIO()
    translate_lines(translator, io.BytesIO(b"one\ntwo"), target)
    assert target.getvalue() == b"a b\na b\n"


def test_matmul_is_used_while_scoring_and_at_no_other_time(translator, monkeypatch):
    if "onednn" not in available_matmuls():
        pytest.skip("this torch has no such switch")
    before = torch.backends.mkldnn.matmul.fp32_precision
    used, model = [], translator.model

    def spy(*args, **kwargs):
        used.append(torch.backends.mkldnn.matmul.fp32_precision)

    hook = model.register_forward_pre_hook(spy)
    for name in ("default", "onednn"):
        monkeypatch.setattr(translator, "matmul", name)
        translator.score("two", "zwei")
    assert used == ["none", "bf16"]
    hook.remove()
    generate = model.generate
    monkeypatch.setattr(model, "generate", lambda *args, **kwargs: (spy(), generate(*args, **kwargs))[1])
    assert translator.translate("two") == "zwei"
    assert used == ["none", "bf16", "none"]  # the search has products of its own
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_matmul_is_measured_for_float32_on_a_processor_alone(translator):
    rows = Translator(translator.model, translator.tokenizer).matmul_rows
    assert [row.name for row in rows] == available_matmuls()
    low = copy.deepcopy(translator.model).to(torch.bfloat16)
    for other in (
        Translator(low, translator.tokenizer),
        Translator(translator.model, translator.tokenizer, matmul_backend="default"),
    ):
        assert (other.matmul, other.matmul_rows) == ("default", [])
    with pytest.raises(ValueError, match="matmul='openblas': here there are 'auto'"):
        Translator(translator.model, translator.tokenizer, matmul_backend="openblas")


def test_constrained_texts(translator, monkeypatch):
    texts = [
        ConstrainedText("one two", phrases=["vier", " "]),
        ConstrainedText("one two", prefix="drei"),
        "one two",
        ConstrainedText("one two", "drei", ["fünf eins", "vier"]),
        ConstrainedText("", "drei", ["vier"]),
        ConstrainedText("three one"),
    ]
    phrase, prefix, *rest = translator.translate(texts, num_beams=6, return_scores=True)
    assert "vier" in phrase and prefix.startswith("drei ")
    assert (rest[0], rest[2], rest[3]) == ("zwei eins", "", "eins drei")
    assert rest[1].startswith("drei") and "fünf eins" in rest[1] and "vier" in rest[1]
    assert all(found.score < 0 for found in (phrase, prefix, *rest[:2])) and phrase.score < rest[0].score
    copied = copy.deepcopy(texts[3])
    assert (copied, copied.prefix, copied.phrases) == ("one two", "drei", ["fünf eins", "vier"])
    for options, message in (
        ({}, "required_phrases: needs num_beams of at least 2, not 1"),
        ({"return_scores": True}, "prefixes: scores of such translations need num_beams of at least 2"),
    ):
        with pytest.raises(ValueError, match=message):
            translator.translate(texts, **options)
    for ids, message in (([1], "'one': 'x': token id 1 ends a sentence"), ([], "'one': 'x' has no tokens")):
        monkeypatch.setattr(translator, "_target_ids", lambda texts, ids=ids: [[], ids])
        with pytest.raises(ValueError, match=message):
            translator.translate(["two", ConstrainedText("one", phrases=["x"])], num_beams=2)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="has constraints and is too long to be translated at once"):
        translator.translate(ConstrainedText("one two " * 60, "drei"))


def test_what_a_translation_lacks_is_counted(translator, caplog):
    tally = Tally()
    texts = [
        ConstrainedText("one two", phrases=["vier fünf eins", "drei"]),
        ConstrainedText("one two", phrases="vier"),
        ConstrainedText(" ", prefix="drei"),
        "three",
    ]
    first, second, *_ = translator.translate_stream(texts, num_beams=6, max_new_tokens=3, tally=tally)
    assert "drei" not in first[0] or "vier fünf eins" not in first[0]
    assert "vier" in second[0] and tally.lacking == 2
    translator.translate(texts, num_beams=6, max_new_tokens=3)
    assert "2 lines without all that the translation was to contain" in caplog.text


def test_arguments_with_a_value_for_each_sentence_are_refused(translator):
    with pytest.raises(ValueError, match="prefixes: batches have another order than texts; give ConstrainedText"):
        translator.translate(["one", "one two"], prefixes=[[5], [6]])


def test_blank_lines_have_an_empty_alignment(translator):
    for found in (
        translator.translate(MIXED, return_alignments=True),
        translator.translate([""], return_alignments=True),
    ):
        assert [str(each.alignment) == "" for each in found] == [not each for each in found]


def test_batches_of_alignments_are_as_small_as_those_of_translations(translator, monkeypatch):
    sizes, read = [], translation_module.attention_to_source
    monkeypatch.setattr(
        translation_module, "attention_to_source", lambda *args: sizes.append(len(args[1])) or read(*args)
    )
    translator.translate(MIXED, return_alignments=True, batch_size=2)
    assert sizes == [2, 2, 2]


def test_greedy_scores_of_what_came_to_its_limit_do_not_depend_on_the_batch(translator):
    options = {"num_beams": 1, "max_extra_tokens": 1, "return_scores": True, "bad_words_ids": [[1]]}
    texts = ["one", "five two one three four two", "one two"]
    for text, found in zip(texts, translator.translate(texts, **options)):
        assert found.score == pytest.approx(translator.translate(text, **options).score, abs=1e-5)


@pytest.mark.parametrize(
    ("limit", "message"), [(0, "must be at least 2"), (-5, "must be at least 2"), (1, "must be at least 2")]
)
def test_a_limit_without_room_for_a_piece_is_refused(translator, limit, message):
    translator.max_source_length = limit
    with pytest.raises(ValueError, match=f"max_source_length={limit}: {message}"):
        translator.translate("one")


@pytest.mark.parametrize("num_beams", [1, 3])
def test_learned_positions_end_a_translation(translator, num_beams):
    sizes = {**SIZES, "position_encoding": "learned", "max_position_embeddings": 16}
    config = VanillaTransformerConfig(vocab_size=len(translator.tokenizer), **sizes)
    short = Translator(VanillaTransformerForConditionalGeneration(config), translator.tokenizer)
    for options in ({}, {"max_new_tokens": 200}, {"max_extra_tokens": 90}):
        (found,) = short.translate(["one two three"], num_beams=num_beams, bad_words_ids=[[0], [1]], **options)
        assert len(found.tokens) == 16
    short.max_source_length = 17
    with pytest.raises(ValueError, match="max_source_length=17: the model has 16 positions"):
        short.translate("one")


def test_windows_have_a_size(translator):
    for stream in (
        translator.translate_stream(["one"], window=0),
        translator.score_stream([("one", "eins")], window=0),
    ):
        with pytest.raises(ValueError, match="window=0: must be at least 1"):
            list(stream)


def test_the_line_that_cannot_be_translated_is_numbered(translator):
    lines = "one\n\n" + "one two " * 60 + "\n"
    with pytest.raises(ValueError, match=r"line 3: 'one two .* has \d+ tokens"):
        translate_lines(translator, io.BytesIO(lines.encode()), io.BytesIO(), too_long="error", window=2)


def test_an_ensemble_and_a_shortlist(translator, folder, tmp_path):
    both = Translator.from_pretrained(folder, "cpu", matmul_backend="default", ensemble=[folder])
    assert both.translate(MIXED, num_beams=3) == TRANSLATED == both.translate(MIXED)
    with torch.no_grad():
        both.ensemble[0].lm_head.weight.mul_(-1)
    one_scored, both_scored = (
        each.translate("one two", num_beams=2, return_scores=True).score for each in (translator, both)
    )
    assert both_scored < one_scored - 0.01, "the other model is asked"
    both.ensemble = []
    both.shortlist = both.pieces_of(["zwei drei", ""])
    found = both.translate(MIXED, num_beams=3)
    allowed = {"</s>", *both.tokenizer.convert_ids_to_tokens(both.shortlist)}
    assert found != TRANSLATED and {token for each in found for token in each.tokens} <= allowed
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    VanillaTransformerTokenizer.train(["sechs"], vocab_size=300, show_progress=False).save_pretrained(other)
    with pytest.raises(ValueError, match="other"):
        Translator.from_pretrained(folder, "cpu", matmul_backend="default", ensemble=[other])
