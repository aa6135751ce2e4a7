"""MarianMT: folders that transformers itself saves for every option. Real ones are in test_samples.py."""

import json
import random

import pytest
import torch
from samples import files_on_the_card, named_by, write_reference
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

from vanilla_transformer_hf import Translator, VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer
from vanilla_transformer_hf.conversion import ConversionError, convert
from vanilla_transformer_hf.training.transfer import transfer


SIZES = {
    **{"vocab_size": 40, "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 24},
    **{"decoder_ffn_dim": 20, "encoder_attention_heads": 4, "decoder_attention_heads": 2},
    **{"max_position_embeddings": 32, "pad_token_id": 39, "decoder_start_token_id": 39, "eos_token_id": 0},
    "forced_eos_token_id": 0,
}
OPTIONS = {
    "opus": {"activation_function": "swish", "scale_embedding": True},
    "defaults": {},
    "relu": {"activation_function": "relu"},
    "separate": {
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 30,
        **dict.fromkeys(("pad_token_id", "decoder_start_token_id"), 29),
    },
    "separate_untied": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    "shared_untied": {"tie_word_embeddings": False},
    "trained_positions": {"positions": True},
    "pickled": {"pickled": True},
}


def build(options):
    """A MarianMTModel whose weights are all drawn by chance, its biases and norms too."""
    torch.manual_seed(0)
    options = {name: value for name, value in options.items() if name not in ("positions", "pickled")}
    model = MarianMTModel(MarianConfig(**{**SIZES, **options})).eval()
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), ("bias", model.final_logits_bias)]:
            if "embed_positions" not in name:
                parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5 + ("norm.weight" in name))
    return model


def save(model, folder, options):
    model.save_pretrained(folder)
    tensors = dict(model.state_dict())
    if options.get("positions"):
        for name in ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"):
            tensors[name].add_(torch.randn_like(tensors[name]))
    if options.get("positions") or options.get("pickled"):  # as before safetensors: everything is in the file
        (folder / "model.safetensors").unlink()
        torch.save(tensors, folder / "pytorch_model.bin")


def reference_of(model, path):
    sizes = [len(side.embed_tokens.weight) for side in (model.get_encoder(), model.get_decoder())]

    def logits(source, target):
        with torch.no_grad():
            return model(torch.tensor([source]), decoder_input_ids=torch.tensor([target])).logits[0]

    return write_reference(path, logits, sizes, start=model.config.decoder_start_token_id)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_option(options, tmp_path):
    model = build(options)
    save(model, tmp_path / "marian", options)
    reference = reference_of(model, tmp_path / "ref.npz")
    done = convert("auto", tmp_path / "marian", tmp_path / "out", reference=reference)
    assert done.source == "marianmt" and done.reference <= 1e-5 and done.reopened == 0
    assert done.config.position_encoding == ("learned" if options.get("positions") else "sinusoidal_halves")
    ours = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "out")
    source = torch.randint(1, 25, (2, 6), generator=torch.Generator().manual_seed(0))
    for settings in ({}, {"num_beams": 3, "length_penalty": 0.7}):
        outputs = [m.generate(source, max_new_tokens=8, **settings).tolist() for m in (model, ours)]
        assert outputs[0] == outputs[1], settings


def test_options_of_our_own_search_can_be_added(tmp_path):
    """transformers marks a search that it took from config.json, and then reads no other option of the file."""
    save(build({}), tmp_path / "marian", {})
    assert "_from_model_config" in (tmp_path / "marian" / "generation_config.json").read_text()
    convert("marianmt", tmp_path / "marian", tmp_path / "out")
    path = tmp_path / "out" / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "length_penalty_type": "gnmt"}))
    model = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "out")
    assert model.generation_config.length_penalty_type == "gnmt"


def test_the_card_lists_every_file_that_was_read(tmp_path):
    build({}).save_pretrained(tmp_path / "marian", max_shard_size="10KB")
    convert("marianmt", tmp_path / "marian", tmp_path / "out")
    names = files_on_the_card(tmp_path / "out")
    assert names == {path.name for path in (tmp_path / "marian").iterdir()}
    assert "model.safetensors.index.json" in names


def test_refusals(tmp_path):
    save(build({}), tmp_path / "marian", {})
    config = tmp_path / "marian" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "pad_token_id": 49}))
    with pytest.raises(ConversionError, match=r"pad_token_id=49: lies outside the source vocabulary of 40"):
        convert("marianmt", tmp_path / "marian", tmp_path / "out")
    wrong = {"pad_token_id": None, "vocab_size": "20", "share_encoder_decoder_embeddings": "no", "dropout": True}
    config.write_text(json.dumps({**json.loads(config.read_text()), **wrong, "forced_eos_token_id": None}))
    assert sorted(named_by("marianmt", tmp_path / "marian", tmp_path)) == sorted(wrong)
    with pytest.raises(ConversionError, match=r"model_type='marian', must be 'fsmt'"):
        convert("fsmt", tmp_path / "marian", tmp_path / "out")


@pytest.fixture
def spm_models(tmp_path):
    """Two small SentencePiece models, and the pieces of both."""
    return write_spm_models(tmp_path)


def write_spm_models(tmp_path):
    library = pytest.importorskip("sentencepiece")
    generator = random.Random(0)
    pieces = []
    for side, words in (
        ("source", ["lower", "tower", "river", "now"]),
        ("target", ["tiefer", "turm", "fluss", "jetzt"]),
    ):
        text = tmp_path / f"{side}.txt"
        text.write_text("\n".join(" ".join(generator.choices(words, k=6)) for _ in range(200)), encoding="utf-8")
        library.SentencePieceTrainer.train(
            input=str(text), model_prefix=str(tmp_path / side), vocab_size=30, hard_vocab_limit=False, minloglevel=2
        )
        model = library.SentencePieceProcessor(model_file=str(tmp_path / f"{side}.model"))
        pieces.append([model.id_to_piece(index) for index in range(3, model.get_piece_size())])
    return pieces


def check_tags(translator):
    """The tag of a language is put before every part of a text, whether the text or the option names it."""
    tag, end = translator.tokenizer.convert_tokens_to_ids([">>de<<", "</s>"])
    translator.max_source_length = 9
    long = "now lower river. " * 5
    for name in ("de", ">>de<<"):
        translator.use_target_lang(name)
        assert translator.source_prefix == ">>de<<"
        (named,) = translator.encoder()([long])
        translator.source_prefix = ""
        (written,) = translator.encoder()([f">>de<< {long}"])
        assert [part.ids for part in written] == [part.ids for part in named] and len(named) > 2
        assert all(part.ids[0] == tag and part.ids[-1] == end and len(part.ids) <= 9 for part in written)
    with pytest.raises(ValueError, match="'fr' is not a target language of this model: expected one of de"):
        translator.use_target_lang("fr")


def check_transfer_from(folder, has_two):
    """Another vocabulary has the vectors of the pieces that both have, whose marks differ."""
    model = VanillaTransformerForConditionalGeneration.from_pretrained(folder)
    parent = VanillaTransformerTokenizer.from_pretrained(folder)
    texts = ["lower tiefer now jetzt"] * 9
    settings = {"vocab_size": 300, "show_progress": False, "separate_vocabularies": has_two}
    child = VanillaTransformerTokenizer.train(texts, texts, **settings)
    before = [stack.embed_tokens.weight.clone() for stack in (model.get_encoder(), model.get_decoder())]
    transfer(model, parent, child)
    for stack, old, tokenizer, piece in (
        (model.get_encoder(), before[0], "source_backend_tokenizer", "now"),
        (model.get_decoder(), before[1], "backend_tokenizer", "jetzt"),
    ):
        new_id, old_id = (
            getattr(each, tokenizer).token_to_id(mark + piece) for each, mark in ((child, "Ġ"), (parent, "▁"))
        )
        assert torch.equal(stack.embed_tokens.weight[new_id], old[old_id])
        assert torch.equal(stack.embed_tokens.weight[child.pad_token_id], old[60])
    assert (
        model.config.decoder_start_token_id == child.pad_token_id and model.config.eos_token_id == child.eos_token_id
    )
    assert model.generation_config.forced_eos_token_id == child.eos_token_id


TEXTS = ["lower tower now", "  river  flow ", "", "now 42 lower", "tief unten"]


def write_with_tokenizer(tmp_path, separate=False, spm_models=None):
    """A model in `marian` with its tokenizer, of one vocabulary as OPUS-MT has it, or of two; returns that."""
    source, target = spm_models or write_spm_models(tmp_path)
    lists = [source, target] if separate else [[*sorted({*source[:-2], *target[:-2]}), ">>de<<"]]
    for name, pieces in zip(("vocab", "target_vocab"), lists):
        tokens = ["</s>", "<unk>", *pieces]
        tokens += [f"_{index}" for index in range(60 - len(tokens))] + ["<pad>"]
        (tmp_path / f"{name}.json").write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    files = {"source_spm": "source.model", "target_spm": "target.model", "vocab": "vocab.json"}
    if separate:
        files["target_vocab_file"] = "target_vocab.json"
    files = {name: str(tmp_path / file) for name, file in files.items()}
    theirs = MarianTokenizer(**files, separate_vocabs=separate, source_lang="en", target_lang="de")
    theirs.save_pretrained(tmp_path / "marian")
    sizes = {"vocab_size": 61, "pad_token_id": 60, "decoder_start_token_id": 60}
    options = {**sizes, "share_encoder_decoder_embeddings": not separate}
    save(build(options), tmp_path / "marian", {})
    return theirs


@pytest.mark.parametrize("separate", [False, True])
def test_tokenizer(separate, spm_models, tmp_path):
    theirs = write_with_tokenizer(tmp_path, separate, spm_models)
    convert("auto", tmp_path / "marian", tmp_path / "out")
    ours = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")
    texts = [*TEXTS, ">>de<< lower now"] if not separate else TEXTS
    for text in texts:
        assert ours(text)["input_ids"] == theirs(text)["input_ids"], text
        labels = theirs(text_target=text)["input_ids"]
        assert ours(text_target=text)["input_ids"] == labels, text
        if 1 not in labels:
            assert ours.decode(labels, skip_special_tokens=True) == theirs.decode(labels, skip_special_tokens=True)
    assert (ours.pad_token_id, ours.eos_token_id, ours.src_lang, ours.tgt_lang) == (60, 0, "en", "de")
    assert len(ours) == 61
    assert ours.init_kwargs.get("target_lang_tags") == (None if separate else {"de": ">>de<<"})
    if not separate:
        check_tags(Translator(VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "out"), ours))
    assert files_on_the_card(tmp_path / "out") == {path.name for path in (tmp_path / "marian").iterdir()}
    check_transfer_from(tmp_path / "out", separate)
