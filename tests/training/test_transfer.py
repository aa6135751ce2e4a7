"""A model of another pair of languages gets the vocabulary of this one."""

from types import SimpleNamespace

import pytest
import torch
from conftest import RECIPE
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, MarianConfig, PreTrainedConfig

from vanilla_transformer_hf import Translator, VanillaTransformerTokenizer
from vanilla_transformer_hf.conversion.formats.vocabularies import byte_pairs, words
from vanilla_transformer_hf.training.recipe import RecipeParser
from vanilla_transformer_hf.training.run import run_job
from vanilla_transformer_hf.training.transfer import _set_ids, check_transfer, match, transfer, vocabulary_of


SIZES = dict.fromkeys(name for name in RECIPE if name.startswith(("d_model", "encoder_", "decoder_")))
PARENT_TEXTS = ["one two three four", "onward twofold threesome", "dreißig"] * 4
CHILD_TEXTS = ["one two seven eight", "sevenfold twofold", "größe"] * 4


def tokenizer_of(texts, **options):
    return VanillaTransformerTokenizer.train(
        texts, texts, vocab_size=300, show_progress=False, normalize_white_space=True, **options
    )


@pytest.mark.parametrize(
    "options",
    [
        {"embedding_sharing": "all"},
        {"embedding_sharing": "decoder", "output_bias": True},
        {"embedding_sharing": "none", "output_bias": True},
        {"embedding_sharing": "decoder", "separate_vocabularies": True},
        {"embedding_sharing": "none", "separate_vocabularies": True, "output_bias": True},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_shared_pieces_keep_their_rows_and_logits(tiny_model, options):
    two = {"separate_vocabularies": options.pop("separate_vocabularies", False)}
    parent, child = tokenizer_of(PARENT_TEXTS, **two), tokenizer_of(CHILD_TEXTS, **two)
    model = tiny_model(vocab_size=len(parent), source_vocab_size=parent.source_vocab_size, **options)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    text = "one two twofold"
    batch = [dict(tokenizer([text], text_target=[text], return_tensors="pt")) for tokenizer in (parent, child)]
    with torch.no_grad():
        wanted = model(**batch[0]).logits
    transfer(model, parent, child)
    rows = {side: match(parent, child, (side,), side) for side in ("source", "target")}
    assert all((rows[side] >= 0).sum() > 255 and (rows[side] < 0).any() for side in rows)
    for name, side in (("encoder.embed_tokens", "source"), ("decoder.embed_tokens", "target"), ("lm_head", "target")):
        for kind in ("weight", "bias"):
            for old, new in ((k, model.state_dict()[k]) for k in before if k.endswith(f"{name}.{kind}")):
                is_kept = rows[side] >= 0
                assert torch.equal(new[is_kept], before[old][rows[side][is_kept]])
                if kind == "weight":
                    assert len(new[~is_kept].unique(dim=0)) == (~is_kept).sum(), "each new piece has its own vector"
    with torch.no_grad():
        logits = model.eval()(**batch[1]).logits
    is_kept = rows["target"] >= 0
    torch.testing.assert_close(logits[..., is_kept], wanted[..., rows["target"][is_kept]], rtol=0, atol=1e-6)
    assert model.config.vocab_size == len(child) and model.config.source_vocab_size == child.source_vocab_size
    assert model.config.tied_matrices == options["embedding_sharing"]


def backend_of(model, decoder=None):
    backend = Tokenizer(model)
    backend.decoder = decoder
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]  # the order of fairseq
LISTED = {
    "sentencepiece": ["▁one", "fold", "▁", "<0xC3>", "un"],
    "wordpiece": ["one", "##fold", "##un"],
    "subword-nmt": ["one", "fold", "tw@@", "un@@", "un"],
    "subword-nmt with codes": ["one", "fold", "tw@@", "un@@", "un"],
    "words": ["one", "fold"],
}
# Text with a space before the beginning of a word -> the parent's piece, by kind.
EXPECTED = {
    "sentencepiece": {" one": "▁one", "fold": "fold", "un": "un", " fold": None, b"\xc3": "<0xC3>"},
    "wordpiece": {" one": "one", "fold": "##fold", "one": None},
    "subword-nmt": {" one": "one", "fold": "fold", " tw": "tw@@", "un": "un"},
    "subword-nmt with codes": {" one": "one", "fold": "fold", " tw": "tw@@", "un": "un"},
    "words": {" one": "one", "one": None, " fold": "fold"},
}


@pytest.mark.parametrize("kind", LISTED)
def test_pieces_are_matched_by_what_they_spell(kind):
    tokens = [*SPECIALS, *LISTED[kind]]
    ids = {token: index for index, token in enumerate(tokens)}
    if kind == "sentencepiece":
        backend = backend_of(models.BPE(ids, [], unk_token="<unk>"), decoders.Metaspace())
    elif kind == "wordpiece":
        backend = backend_of(models.WordPiece(ids, unk_token="<unk>"), decoders.WordPiece())
    elif kind == "subword-nmt with codes":
        backend = byte_pairs(tokens, [("t", "w")], "<unk>", SPECIALS)
    else:
        backend = words(tokens, "<unk>", "@@" if kind == "subword-nmt" else None)
    named = {f"{role}_token": f"<{role}>" for role in ("unk", "pad")} | {"bos_token": "<s>", "eos_token": "</s>"}
    parent = VanillaTransformerTokenizer(tokenizer_object=backend, **named)
    spelled = vocabulary_of(parent, "target").by_spelling()
    for text, piece in EXPECTED[kind].items():
        key = text if isinstance(text, bytes) else text.encode()
        assert spelled.get(key) == (None if piece is None else ids[piece]), text
    child = tokenizer_of(CHILD_TEXTS)
    rows = match(parent, child, ("target", "source"), "target")
    of = dict(zip(child.convert_ids_to_tokens(range(len(child))), rows.tolist(), strict=True))
    assert [of[name] for name in ("<pad>", "</s>", "<unk>")] == [1, 2, 3]
    assert of["Ġone"] == ids["▁one" if kind == "sentencepiece" else "one"]


@pytest.fixture
def parent_run(prepare, tmp_path):
    """The folder of a trained parent of another pair: what it translates from is this one's target."""
    job = prepare(max_steps=1, output_dir=str(tmp_path / "parent"), d_model=16, vocab_size=280, source_lang="fr")
    job.trainer.save_model(str(tmp_path / "parent"))
    return tmp_path / "parent"


def further(parent, **settings):
    return dict.fromkeys(SIZES) | {"model_name_or_path": str(parent), "tokenizer": "new"} | settings


def test_a_run_with_a_new_tokenizer_ends_as_an_ordinary_model(prepare, parent_run, tmp_path, capsys):
    run_job(prepare(**further(parent_run), vocab_size=275, source_tags=["<bt>"]))
    told = capsys.readouterr().out
    assert "pieces have the vectors of the parent model" in told and "vocabulary: 275 tokens" in told
    out = tmp_path / "out"
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert model.config.vocab_size == len(tokenizer) == 275 and model.config.d_model == 16
    assert Translator.from_pretrained(out, device="cpu", matmul_backend="default").translate("one two") is not None
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "pieces have the vectors of the parent model" in card


@pytest.mark.slow
def test_a_run_with_a_new_tokenizer_continues_as_if_it_had_not_been_stopped(prepare, parent_run, tmp_path):
    def weights(name, *steps):
        for step in steps:
            job = prepare(**further(parent_run), vocab_size=275, max_steps=step, output_dir=str(tmp_path / name),
                          lr_scheduler_type="constant", resume_from_checkpoint="last" if step != steps[0] else None,
                          load_best_model_at_end=False)  # fmt: skip
            job.trainer.train(resume_from_checkpoint=job.checkpoint)
        return job.trainer.model.state_dict(), job.trainer.processing_class.get_vocab()

    (whole, vocabulary), (parts, again) = weights("whole", 2), weights("parts", 1, 2)
    assert vocabulary == again and all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_start_token_of_its_own_comes_along(prepare, parent_run, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(parent_run)
    tokenizer.add_special_tokens({"bos_token": "<go>"})
    model = AutoModelForSeq2SeqLM.from_pretrained(parent_run)
    model.resize_token_embeddings(len(tokenizer))
    model.config.decoder_start_token_id = model.config.bos_token_id = tokenizer.bos_token_id
    model.generation_config.suppress_tokens = [tokenizer.pad_token_id, 270]
    model.generation_config.bad_words_ids = [[tokenizer.pad_token_id], [271]]
    wanted = model.get_input_embeddings().weight[tokenizer.bos_token_id].detach().clone()
    for each in (model, tokenizer):
        each.save_pretrained(tmp_path / "with-start")
    job = prepare(**further(tmp_path / "with-start"), vocab_size=275)
    model, tokenizer = job.trainer.model, job.trainer.processing_class
    assert tokenizer.bos_token == "<go>" and len(tokenizer) == 275
    assert model.config.decoder_start_token_id == model.config.bos_token_id == tokenizer.bos_token_id
    assert torch.equal(model.get_input_embeddings().weight[tokenizer.bos_token_id].cpu(), wanted)
    assert model.generation_config.decoder_start_token_id == tokenizer.bos_token_id
    assert tokenizer.pad_token_id in model.generation_config.suppress_tokens


@pytest.mark.parametrize("biases", [{(7,): 2.0, (7, 9): -1.0, (8,): 5.0}, [[[7], 2.0], [[7, 9], -1.0], [[8], 5.0]]])
def test_settings_of_the_search_have_the_ids_of_the_new_vocabulary(biases):
    search = GenerationConfig(
        sequence_bias=biases, bad_words_ids=[[9], [8, 9]], suppress_tokens=[7, 8], eos_token_id=[1, 7]
    )
    _set_ids(SimpleNamespace(config=PreTrainedConfig(), generation_config=search), torch.tensor([1, 9, 7, -1]))
    assert search.sequence_bias == [[[2], 2.0], [[2, 1], -1.0]], "8 is not in the new vocabulary"
    assert (search.bad_words_ids, search.suppress_tokens, search.eos_token_id) == ([[1]], [2], [0, 2])


def test_what_does_not_fit_is_one_line(prepare, parent_run, tmp_path):
    with pytest.raises(ValueError, match=r"separate_vocabularies=True contradicts .*, whose languages share"):
        prepare(**further(parent_run), separate_vocabularies=True)
    with pytest.raises(ValueError, match="d_model=8 contradicts"):
        prepare(**(further(parent_run) | {"d_model": 8}))
    with pytest.raises(ValueError, match=r"tokenizer=new: theirs is a model of type marian, .*; convert it first"):
        check_transfer(MarianConfig(), "theirs")


def test_the_command_line_keeps_what_the_new_tokenizer_needs(tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("vocab_size: 270\nd_model: 32\ntokenizer_model: bpe\n", encoding="utf-8")
    parent = ["--model_name_or_path", "parent", "--use_cpu", "true"]
    run, _ = RecipeParser().parse([str(recipe), *parent, "--tokenizer", "new"])
    assert run.config == {"vocab_size": 270} and "replaces d_model of the recipe" in capsys.readouterr().err
    run, _ = RecipeParser().parse([str(recipe), *parent])
    assert run.config == {} and RECIPE["vocab_size"]
