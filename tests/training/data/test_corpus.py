"""Readers of parallel text, tokenization and the collator."""

import gc
import gzip
import json

import datasets
import pyarrow.parquet
import pytest

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.training.data.collators import TranslationCollator
from vanilla_transformer_hf.training.data.corpora import CorpusFilter, tokenize_corpus, tokenize_stream
from vanilla_transformer_hf.training.data.corpus import iterate_texts, load_parallel_text


pytestmark = pytest.mark.usefixtures("datasets_cache")
ENGLISH = ["one dog", "two dogs", "three\u2028red dogs"]
GERMAN = ["ein Hund", "zwei Hunde", "drei\x0brote\x85 Hunde"]
PAIRS = {"source": ENGLISH, "target": GERMAN}


@pytest.fixture
def tokenizer():
    return VanillaTransformerTokenizer.train(ENGLISH, GERMAN, vocab_size=270, show_progress=False)


@pytest.fixture
def write(tmp_path):
    """`write(name, lines)`: a file of these lines, ended by line feeds; `.gz` is compressed. Returns its path."""

    def write(name, lines, end="\n"):
        text = "".join(line + end for line in lines).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.lower().endswith(".gz") else text)
        return str(tmp_path / name)

    return write


def rows(*columns, join="\t"):
    return [join.join(cells) for cells in zip(*columns)]


def as_json(**columns):
    return [json.dumps(dict(zip(columns, cells))) for cells in zip(*columns.values())]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_plain_text_splits_at_line_ends_only(write, suffix, end):
    corpus = load_parallel_text(write(f"a.en{suffix}", ENGLISH, end), write(f"a.de{suffix}", GERMAN, end))
    assert corpus[:] == PAIRS
    assert corpus.cache_files, "the corpus is memory-mapped, not held in memory"


@pytest.mark.parametrize(
    "name, lines, columns",
    [
        ("a.tsv", rows(ENGLISH, GERMAN), {}),
        ("a.tsv.gz", rows(ENGLISH, GERMAN), {"source_lang": "en", "target_lang": "de"}),
        ("a.tsv", ["de\tid\ten", *rows(GERMAN, "123", ENGLISH)], {"source_lang": "en", "target_lang": "de"}),
        ("a.tsv", ["x\ty\tz", *rows("123", GERMAN, ENGLISH)], {"source_column": "z", "target_column": "y"}),
        ("a.TSV.GZ", ["German\tEnglish", *rows(GERMAN, ENGLISH)], {"source_lang": "en", "target_lang": "de"}),
        ("a.tsv", ['\ufeff"DE"\t"EN"', *rows(GERMAN, ENGLISH)], {"source_lang": "en", "target_lang": "de"}),
        ("a.CSV", ["DE,en-US", *rows(GERMAN, ENGLISH, join=",")], {"source_lang": "en", "target_lang": "de"}),
        ("a.JSONL", as_json(English=ENGLISH, DE=GERMAN), {"source_lang": "en", "target_lang": "de"}),
        ("a.csv", ["en,de", *rows(ENGLISH, GERMAN, join=",")], {"source_lang": "en", "target_lang": "de"}),
        ("a.csv", ["target,source", *rows(GERMAN, ENGLISH, join=",")], {}),
        ("a.jsonl", as_json(en=ENGLISH, de=GERMAN), {"source_lang": "en", "target_lang": "de"}),
        ("a.json.gz", as_json(source=ENGLISH, target=GERMAN), {}),
        (
            "a.jsonl",
            as_json(id="123", translation=[{"en": one, "de": other} for one, other in zip(ENGLISH, GERMAN)]),
            {"source_lang": "en", "target_lang": "de"},
        ),
    ],
)
def test_one_file_holds_both_sides(write, name, lines, columns):
    assert load_parallel_text(write(name, lines), **columns)[:] == PAIRS


def test_a_file_of_both_sides_needs_no_other(write):
    both, other = write("a.tsv.gz", rows(ENGLISH, GERMAN)), write("b.txt", GERMAN)
    with pytest.raises(ValueError, match=r"a.tsv.gz holds both sides, and .*b.txt is given, too"):
        load_parallel_text(both, other)


def test_csv_quotes_and_words_that_look_like_missing_values(write):
    path = write("a.csv", ["source,target", '"one, ""two""",NA', "null,007"])
    assert load_parallel_text(path)[:] == {"source": ['one, "two"', "null"], "target": ["NA", "007"]}


def test_parquet_and_saved_folders_flat_and_nested(tmp_path):
    table = datasets.Dataset.from_dict({"de": GERMAN, "id": [1, 2, 3], "en": ENGLISH})
    nested = datasets.Dataset.from_dict(
        {"translation": [{"de": german, "en": english} for german, english in zip(GERMAN, ENGLISH)]},
        features=datasets.Features({"translation": datasets.Translation(["de", "en"])}),
    )
    table.to_parquet(tmp_path / "a.parquet")
    table.save_to_disk(tmp_path / "flat")
    datasets.DatasetDict({"dev": nested}).save_to_disk(tmp_path / "splits")
    for name in ("a.parquet", "flat", "splits"):
        corpus = load_parallel_text(str(tmp_path / name), split="dev", source_lang="en", target_lang="de")
        assert corpus[:] == PAIRS


def test_missing_texts_of_tables_are_empty(tmp_path):
    texts = {"source": ["one", None, "three"], "target": [None, "zwei", "drei"]}
    expected = {side: [text or "" for text in column] for side, column in texts.items()}
    flat = datasets.Dataset.from_dict(texts)
    nested = datasets.Dataset.from_dict({"translation": [dict(zip(texts, pair)) for pair in zip(*texts.values())]})
    flat.to_parquet(tmp_path / "a.parquet")
    nested.to_parquet(tmp_path / "b.parquet")
    flat.save_to_disk(tmp_path / "flat")
    for name in ("a.parquet", "b.parquet", "flat"):
        assert load_parallel_text(str(tmp_path / name))[:] == expected
        stream = list(load_parallel_text(str(tmp_path / name), streaming=True))
        assert stream == [dict(zip(texts, pair)) for pair in zip(*expected.values())]


def test_a_text_column_may_be_called_translation(tmp_path):
    datasets.Dataset.from_dict({"text": ENGLISH, "translation": GERMAN}).to_parquet(tmp_path / "a.parquet")
    path = str(tmp_path / "a.parquet")
    assert load_parallel_text(path, source_column="text", target_column="translation")[:] == PAIRS


def test_bytes_that_are_not_text_in_a_table_are_refused(tmp_path):
    buffers = [None, pyarrow.py_buffer(bytes([0, 0, 0, 0, 2, 0, 0, 0])), pyarrow.py_buffer(b"a\xff")]
    broken = pyarrow.Array.from_buffers(pyarrow.string(), 1, buffers)
    pyarrow.parquet.write_table(pyarrow.table({"source": broken, "target": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet: column 'source' is not valid UTF-8"):
        load_parallel_text(str(tmp_path / "a.parquet"))


def test_a_changed_file_is_read_anew(write):
    write("a.de", GERMAN)
    first = load_parallel_text(write("a.en", ENGLISH), write("a.de", GERMAN))
    again = load_parallel_text(write("a.en", [*ENGLISH, "four"]), write("a.de", [*GERMAN, "vier"]))
    assert (len(first), len(again)) == (3, 4)


def test_files_of_different_length_are_named_with_both_counts(write, tmp_path):
    with pytest.raises(ValueError, match=r"a\.en has 3 lines, .*a\.de has 2 lines"):
        load_parallel_text(write("a.en", ENGLISH), write("a.de", GERMAN[:2]))
    assert not list((tmp_path / "cache").rglob("*.arrow")), "nothing half-written is left"


def test_invalid_utf8_names_file_and_line(write, tmp_path):
    (tmp_path / "a.de").write_bytes(b"ein Hund\nzw\xf6lf\ndrei\n")
    with pytest.raises(ValueError, match=r"a\.de, line 2: not valid UTF-8 \(byte 0xf6 at position 2\)"):
        load_parallel_text(write("a.en", ENGLISH), str(tmp_path / "a.de"))


@pytest.mark.parametrize(
    "name, lines, columns, message",
    [
        ("a.csv", ["id,de", "1,ein"], {"source_lang": "en"}, r"no column 'en' or 'source'.*there are: id, de"),
        ("a.tsv", ["id\tde", "1\tein"], {"source_column": "en"}, r"no column 'en'.*there are: id, de"),
        ("a.tsv", ["1.25\tone\tein"], {}, r"a\.tsv, line 1: 3 columns, the first of numbers, need a header"),
        ("a.tsv", ["one\tein", "two"], {}, r"a\.tsv, line 2: 1 columns, but 2 expected; perhaps a tab is missing"),
        ("a.tsv", ["one\tein", "two\tdogs\tzwei"], {}, r"a\.tsv, line 2: 3 columns, but 2 expected; .* inside a text"),
        ("a.tsv", ["DE\tEN", "a\tb\tc"], {"source_lang": "en", "target_lang": "de"}, r"line 2: 3 columns"),
        ("a.tsv", ["English\tYoruba"], {}, r"a\.tsv, line 1: no column 'source'.*If these are texts, put a header"),
        ("a.tsv", ["o\0n\0e\0\t\0e\0"], {}, r"a\.tsv, line 1: a NUL character.*UTF-16"),
        ("a.txt.tsv", ["one"], {}, r"line 1: 1 columns, but 2 expected"),
        ("a.jsonl", ['{"source": "a \\ud83d", "target": "b"}'], {}, r"a\.jsonl, line 1: 'source' has half of a char"),
        ("a.parquet", ["PAR1"], {}, r"a\.parquet: not a Parquet file"),
        ("a.csv", ["source,target", "one"], {}, r"a\.csv, line 2: the number of columns differs"),
        ("a.jsonl", ['{"source": "one", "target": 1}'], {}, r"line 1: 'target' is 1, but text is expected"),
        ("a.jsonl", ["[", "]"], {}, r"line 1: not JSON"),
        ("a.jsonl", ["[" * 100_000], {}, r"line 1: not JSON"),
        ("a.jsonl", ['{"source": ' + "9" * 10_000 + "}"], {}, r"line 1: not JSON"),
        ("a.jsonl", ["[1]"], {}, r"line 1: a list, but one object"),
        ("a.csv", ["en,de", "one,ein"], {"source_column": "de", "target_column": "de"}, "are the same column 'de'"),
        ("a.tsv", [], {}, "the corpus is empty"),
        ("a.txt", ["one"], {}, "name the file with the translations"),
    ],
)
def test_unusable_files_are_refused_in_one_line(write, name, lines, columns, message):
    gc.collect()  # else what earlier tests left may be closed where the recursion of a deep file has no room
    with pytest.raises(ValueError, match=message) as refusal:
        load_parallel_text(write(name, lines), **columns)
    assert "\n" not in str(refusal.value)


def test_a_misspelled_file_is_not_only_sought_on_the_hub(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: open_url())

    def open_url():
        raise ConnectionError("Couldn't reach 'train.en' on the Hub (LocalEntryNotFoundError)")

    with pytest.raises(ConnectionError, match=r"train\.en: no such file or folder here, and the Hub, .* be reached"):
        load_parallel_text("train.en")


def test_missing_files_splits_and_column_types_are_named(write, tmp_path):
    datasets.DatasetDict({"dev": datasets.Dataset.from_dict({"source": [1], "target": ["ein"]})}).save_to_disk(
        tmp_path / "folder"
    )
    with pytest.raises(FileNotFoundError, match=r"b\.de: no such file"):
        load_parallel_text(write("a.en", ENGLISH), str(tmp_path / "b.de"))
    with pytest.raises(FileNotFoundError, match=r"b\.tsv: no such file"):
        load_parallel_text(str(tmp_path / "b.tsv"))
    with pytest.raises(ValueError, match="no split 'train'; there are: dev"):
        load_parallel_text(str(tmp_path / "folder"))
    with pytest.raises(ValueError, match="column 'source' holds"):
        load_parallel_text(str(tmp_path / "folder"), split="dev")
    with pytest.raises(ValueError, match="is not a folder that `datasets` saved"):
        load_parallel_text(str(tmp_path))


def test_a_truncated_gzip_file_is_refused(write, tmp_path):
    path = write("a.tsv.gz", rows(ENGLISH * 50, GERMAN * 50))
    (tmp_path / "a.tsv.gz").write_bytes((tmp_path / "a.tsv.gz").read_bytes()[:40])
    with pytest.raises(ValueError, match="not a complete gzip file"):
        load_parallel_text(path)


def test_tokenization_drops_empty_pairs_and_counts_what_it_cuts(write, tokenizer):
    corpus = load_parallel_text(
        write("a.en", [ENGLISH[0], "", " ", ENGLISH[1]]), write("a.de", [GERMAN[2], "a", "b", "zwei"])
    )
    assert len(tokenizer("zwei")["input_ids"]) == 5 < len(tokenizer(GERMAN[2])["input_ids"])
    result = tokenize_corpus(corpus, tokenizer, CorpusFilter(50, 5, "truncate"), keep_text=True)
    assert str(result) == "2 pairs; 1 truncated to the longest allowed; 2 with an empty side left out"
    assert result.data["line"] == [0, 3]
    assert result.data["source"] == [ENGLISH[0], ENGLISH[1]]
    assert result.data["input_ids"][0] == tokenizer(ENGLISH[0])["input_ids"]
    for labels in result.data["labels"]:
        assert len(labels) <= 5 and labels[-1] == tokenizer.eos_token_id
    assert result.data["length"][0] == len(result.data["input_ids"][0])


def test_training_reads_white_space_as_translation_does(write, tokenizer):
    odd = (
        [" one\u00a0dog", "two  dogs\t", "three red\u200b dogs\u2028"],
        ["ein Hund ", "\ufeffzwei\tHunde", "drei rote Hunde"],
    )
    plain = ["one dog", "two dogs", "three red dogs"], ["ein Hund", "zwei Hunde", "drei rote Hunde"]
    rows = []
    for number, sides in enumerate((odd, plain)):
        corpus = load_parallel_text(*(write(f"{number}.{side}", lines) for side, lines in zip("ab", sides)))
        rows.append(tokenize_corpus(corpus, tokenizer, CorpusFilter(9, 9, "truncate"), keep_text=True).data[:])
        assert [list(iterate_texts(corpus, side)) for side in ("source", "target")] == [*plain]
    assert rows[0] == rows[1]


def test_references_have_the_form_in_which_translations_are_written(write):
    corpus = load_parallel_text(write("a.en", ["e\u0301te\u0301"]), write("a.de", ["o\u0300 ma"]))
    for form, expected in (("NFC", ("été", "ò ma")), (None, ("e\u0301te\u0301", "o\u0300 ma"))):
        tokenizer = VanillaTransformerTokenizer.train(
            ENGLISH, GERMAN, vocab_size=270, show_progress=False, unicode_normalization=form
        )
        rows = tokenize_corpus(corpus, tokenizer, CorpusFilter(50, 50, "drop"), keep_text=True).data
        assert (rows["source"][0], rows["target"][0]) == expected


def test_tokenization_is_cached_although_the_tokenizer_was_called(write, tokenizer):
    corpus = load_parallel_text(write("a.en", ENGLISH), write("a.de", GERMAN))
    rules = CorpusFilter(50, 50, "truncate")
    first = tokenize_corpus(corpus, tokenizer, rules).data.cache_files
    tokenizer(ENGLISH, padding=True, truncation=True, max_length=3)
    assert tokenize_corpus(corpus, tokenizer, rules).data.cache_files == first
    other = VanillaTransformerTokenizer.train(ENGLISH, vocab_size=260, show_progress=False)
    assert tokenize_corpus(corpus, other, rules).data.cache_files != first


class InPython:
    """A tokenizer without a backend that could tell it apart from others."""

    def __init__(self, token_id):
        self.token_id = token_id

    def get_vocab(self):
        return {"any": self.token_id}

    def __str__(self):
        return "InPython"

    def __call__(self, text=None, text_target=None, **kwargs):
        return {"input_ids": [[self.token_id] for _ in text or text_target]}


def test_tokenizers_in_python_do_not_share_what_is_cached(write):
    corpus = load_parallel_text(write("a.en", ENGLISH), write("a.de", GERMAN))
    for token_id in (7, 8):
        found = tokenize_corpus(corpus, InPython(token_id), CorpusFilter(50, 50, "truncate")).data["input_ids"]
        assert found[0] == [token_id]


def test_a_corpus_of_empty_pairs_is_refused(write, tokenizer):
    corpus = load_parallel_text(write("a.en", ["", "one"]), write("a.de", ["ein", ""]))
    with pytest.raises(
        ValueError,
        match="no sentence pair is left of the 2 pairs of this corpus: 0 pairs; 2 with an empty side left out",
    ):
        tokenize_corpus(corpus, tokenizer, CorpusFilter(9, 9, "truncate"))


def test_pairs_that_are_too_long_uneven_or_repeated_are_left_out_and_counted(write, tokenizer):
    pairs = [("one", "ein"), ("one dog", "ein"), ("one", "ein"), ("two", "zwei dogs"), ("one", "eins"), ("", "ein")]
    corpus = load_parallel_text(write("a.en", [pair[0] for pair in pairs]), write("a.de", [pair[1] for pair in pairs]))
    lengths = [(len(tokenizer(source)["input_ids"]), len(tokenizer(target)["input_ids"])) for source, target in pairs]
    longest = lengths[0][0], lengths[3][1] - 1
    ratio = max(max(pair) / min(pair) for pair in (lengths[0], lengths[4]))
    assert max(lengths[1]) / min(lengths[1]) > ratio and lengths[1][0] > longest[0] >= lengths[4][0]
    rules = CorpusFilter(*longest, too_long="drop", max_length_ratio=ratio, drop_duplicates=True)
    result = tokenize_corpus(corpus, tokenizer, rules)
    assert result.data["line"] == [0, 4]
    assert str(result).startswith("2 pairs; 1 with an empty side left out; 2 too long and left out; 1 that occurred")
    rules = CorpusFilter(50, 50, "truncate", max_length_ratio=ratio)
    uneven = tokenize_corpus(corpus, tokenizer, rules)
    assert "of too different lengths left out" in str(uneven) and 1 not in uneven.data["line"]


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl", "a.parquet", "folder", "nested"])
def test_a_stream_holds_the_same_pairs(write, tokenizer, tmp_path, name):
    table = datasets.Dataset.from_dict(PAIRS)
    if name == "a.parquet":
        table.to_parquet(path := str(tmp_path / name))
    elif name in ("folder", "nested"):
        nested = datasets.Dataset.from_list([{"translation": {"en": en, "de": de}} for en, de in zip(ENGLISH, GERMAN)])
        (table if name == "folder" else nested).save_to_disk(path := str(tmp_path / name))
    else:
        path = write(name, rows(ENGLISH, GERMAN) if name == "a.tsv" else as_json(**PAIRS))
    languages = {"source_lang": "en", "target_lang": "de"} if name == "nested" else {}
    stream = load_parallel_text(path, streaming=True, **languages)
    assert list(stream) == list(load_parallel_text(path, **languages)) == list(table)
    rules = CorpusFilter(50, 50, "truncate")
    columns = ["input_ids", "labels", "length", "line"]
    whole = tokenize_corpus(load_parallel_text(path, **languages), tokenizer, rules).data.select_columns(columns)
    assert list(tokenize_stream(stream, tokenizer, rules).select_columns(columns)) == list(whole)
    with pytest.raises(ValueError, match="drop_duplicates is not possible with streaming"):
        tokenize_stream(stream, tokenizer, CorpusFilter(50, 50, "truncate", drop_duplicates=True))


def test_the_collator_pads_and_leaves_the_decoder_input_to_the_model(tokenizer):
    collate = TranslationCollator(tokenizer, source_vocab_size=99, target_vocab_size=99)
    batch = collate([{"input_ids": [5, 6, 1], "labels": [7, 1]}, {"input_ids": [5, 1], "labels": [7, 8, 9, 1]}])
    assert batch["input_ids"].tolist() == [[5, 6, 1], [5, 1, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[7, 1, -100, -100], [7, 8, 9, 1]]
    assert not {"decoder_input_ids", "line"} & set(batch)
    assert collate([{"input_ids": [5, 1], "labels": [7, 1], "line": 3, "length": 2}])["line"].tolist() == [3]


@pytest.mark.parametrize("source, target, message", [(50, 20, "input_ids: token id 50 .* of 50"), (1, 40, "labels")])
def test_the_collator_refuses_ids_outside_the_vocabulary(tokenizer, source, target, message):
    collate = TranslationCollator(tokenizer, source_vocab_size=50, target_vocab_size=40)
    with pytest.raises(ValueError, match=message):
        collate([{"input_ids": [source, 1], "labels": [target, 1]}])
