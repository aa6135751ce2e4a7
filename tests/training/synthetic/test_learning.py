"""`--reverse` exchanges the sides of every kind of corpus; tags such as <bt> reach tokenizers and models."""

import json
from pathlib import Path

import pytest

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.training.data.corpora import load_corpora
from vanilla_transformer_hf.training.model import make_model
from vanilla_transformer_hf.training.recipe import RecipeParser
from vanilla_transformer_hf.training.synthetic import translations
from vanilla_transformer_hf.training.synthetic.learning import again, amounts, evenly, parse_rate, write_mixed
from vanilla_transformer_hf.training.tokenizer import get_tokenizer


pytestmark = pytest.mark.usefixtures("datasets_cache")
ENGLISH, GERMAN = ["one two", "three", "four"], ["eins zwei", "drei", "vier"]


def read(*arguments):
    return RecipeParser(prog="train").parse(arguments)[0]


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("kind", ["two files", "tsv", "tsv with header", "jsonl", "columns"])
def test_reverse_exchanges_the_sides_of_every_corpus(kind, tmp_path):
    pairs = list(zip(ENGLISH, GERMAN))
    fields = ["--source_lang", "en", "--target_lang", "de"]
    if kind == "two files":
        fields += ["--train_source", write(tmp_path / "a.en", ENGLISH)]
        fields += ["--train_target", write(tmp_path / "a.de", GERMAN)]
    elif kind.startswith("tsv"):
        lines = ["\t".join(pair) for pair in pairs]
        fields += ["--train_source", write(tmp_path / "a.tsv", ["de\ten"] * ("header" in kind) + lines)]
        if "header" in kind:
            lines[:] = []
            write(tmp_path / "a.tsv", ["de\ten", *("\t".join(pair[::-1]) for pair in pairs)])
    else:
        names = ("en", "de") if kind == "jsonl" else ("left", "right")
        rows = [json.dumps(dict(zip(names, pair))) for pair in pairs]
        fields += ["--train_source", write(tmp_path / "a.jsonl", rows)]
        fields += ["--source_column", "left", "--target_column", "right"] * (kind == "columns")
    usual, reverse = read(*fields), read(*fields, "--reverse", "--max_source_length", "5", "--max_target_length", "9")
    assert load_corpora(usual.data)["train"]["source"][:] == ENGLISH
    found = load_corpora(reverse.data)["train"]
    assert found["source"][:] == GERMAN and found["target"][:] == ENGLISH
    assert (reverse.data.source_lang, reverse.data.target_lang) == ("de", "en")
    assert (reverse.data.max_source_length, reverse.data.max_target_length) == (9, 5)


@pytest.mark.parametrize("kind", ["two files", "columns"])
@pytest.mark.parametrize("direction", [[], ["--reverse"]])
def test_a_student_reads_the_pairs_that_are_mixed_for_it(kind, direction, tmp_path):
    """The synthetic ones are of its direction, too; and a teacher translates the sources of its direction."""
    fields = ["--source_lang", "en", "--target_lang", "de", *direction]
    files = ["--train_source", write(tmp_path / "a.en", ENGLISH), "--train_target", write(tmp_path / "a.de", GERMAN)]
    if kind == "columns":
        rows = [json.dumps({"left": one, "right": other}) for one, other in zip(ENGLISH, GERMAN)]
        fields += ["--source_column", "left", "--target_column", "right"]
        files = ["--train_source", write(tmp_path / "a.jsonl", rows)]
    run = read(*files, *fields)
    real, sides = load_corpora(run.data)["train"], (ENGLISH, GERMAN)
    synthetic = Path(write(tmp_path / "s", ["made"])), Path(write(tmp_path / "t", ["found"]))
    mixed = write_mixed(run.data, real, synthetic, None, tmp_path / "mixed")
    found = load_corpora(read("--train_source", str(mixed), *fields).data)["train"]
    source, target = sides[::-1] if direction else sides
    assert sorted(zip(found["source"], found["target"])) == sorted([*zip(source, target), ("made", "found")])
    assert translations._source_file(run.data, tmp_path).read_text(encoding="utf-8").splitlines() == source


def tagged(tmp_path, *fields):
    """A run on text with tags, and its tokenizer."""
    sources = write(tmp_path / "tagged.en", ["<bt> one <blank> two", "one two", "<bt> three"])
    files = ["--train_source", sources, "--train_target", write(tmp_path / "a.de", GERMAN)]
    run = read(*files, "--source_tags", "<bt>", "<blank>", *fields)
    return run, get_tokenizer(run, load_corpora(run.data)["train"], tmp_path / "tokenizer")


def check_tags(tokenizer):
    tag, blank = tokenizer.convert_tokens_to_ids(["<bt>", "<blank>"])
    assert tokenizer.unk_token_id not in (tag, blank)
    # The words beside them have the pieces that they have without them.
    one, two = (tokenizer(text)["input_ids"][:-1] for text in ("one", "two"))
    assert tokenizer("<bt> one <blank> two")["input_ids"] == [tag, *one, blank, *two, tokenizer.eos_token_id]


def test_a_new_tokenizer_has_the_tags_and_no_pieces_of_them(tmp_path):
    _, tokenizer = tagged(tmp_path, "--vocab_size", "400")
    check_tags(tokenizer)
    assert len(tokenizer) <= 400 and not any("bla" in piece for piece in tokenizer.get_vocab() if piece != "<blank>")


def test_a_model_that_is_trained_further_gets_embeddings_for_them(tmp_path):
    old = tmp_path / "old"
    files = ["--train_source", write(tmp_path / "a.en", ENGLISH), "--train_target", write(tmp_path / "a.de", GERMAN)]
    plain = read(*files, "--vocab_size", "400")
    tokenizer = get_tokenizer(plain, load_corpora(plain.data)["train"], tmp_path / "plain")
    config = VanillaTransformerConfig(vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1)
    VanillaTransformerForConditionalGeneration(config).save_pretrained(old)
    tokenizer.save_pretrained(old)
    run, larger = tagged(tmp_path, "--model_name_or_path", str(old))
    check_tags(larger)
    model = make_model(run, larger)
    assert model.config.vocab_size == len(larger) == len(tokenizer) + 2
    assert model.get_output_embeddings().weight.shape[0] == len(larger)


@pytest.mark.parametrize(
    "real, synthetic, rate, expected",
    [
        *((29, 145, "1:1", (145, 145)), (29, 145, "1:4", (36, 145)), (29, 145, "1:10", (29, 290))),
        *((100, 10, "1:1", (100, 100)), (29, 145, "natural", (29, 145)), (10, 10, "2:1", (20, 10))),
    ],
)
def test_the_side_of_which_there_is_too_little_is_repeated(real, synthetic, rate, expected):
    assert amounts(real, synthetic, parse_rate(rate)) == expected


@pytest.mark.parametrize("text", ["1", "1:0", "a:b", "1:2:3", "-1:2", ""])
def test_other_rates_are_refused(text):
    with pytest.raises(ValueError, match="expected two whole numbers"):
        parse_rate(text)


def test_both_kinds_are_mixed_evenly():
    mixed = list(evenly(again(lambda: iter("ab")), again(lambda: iter("xyz")), 4, 8))
    assert mixed == ["x", "y", "a", "z", "x", "b", "y", "z", "a", "x", "y", "b"]
