"""FSMT: folders that transformers itself saves for every option. Real ones are in test_samples.py."""

import json
import random
import re

import pytest
import torch
from samples import files_on_the_card, named_by, write_reference
from transformers import FSMTConfig, FSMTForConditionalGeneration, FSMTTokenizer
from transformers.models.fsmt.tokenization_fsmt import remove_non_printing_char, replace_unicode_punct

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer
from vanilla_transformer_hf.conversion import ConversionError, convert
from vanilla_transformer_hf.conversion.formats import moses


SIZES = {
    **{"langs": ["en", "de"], "src_vocab_size": 40, "tgt_vocab_size": 30, "d_model": 16, "encoder_layers": 2},
    **{"decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "encoder_attention_heads": 4},
    **{"decoder_attention_heads": 2, "max_position_embeddings": 32},
}
OPTIONS = {
    "wmt19": {},
    "tied": {"tie_word_embeddings": True, "src_vocab_size": 30},
    "one_vocabulary": {"src_vocab_size": 30},
    "gelu": {"activation_function": "gelu"},
    "swish_unscaled": {"activation_function": "swish", "scale_embedding": False},
    "trained_positions": {"positions": True},
    "no_positions_in_the_file": {"no_positions": True},
}


def build(options):
    """An FSMT model whose weights are all drawn by chance, its biases and norms too; positions as they are made."""
    torch.manual_seed(0)
    options = {name: value for name, value in options.items() if "positions" not in name}
    model = FSMTForConditionalGeneration(FSMTConfig(**{**SIZES, **options})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5 + ("norm.weight" in name))
    return model


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_option(options, tmp_path):
    model = build(options)
    positions = [stack.embed_positions.weight for stack in (model.get_encoder(), model.get_decoder())]
    if options.get("positions"):
        for table in positions:
            table.data.add_(torch.randn_like(table) * 0.3)
    else:
        for table in positions:
            table.data.copy_(type(model.get_decoder().embed_positions).get_embedding(*table.shape, 1))
    model.save_pretrained(tmp_path / "fsmt")
    if options.get("no_positions"):  # before transformers 5.1 they were not saved
        tensors = {name: tensor for name, tensor in model.state_dict().items() if "positions" not in name}
        (tmp_path / "fsmt" / "model.safetensors").unlink()
        torch.save(tensors, tmp_path / "fsmt" / "pytorch_model.bin")

    def logits(source, target):
        with torch.no_grad():
            return model(torch.tensor([source]), decoder_input_ids=torch.tensor([target]), use_cache=False).logits[0]

    # Ids behind the specials: FSMT takes 1 for padding wherever it stands.
    sizes = [model.config.src_vocab_size, model.config.tgt_vocab_size]
    reference = write_reference(tmp_path / "ref.npz", logits, sizes, start=2, first=4)
    done = convert("auto", tmp_path / "fsmt", tmp_path / "out", reference=reference)
    assert done.source == "fsmt" and done.reference <= 1e-5 and done.reopened == 0
    ours = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "out")
    source = torch.randint(4, 25, (2, 6), generator=torch.Generator().manual_seed(0))
    for settings in ({"num_beams": 1}, {}, {"num_beams": 3, "length_penalty": 0.7}):
        outputs = [m.generate(source, max_new_tokens=8, **settings).tolist() for m in (model, ours)]
        assert outputs[0] == outputs[1], settings


def test_refusals(tmp_path):
    build({}).save_pretrained(tmp_path / "fsmt")
    config = tmp_path / "fsmt" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "tie_word_embeddings": True}))
    with pytest.raises(ConversionError, match=r"tie_word_embeddings=True: one matrix cannot serve src_vocab_size=40"):
        convert("fsmt", tmp_path / "fsmt", tmp_path / "out")
    wrong = {"langs": "en-de", "tgt_vocab_size": [30], "tie_word_embeddings": "no", "decoder_start_token_id": None}
    config.write_text(json.dumps({**json.loads(config.read_text()), **wrong, "bos_token_id": None}))
    assert sorted(named_by("fsmt", tmp_path / "fsmt", tmp_path)) == sorted(wrong)
    config.write_text("{")
    with pytest.raises(ConversionError, match=r"config\.json cannot be read as JSON"):
        convert("fsmt", tmp_path / "fsmt", tmp_path / "out")


SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]
MERGES = "l o 9\ne r</w> 8\nt i 7\ne f</w> 6\nlo w</w> 5\n"


def write_vocabularies(folder, source, target):
    for name, tokens, size in (("src", source, 40), ("tgt", target, 30)):
        tokens = [*SPECIALS, *tokens]
        tokens += [f"madeupword{index}</w>" for index in range(size - len(tokens))]
        content = json.dumps({token: index for index, token in enumerate(tokens)})
        (folder / f"vocab-{name}.json").write_text(content)
    (folder / "merges.txt").write_text(MERGES)


def test_tokenizer(tmp_path, monkeypatch):
    monkeypatch.setattr(moses, "NonbreakingPrefixes", None)
    build({}).save_pretrained(tmp_path / "fsmt")
    write_vocabularies(tmp_path / "fsmt", ["lo", "w</w>", "er</w>", "l", "o", "r"], ["ti", "ef</w>", "er</w>", "t"])
    done = convert("auto", tmp_path / "fsmt", tmp_path / "out")
    assert "sacremoses was not installed" in done.notes[0]
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("lo lower lr low")["input_ids"] == [7, 3, 4, 3, 6, 7, 3, 3, 2]
    assert tokenizer(text_target="tief er")["input_ids"] == [4, 5, 6, 2]
    assert tokenizer.decode([4, 5, 6, 2], skip_special_tokens=True) == "tief er"
    assert (len(tokenizer), tokenizer.source_vocab_size, tokenizer.pad_token_id) == (30, 40, 1)
    assert files_on_the_card(tmp_path / "out") == {path.name for path in (tmp_path / "fsmt").iterdir()}


TEXTS = [
    *("low er, low-er: 'lower' (low)...", "Mr. Low isn't lower. No. 5, e.g. 5,300 er."),
    *("He said “low,” then: er & er <low> [er] — 50 %", "", " lo\tw er. next"),
]


@pytest.mark.parametrize("lowercase", [False, True])
def test_tokenizer_cuts_text_as_fsmts_own(lowercase, tmp_path):
    pytest.importorskip("sacremoses")
    folder = tmp_path / "fsmt"
    build({}).save_pretrained(folder)
    pieces = ["lo", "w</w>", "er</w>", *"lor", ",</w>", ".</w>", "low</w>", "@-@</w>", "&apos;</w>", "&amp;</w>"]
    write_vocabularies(folder, pieces, pieces)
    files = {"src_vocab_file": "vocab-src.json", "tgt_vocab_file": "vocab-tgt.json", "merges_file": "merges.txt"}
    theirs = FSMTTokenizer(
        langs=["en", "de"], do_lower_case=lowercase, **{name: str(folder / file) for name, file in files.items()}
    )
    theirs.save_pretrained(folder)
    convert("auto", folder, tmp_path / "out")
    ours = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")
    for text in TEXTS:
        assert ours(text)["input_ids"] == theirs(text)["input_ids"], text
    assert ours.decode([12, 13, 5, 15, 2], skip_special_tokens=True) == "low-w &"


@pytest.mark.parametrize("language", ["en", "de", "fr", "ru"])
def test_moses_is_sacremoses(language):
    sacremoses = pytest.importorskip("sacremoses")
    normalize = sacremoses.MosesPunctNormalizer(lang=language).normalize
    tokenize = sacremoses.MosesTokenizer(lang=language).tokenize
    ours = moses.moses(language, moses.abbreviations_of(language))
    generator = random.Random(0)
    stock = (
        "Hello Mr. isn't 5,3 ' \" , . .. ... (x) - a-b No. 7 U.S. z.B. e.g. ü Я % $5 & it's '' » « – ?! ; : 1. s' 字"
    )
    if language in ("de", "fr"):  # matches that overlap: see moses.py
        stock = re.sub("[\"»«]|''", "", stock)
    parts = [part for word in stock.split() for part in (word, f"{word} ", f" {word}")]
    texts = ["".join(generator.choices(parts, k=10)) for _ in range(500)]
    for text in [*TEXTS, *texts]:
        plain = remove_non_printing_char(normalize(replace_unicode_punct(text)))
        assert ours.normalize_str(text).split() == tokenize(plain, aggressive_dash_splits=True), text
