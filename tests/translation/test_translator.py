"""Translator and streams of lines, on a tiny model that has learned to count backwards in German."""

import copy
import io
import itertools
import json
import shutil

import pytest
import torch
from counting_model import MIXED, SOURCES, TARGETS, TRANSLATED
from transformers import pipeline

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.common.matmul import available_matmuls
from vanilla_transformer_hf.translation import alignment, tally, texts
from vanilla_transformer_hf.translation.streams.lines import read_items, run_lines
from vanilla_transformer_hf.translation.streams.resumable_output import StreamOutput
from vanilla_transformer_hf.translation.streams.work import LineWork
from vanilla_transformer_hf.translation.streams.worker_pool import LocalWorker
from vanilla_transformer_hf.translation.tally import Tally
from vanilla_transformer_hf.translation.texts import ConstrainedText
from vanilla_transformer_hf.translation.translator import Translation, Translator


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
    parts = translator.translate(["one two", "three four five", "one two"], **options)
    joined = translator.translate(line, **options)
    assert joined == [" ".join(texts) for texts in zip(*parts)]
    assert caplog.messages == ["1 over-long line split into parts of at most 4 tokens"]
    for whole, each in zip(joined, zip(*parts), strict=True):
        assert whole.tokens == [token for part in each for token in part.tokens]
        total = sum(part.score * len(part.tokens) for part in each)
        assert whole.score == pytest.approx(total / len(whole.tokens), abs=1e-5)
    with pytest.raises(ValueError, match="has 8 tokens and at most 4 go through the model at once"):
        translator.translate(line, too_long="error")


def test_of_a_paragraph_every_sentence_is_translated(counting_folder, tmp_path, caplog):
    """Training saves how long its sentences were; a line beyond that lost almost all of its text."""
    folder = shutil.copytree(counting_folder, tmp_path / "known")
    tokenizer = VanillaTransformerTokenizer.from_pretrained(folder)
    tokenizer.model_max_length = max(len(tokenizer(f"{source}.")["input_ids"]) for source in SOURCES)
    tokenizer.save_pretrained(folder)
    opened = Translator.from_pretrained(folder, device="cpu", matmul_backend="default")
    sentences = [f"{SOURCES[number * 7 % len(SOURCES)]}." for number in range(30)]
    expected = " ".join(opened.translate(sentences))
    assert caplog.messages == []
    assert opened.translate(" ".join(sentences)) == expected
    limit = tokenizer.model_max_length
    assert caplog.messages == [f"1 over-long line split into parts of at most {limit} tokens"]
    (record,) = pipeline("translation", model=folder, device="cpu")(" ".join(sentences))
    assert record == {"translation_text": expected}
    opened.max_source_length = 4  # the longest of its training, without a mark
    without_marks = " ".join(sentences).replace(".", "")
    assert len(opened.translate(without_marks).split()) == len(without_marks.split())


def test_long_sources_are_doubted_where_nobody_says_how_long_they_were(translator, monkeypatch, caplog):
    monkeypatch.setattr(tally, "SENSIBLE_SOURCE", 5)
    monkeypatch.setattr(texts, "SENSIBLE_SOURCE", 5)
    long = "one two three four five"
    translator.translate([long, "two", long])
    message = "2 lines with more than 5 source tokens: the model does not say how long sentences were in its training"
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith(message)
    translator.translate(long)
    assert len(caplog.messages) == 1, "once for each translator"
    translator.max_source_length = 60
    assert translator.encoder()([long], counted := Tally()) and counted.doubtful == 0, "the user has said it"
    monkeypatch.setattr(translator.tokenizer, "model_max_length", 64)
    other = Translator(translator.model, translator.tokenizer, matmul_backend="default")
    assert other.encoder()([long], counted) and counted.doubtful == 0, "training has said it"


def test_a_translation_that_was_cut_off_says_so(translator, caplog):
    source = "one two three"
    for options in ({}, {"num_beams": 3, "num_return_sequences": 3}):
        best = translator.translate([source, ""], **options)
        assert all(each.is_complete for each in (best if not options else itertools.chain(*best)))
    assert caplog.messages == []
    for options in ({}, {"num_beams": 2, "return_scores": True}):
        cut, whole, empty = translator.translate([source, "two", ""], max_new_tokens=2, **options)
        assert (cut.is_complete, whole.is_complete, empty.is_complete) == (False, True, True)
        assert "</s>" not in cut.tokens and whole.tokens[-1] == "</s>"
    translator.max_source_length = 3
    joined = translator.translate("one two three. two.", max_new_tokens=2, num_beams=1)
    assert not joined.is_complete, "a part of it was"
    note = "1 line with a translation that was cut off at the limit of tokens, see max_new_tokens and max_extra_tokens"
    assert caplog.messages[0] == caplog.messages[1] == note
    assert copy.copy(cut).is_complete is False


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
    monkeypatch.setattr("vanilla_transformer_hf.translation.scoring.SCORED_LOGITS", 1)
    for one, other in zip(at_once, translator.score(SOURCES[:9], TARGETS[:9]), strict=True):
        assert one.token_log_probabilities == pytest.approx(other.token_log_probabilities, abs=1e-5)


def test_score_survives_copies():
    import pickle

    copied = pickle.loads(pickle.dumps(Translation("zwei", -0.5)))
    assert (copied, copied.score) == ("zwei", -0.5)
    assert json.dumps([copied]) == '["zwei"]'


@pytest.mark.parametrize("name", ["num_beams", "num_return_sequences", "max_new_tokens", "batch_size", "batch_tokens"])
def test_counts_below_one_are_refused(translator, name):
    with pytest.raises(ValueError, match=f"{name}=0: must be at least 1"):
        translator.translate("two", **{name: 0})


def test_over_long_lines_are_cut_and_counted(translator, generated, caplog):
    assert translator.max_source_length == 64
    translator.max_source_length = 5
    long = "one two three four five one two"
    translator.translate([long, "two", "one", long], batch_size=2, too_long="truncate")
    assert caplog.messages == ["2 over-long lines truncated to the first 5 tokens"]
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


def test_a_window_of_one_is_answered_before_the_next_line_is_read(translator):
    events = []

    class Terminal(io.BytesIO):
        def seekable(self):
            return False

        def readline(self, size=-1):
            if line := super().readline(size):
                events.append(line)
            return line

    class Screen(io.BytesIO):
        def write(self, line):
            events.append(line)

    items, _ = read_items([Terminal(b"one\n\ntwo\n")])
    run_lines(LocalWorker(translator, LineWork("translate")), items, StreamOutput(Screen()), window=1)
    assert events == [b"one\n", b"eins\n", b"\n", b"\n", b"two\n", b"zwei\n"]


def test_line_feed_within_a_translation_starts_no_line(translator, monkeypatch):
    monkeypatch.setattr(translator.tokenizer, "batch_decode", lambda rows, **kwargs: ["a\nb"] * len(rows))
    target = io.BytesIO()
    run_lines(LocalWorker(translator, LineWork("translate")), ["one", "two"], StreamOutput(target))
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
    with pytest.raises(ValueError, match="matmul='openblas': must be one of 'auto'"):
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
    assert "2 lines with a translation that lacks a required prefix or phrase" in caplog.text


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
    sizes, read = [], alignment.attention_to_source
    monkeypatch.setattr(alignment, "attention_to_source", lambda *args: sizes.append(len(args[1])) or read(*args))
    translator.translate(MIXED, return_alignments=True, batch_size=2)
    assert sizes == [2, 2, 2]


@pytest.mark.parametrize(
    ("limit", "message"), [(0, "must be at least 2"), (-5, "must be at least 2"), (1, "must be at least 2")]
)
def test_a_limit_without_room_for_a_piece_is_refused(translator, limit, message):
    translator.max_source_length = limit
    with pytest.raises(ValueError, match=f"max_source_length={limit}: {message}"):
        translator.translate("one")


def test_windows_have_a_size(translator):
    for stream in (
        translator.translate_stream(["one"], window=0),
        translator.score_stream([("one", "eins")], window=0),
    ):
        with pytest.raises(ValueError, match="window=0: must be at least 1"):
            list(stream)


def test_the_line_that_cannot_be_translated_is_numbered(translator):
    worker = LocalWorker(translator, LineWork("translate", options={"too_long": "error"}))
    with pytest.raises(ValueError, match=r"line 3: 'one two .* has \d+ tokens"):
        run_lines(worker, ["one", "", "one two " * 60], StreamOutput(io.BytesIO()), window=2)


def test_an_ensemble_and_a_shortlist(translator, counting_folder, tmp_path):
    both = Translator.from_pretrained(counting_folder, "cpu", matmul_backend="default", ensemble=[counting_folder])
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
    shutil.copytree(counting_folder, other)
    VanillaTransformerTokenizer.train(["sechs"], vocab_size=300, show_progress=False).save_pretrained(other)
    with pytest.raises(ValueError, match="other"):
        Translator.from_pretrained(counting_folder, "cpu", matmul_backend="default", ensemble=[other])
