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
from vanilla_transformer_hf.translation.results import is_suspicious
from vanilla_transformer_hf.translation.scoring import alignment
from vanilla_transformer_hf.translation.search import parts
from vanilla_transformer_hf.translation.streams.lines import LocalWorker, read_items, run_lines
from vanilla_transformer_hf.translation.streams.resumable_output import StreamOutput
from vanilla_transformer_hf.translation.streams.work import LineWork, lines_of_translations
from vanilla_transformer_hf.translation.text import tally, texts
from vanilla_transformer_hf.translation.text.tally import Tally
from vanilla_transformer_hf.translation.text.texts import ConstrainedText
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


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\u2028", "\u2029", "\x85", "\v", "\f", "\n\n", "\n \r\n\t"])
def test_lines_are_translated_one_by_one_and_keep_their_breaks(translator, end):
    text = f"  one two{end}three four.{end}five \n"
    for too_long in ("split", "truncate", "error"):
        assert (
            translator.translate(text, too_long=too_long)
            == f"  zwei eins{end}{translator.translate('three four.')}{end}fünf \n"
        )
    assert translator.translate([text, "two"], batch_size=1)[1] == "zwei"


def test_sentences_are_translated_one_by_one_unless_the_model_has_seen_enough(translator, monkeypatch):
    text, alone = "one two. three four. five", translator.translate(["one two.", "three four.", "five"])
    whole = translator.translate(text, split_sentences="never")
    assert (
        translator.translate(text) == translator.translate(text, split_sentences="always") == " ".join(alone) != whole
    )
    for share, expected in ((0.09, " ".join(alone)), (0.1, whole)):
        monkeypatch.setitem(translator.tokenizer.init_kwargs, "multi_sentence_share", share)
        assert translator.translate(text) == expected
    translator.split_sentences = "always"
    assert translator.translate(text) == " ".join(alone)
    with pytest.raises(ValueError, match="split_sentences='some': must be one of 'auto', 'always', 'never'"):
        translator.translate(text, split_sentences="some")


def test_white_space_around_a_text_comes_back_and_inside_is_no_matter(translator):
    for form in ("  {}", "{} ", "\t{}", "{}\r\n", "{}\u00a0", "\u3000{}", " \n{}\n\n"):
        assert translator.translate(form.format("one two three")) == form.format("drei zwei eins")
    for text in ("one  two three", "one\ttwo\u00a0three", "one two\u200b \ufeffthree", "\u200bone two three\ufeff"):
        assert translator.translate(text) == "drei zwei eins"


def test_of_several_lines_scores_alignments_and_lists_are_joined(translator):
    options = {"num_beams": 3, "num_return_sequences": 3, "return_scores": True, "return_alignments": True}
    first, second = translator.translate(["one two", "three"], **options)
    joined = translator.translate(" one two\n\n \u200b three\n", **options)
    for whole, one, other in zip(joined, first, second, strict=True):
        assert whole == f" {one}\n\n  {other}\n"
        assert whole.tokens == one.tokens + other.tokens
        total = one.score * len(one.tokens) + other.score * len(other.tokens)
        assert whole.score == pytest.approx(total / len(whole.tokens), abs=1e-5)
        assert whole.alignment.source_words == ["one", "two", "\u200b", "three"]
        assert whole.alignment.target_words == whole.split()
        height = len(one.split())
        torch.testing.assert_close(whole.alignment.weights[:height, :2], one.alignment.weights)
        torch.testing.assert_close(whole.alignment.weights[height:, 3:], other.alignment.weights)


def test_limits_are_for_lines(translator, caplog):
    translator.max_source_length = 4
    assert translator.translate("one two\nthree four\nfive one") == "zwei eins\nvier drei\neins fünf"
    assert caplog.messages == []
    with pytest.raises(ValueError, match="'one two three four five'… has 6 tokens and at most 4"):
        translator.translate("one\none two three four five", too_long="error")


def test_constraints_find_their_line(translator):
    text = ConstrainedText("one two.\nthree four", prefix="zwei", phrases=["vier", "eins"])
    first, second = translator.translate(text, num_beams=4).split("\n")
    assert first.startswith("zwei") and "eins" in first and "vier" in second and "eins" not in second


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
    monkeypatch.setattr("vanilla_transformer_hf.translation.scoring.scoring.SCORED_LOGITS", 1)
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


@pytest.mark.parametrize("half", ["one \ud83d", "\udc80"])
def test_half_of_a_character_is_one_line(translator, half):
    for call in (
        lambda: translator.translate(["one", half]),
        lambda: translator.score(["one", half], ["eins", "eins"]),
        lambda: translator.align(["one", "one"], ["eins", half]),
        lambda: translator.translate(["one", ConstrainedText("one", phrases=[half])]),
    ):
        with pytest.raises(ValueError, match=r"\\ud.* has half of a character, .* remove it\.$") as refused:
            call()
        assert refused.value.place == 1 and str(refused.value).isprintable()


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
        ({"return_scores": True}, "prefixes: scores of such translations need num_beams of at least 2, or mbr's"),
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


@pytest.mark.parametrize("text", ["-", "***", "\u200b", "42", " 4 2 ", "\U0001f600"])
def test_texts_without_letters_are_handed_through_marked_or_translated(translator, generated, monkeypatch, text):
    tally = Tally()
    options = {"return_scores": True, "return_alignments": True, "num_beams": 2, "num_return_sequences": 2}
    (found,) = translator.translate_stream([text], tally=tally, **options)
    assert found == [text] * 2 and not generated and found[0].is_complete and not found[0].is_suspicious
    assert found[0].score == 0.0 and str(found[0].alignment) == " ".join(f"{i}-{i}" for i in range(len(text.split())))
    assert tally.without_letters == 1 and "1 line without letters" in tally.notes("split", 9)["without_letters"]
    (kept,) = translator.translate_stream([ConstrainedText(text, "one")], num_beams=2, max_new_tokens=3)
    assert kept != [text.strip()]
    if text == "\u200b":  # nothing is left of it for a model
        return
    translated = {}
    for translator_does in ("mark", "translate"):
        monkeypatch.setattr(translator, "without_letters", translator_does)
        tally = Tally()
        (translated[translator_does],) = translator.translate_stream([text], tally=tally, max_new_tokens=3)
        assert translated[translator_does][0].is_suspicious == bool(tally.suspicious) == (translator_does == "mark")
    assert translated["mark"] == translated["translate"]


def test_language_tags_are_read_once(translator, monkeypatch):
    assert not translator.language_tags.before("one")
    monkeypatch.setattr("vanilla_transformer_hf.translation.text.texts.text_tags", None)
    assert translator.translate(["three\n***", "-"])[1] == "-"


def test_lines_without_letters_are_handed_through_in_their_places(translator):
    tally, text = Tally(), "***\none two\n\n- \n 3 \nthree\n42"
    (found,) = translator.translate_stream([text], tally=tally)
    one, three = translator.translate(["one two", "three"])
    assert found[0] == f"***\n{one}\n\n- \n 3 \n{three}\n42" and tally.without_letters == 1


PHRASE = ["▁a", "▁b", "▁c"]


@pytest.mark.parametrize(
    "source, target, expected",
    [
        (PHRASE, PHRASE * 9 + PHRASE[:2], False),
        (PHRASE * 3, ["▁x", *PHRASE * 10, "▁y"], True),
        (PHRASE * 10, PHRASE * 11, False),  # the source does it, too
        (PHRASE, ["."] * 10, True),
        ([1, 2, 3], [*map(str, range(40))], False),  # short texts may have long translations
        ([1, 2, 3], [*map(str, range(41))], True),
        ([*range(9)], [*map(str, range(45))], False),
        ([], [], False),
    ],
)
def test_repetition_without_end_and_great_length_are_suspicious(source, target, expected):
    assert is_suspicious(source, target) == expected


def test_suspicious_translations_are_marked_counted_and_prevented(translator, monkeypatch, caplog):
    """Of a text in parts, one part is enough."""
    translations = ["eins", "zwei zwei"]
    pieces = {"eins": ["e", "</s>"], "zwei zwei": ["z"] * 10}

    def read(tokenizer, sequences, scores, ends):
        chosen = [translations[place % 2] for place in range(len(sequences))]
        return [Translation(text, None, pieces[text]) for text in chosen]

    monkeypatch.setattr(parts, "read_translations", read)
    found = translator.translate(["one", "two"])
    assert sorted(one.is_suspicious for one in found) == [False, True]
    assert "1 line with a suspicious translation" in caplog.messages[0]
    for one in found:
        (line,) = lines_of_translations("jsonl", 1, "one", [one])
        assert json.loads(line)["translations"][0].get("suspicious", False) == one.is_suspicious
    monkeypatch.setattr(translator, "max_source_length", 3)
    assert translator.translate("one two. three four.").is_suspicious
    monkeypatch.undo()
    usual = translator.translate("one two three", min_new_tokens=12, max_new_tokens=12).tokens
    other = translator.translate("one two three", no_repeat_ngram_size=1, min_new_tokens=12, max_new_tokens=12).tokens
    assert len(set(usual)) < len(usual) and len(set(other)) == len(other)


def test_blank_lines_have_an_empty_alignment(translator):
    for found in (
        translator.translate(MIXED, return_alignments=True),
        translator.translate([""], return_alignments=True),
    ):
        assert [str(each.alignment) == "" for each in found] == [not each for each in found]


def test_batches_of_alignments_are_as_small_as_those_of_translations(translator, monkeypatch):
    sizes, read = [], alignment.attention_to_source
    monkeypatch.setattr(
        alignment,
        "attention_to_source",
        lambda model, input_ids, **rest: sizes.append(len(input_ids)) or read(model, input_ids, **rest),
    )
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
