"""fairseq: checkpoints in its layout for every option. Real ones are in test_samples.py."""

import argparse
import math
import re
import sys
from types import ModuleType

import pytest
import torch
from samples import files_on_the_card, named_by, write_reference
from toy import Side, Toy, names_of

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer
from vanilla_transformer_hf.conversion import ConversionError, convert


SIZES = {
    **{"arch": "transformer_iwslt_de_en", "task": "translation", "encoder_embed_dim": 16},
    **{"encoder_ffn_embed_dim": 24, "encoder_layers": 2, "encoder_attention_heads": 4, "decoder_embed_dim": 16},
    **{"decoder_ffn_embed_dim": 24, "decoder_layers": 2, "decoder_attention_heads": 4, "max_source_positions": 30},
    **{"max_target_positions": 30, "source_lang": "en", "target_lang": "de"},
}
PRE = {"encoder_normalize_before": True, "decoder_normalize_before": True}
ALL = {"share_all_embeddings": True, "share_decoder_input_output_embed": True}

OPTIONS = {
    "shared": ALL,
    "separate": {},
    "decoder_shared": {"share_decoder_input_output_embed": True},
    "one_dictionary_untied": {"joined": True},
    "pre_norm": PRE,
    "mixed_norm": {"decoder_normalize_before": True},
    "no_decoder_final_norm": {**PRE, "no_decoder_final_norm": True},
    "decoder_of_format_2": {**PRE, "decoder.version": 2.0},
    "both_of_format_1": {**PRE, "encoder.version": None, "decoder.version": None},
    "learned": {"encoder_learned_pos": True, "decoder_learned_pos": True, "max_target_positions": 20},
    "encoder_learned": {"encoder_learned_pos": True},
    "decoder_learned": {"decoder_learned_pos": True},
    "no_positions": {"no_token_positional_embeddings": True},
    "layernorm_embedding": {"layernorm_embedding": True},
    "no_scale_embedding": {"no_scale_embedding": True},
    "unequal": {
        **{"encoder_layers": 3, "decoder_layers": 1, "encoder_ffn_embed_dim": 20, "decoder_ffn_embed_dim": 40},
        **{"encoder_attention_heads": 2, "decoder_attention_heads": 8},
    },
    "unequal_widths": {"encoder_embed_dim": 24, "share_decoder_input_output_embed": True, **PRE},
    "unequal_widths_0.8": {"encoder_embed_dim": 12, "layout": "0.8"},
    "layout_0.6": {"layout": "0.6"},
    "layout_0.6_pre": {"layout": "0.6", **PRE},
    "layout_0.9": {"layout": "0.9"},
    "layout_0.9_shared": {"layout": "0.9", **ALL},
    "half": {"half": True},
    **{
        f"activation_{name}": {"activation_fn": name}
        for name in ("relu_squared", "gelu", "gelu_fast", "gelu_accurate", "tanh", "linear", "swish")
    },
}

SPELLINGS = {"gelu_fast": "gelu_tanh", "gelu_accurate": "gelu_tanh"}
WORDS = {"en": ["one", "two", "three", "four", "five", "madeupword0000"], "de": ["eins", "zwei", "drei", "vier"]}


class Reference:
    """A checkpoint in fairseq's layout with weights drawn by chance, `tensors`, and its logits."""

    def __init__(self, options, words=None):
        given = dict(options)
        self.layout = given.pop("layout", "0.12")
        self.half = given.pop("half", False)
        joined = given.pop("joined", False) or "share_all_embeddings" in given
        version = 3.0 if self.layout != "0.6" or PRE.items() <= given.items() else None
        self.versions = {stack: given.pop(f"{stack}.version", version) for stack in ("encoder", "decoder")}
        self.options = {**SIZES, "activation_fn": "relu", **given}
        self.words = words or {side: sorted({*WORDS["en"], *WORDS["de"]}) if joined else WORDS[side] for side in WORDS}
        norms = ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"]
        norms = [norms[::2], norms]
        if self.layout == "0.6":
            norms = [[f"layer_norms.{number}" for number in range(len(each))] for each in norms]
        self.tied = self.on("share_decoder_input_output_embed")
        names = names_of(
            "layers",
            ("self_attn", "self_attn", "encoder_attn"),
            ("q_proj", "k_proj", "v_proj", "out_proj"),
            norms,
            ("fc1", "fc2"),
            ("encoder.embed_tokens", "decoder.embed_tokens"),
            "decoder.output_projection",
            ("layer_norm", "layernorm_embedding"),
            ("encoder.embed_positions", "decoder.embed_positions"),
        )
        toy = Toy(
            names,
            self.side("encoder"),
            self.side("decoder"),
            sizes=[4 + len(self.words[language]) for language in ("en", "de")],
            offset=2,
            embedding_norm=self.on("layernorm_embedding"),
            same=(("decoder.embedding", "encoder.embedding"),) * self.on("share_all_embeddings")
            + (("decoder.output", "decoder.embedding"),) * self.tied,
        )
        if self.half:
            toy.tensors = {name: tensor.half() for name, tensor in toy.tensors.items()}
        self.logits, self.sizes = toy.logits, toy.sizes
        self.tensors = self.stored(toy.tensors)

    def on(self, name):
        return bool(self.options.get(name))

    def side(self, stack):
        trained = self.on(f"{stack}_learned_pos")
        activation = self.options["activation_fn"]
        return Side(
            layers=self.options[f"{stack}_layers"],
            width=self.options[f"{stack}_embed_dim"],
            heads=self.options[f"{stack}_attention_heads"],
            ffn=self.options[f"{stack}_ffn_embed_dim"],
            pre_norm=self.on(f"{stack}_normalize_before"),
            final_norm=self.final_norm(stack),
            activation=SPELLINGS.get(activation, activation),
            scaled=not self.on("no_scale_embedding"),
            positions="learned" if trained else "none" if self.on("no_token_positional_embeddings") else "inclusive",
            longest=self.options["max_source_positions" if stack == "encoder" else "max_target_positions"],
        )

    def final_norm(self, stack):
        dropped = (self.versions[stack] or 1.0) <= (1 if stack == "encoder" else 2)
        if stack == "decoder" and self.on("no_decoder_final_norm"):
            return False
        return self.on(f"{stack}_normalize_before") and not dropped

    def stored(self, tensors):
        """The tensors under the names, and in the matrices, of this layout."""
        found = dict(tensors)
        if self.layout in ("0.6", "0.8"):
            for name in [name.removesuffix("q_proj.weight") for name in tensors if name.endswith("q_proj.weight")]:
                weights = [found.pop(f"{name}{part}_proj.weight") for part in "qkv"]
                found[f"{name}in_proj_bias"] = torch.cat([found.pop(f"{name}{part}_proj.bias") for part in "qkv"])
                if len({weight.shape for weight in weights}) == 1:
                    found[f"{name}in_proj_weight"] = torch.cat(weights)
                else:
                    found |= {f"{name}{part}_proj_weight": weight for part, weight in zip("qkv", weights)}
        if self.layout != "0.12":
            output = found.pop("decoder.output_projection.weight")
            found |= {} if self.tied else {"decoder.embed_out": output}
        else:  # stale copies
            stale = [name for name in found if name.startswith("encoder.") and ".fc" in name]
            found |= {re.sub(r"\.(weight|bias)$", r"_\1", name): torch.randn_like(found[name]) for name in stale}
        for stack, version in self.versions.items():
            found |= {} if version is None else {f"{stack}.version": torch.tensor([version])}
            found[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
        return found

    def content(self):
        if self.layout == "0.12":
            names = ("arch", "task", "source_lang", "target_lang")
            model = argparse.Namespace(**{n: v for n, v in self.options.items() if n not in names})
            model.arch = model._name = self.options["arch"]
            task = {"_name": "translation", "source_lang": "en", "target_lang": "de"}
            return {"args": None, "cfg": {"model": model, "task": task}, "model": self.tensors}
        return {"args": argparse.Namespace(**self.options), "model": self.tensors, "extra_state": {"epoch": 3}}

    def write(self, folder, content=None):
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(
            content or self.content(),
            folder / "checkpoint_best.pt",
            _use_new_zipfile_serialization=self.layout != "0.6",
        )
        for language, words in self.words.items():
            (folder / f"dict.{language}.txt").write_text("".join(f"{word} 1\n" for word in words), encoding="utf-8")
        return folder

    def write_reference(self, path):
        return write_reference(path, self.logits, self.sizes, start=2)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_option(options, tmp_path):
    reference = Reference(options)
    folder = reference.write(tmp_path / "fairseq")
    done = convert("auto", folder, tmp_path / "out", reference=reference.write_reference(tmp_path / "ref.npz"))
    assert done.reference <= 1e-5 and done.reopened == 0
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")
    words = reference.words["en"]
    assert tokenizer(" ".join([*words, "sea"]))["input_ids"] == [*range(4, 4 + len(words)), 3, 2]
    words = reference.words["de"]
    assert tokenizer(text_target=" ".join(words))["input_ids"] == [*range(4, 4 + len(words)), 2]
    model = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "out", dtype="auto")
    assert model.dtype == (torch.float16 if reference.half else torch.float32)


# ----------------------------------------------------------------------------------- what pickles hold besides tensors


def foreign(module, name, monkeypatch, **state):
    """An object of a class of a module that is not installed, there only while the file is written."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        path = ".".join(parts[:end])
        if path not in sys.modules:
            monkeypatch.setitem(sys.modules, path, ModuleType(path))
    if not hasattr(sys.modules[module], name):
        setattr(sys.modules[module], name, type(name, (), {"__module__": module, "__qualname__": name}))
    made = getattr(sys.modules[module], name)()
    vars(made).update(state)
    return made


def as_omegaconf(value, monkeypatch):
    """Plain settings as omegaconf's containers pickle them."""
    if isinstance(value, dict):
        content = {name: as_omegaconf(item, monkeypatch) for name, item in value.items()}
        return foreign("omegaconf.dictconfig", "DictConfig", monkeypatch, _metadata={"key": None}, _content=content)
    if isinstance(value, list):
        content = [as_omegaconf(item, monkeypatch) for item in value]
        return foreign("omegaconf.listconfig", "ListConfig", monkeypatch, _content=content)
    return foreign("omegaconf.nodes", "AnyNode", monkeypatch, _metadata={"key": None}, _val=value)


def test_settings_in_containers_of_omegaconf(tmp_path, monkeypatch):
    reference = Reference({**PRE, **ALL})
    model = {name: value for name, value in reference.options.items() if name not in ("arch", "task")}
    model.pop("source_lang"), model.pop("target_lang")
    stacks = {stack: {} for stack in ("encoder", "decoder")}
    for name in list(model):
        stack, _, rest = name.partition("_")
        if stack in stacks:
            stacks[stack][rest] = model.pop(name)
    model.update(stacks, _name="transformer", max_source_positions="${task.max_source_positions}", missing="???")
    task = {"_name": "translation", "source_lang": "en", "target_lang": "de", "max_source_positions": 30}
    cfg = as_omegaconf({"model": model, "task": task, "lists": [1, "two"]}, monkeypatch)
    folder = reference.write(tmp_path / "fairseq", {"cfg": cfg, "model": reference.tensors})
    monkeypatch.undo()
    assert "omegaconf" not in sys.modules
    done = convert("fairseq", folder, tmp_path / "out", reference=reference.write_reference(tmp_path / "ref.npz"))
    assert done.reference <= 1e-5
    assert done.config.max_position_embeddings == 30 and done.config.encoder_norm_position == "pre"


def test_meters_of_fairseq_0_9_are_read_past(tmp_path, monkeypatch):
    reference = Reference({"layout": "0.9", **ALL})
    meter = foreign("fairseq.meters", "AverageMeter", monkeypatch, val=1.0, avg=2.0)
    content = {**reference.content(), "extra_state": {"train_meters": {"loss": meter}}}
    folder = reference.write(tmp_path / "fairseq", content)
    monkeypatch.undo()
    assert "fairseq" not in sys.modules
    assert convert("fairseq", folder, tmp_path / "out").reopened == 0


# ------------------------------------------------------------------------------------------------------------ refusals


def test_all_options_that_cannot_be_expressed_are_listed(tmp_path):
    reference = Reference({"layout": "0.9"})
    reference.options |= {
        **{"arch": "transformer_lm", "adaptive_softmax_cutoff": [10, 20], "no_cross_attention": True},
        **{"activation_fn": "mish", "decoder_output_dim": 8, "bpe": "gpt2", "encoder_layers_to_keep": "0,2"},
    }
    with pytest.raises(ConversionError) as caught:
        convert("fairseq", reference.write(tmp_path / "fairseq"), tmp_path / "out")
    for name in reference.options:
        there = name in ("arch", "activation_fn", "bpe", "encoder_layers_to_keep", "decoder_output_dim")
        there = there or name in ("adaptive_softmax_cutoff", "no_cross_attention")
        assert (f"\n  {name}=" in str(caught.value)) == there, name
    assert list(tmp_path.iterdir()) == [tmp_path / "fairseq"]


def test_values_of_another_type_are_named(tmp_path):
    reference = Reference({"layout": "0.9"})
    wrong = {"arch": ["transformer"], "encoder_layers": "2", "activation_fn": ["relu"], "share_all_embeddings": "no"}
    reference.options |= wrong
    assert named_by("fairseq", reference.write(tmp_path / "fairseq"), tmp_path) == list(wrong)


def test_leftover_and_missing_weights_are_listed_in_full(tmp_path):
    reference = Reference({})
    reference.tensors["decoder.extra.weight"] = torch.zeros(2)
    reference.tensors["encoder.layers.2.fc1.weight"] = torch.zeros(24, 16)
    del reference.tensors["decoder.layers.0.fc1.bias"], reference.tensors["encoder.layers.1.self_attn.q_proj.weight"]
    with pytest.raises(ConversionError) as caught:
        convert("fairseq", reference.write(tmp_path / "fairseq"), tmp_path / "out")
    assert str(caught.value).splitlines()[1:] == [
        "  left over: decoder.extra.weight",
        "  left over: encoder.layers.2.fc1.weight (the options leave no place for model.encoder.layers.2.fc1.weight)",
        "  missing: model.encoder.layers.1.self_attn.q_proj.weight",
        "  missing: model.decoder.layers.0.fc1.bias",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.tensors.update({"encoder.layers.0.fc1.bias": torch.zeros(7)}), r"fc1.bias has the shape \(7,\)"),
        (
            lambda r: r.tensors["encoder.layers.0.fc1.bias"].fill_(math.nan),
            "fc1.bias holds values that are not finite",
        ),
        (lambda r: r.words.update(de=[*r.words["de"], "more"]), r"embed_tokens.weight has the shape \(8, 16\), and"),
        (
            lambda r: r.tensors.update({"encoder.layers.0.fc1.bias": torch.zeros(24, dtype=torch.long)}),
            "holds torch.int64",
        ),
        (lambda r: r.options.update(source_lang="fr"), r"dict\.fr\.txt and dict\.de\.txt are missing beside"),
        (lambda r: r.options.update(source_lang=["fr"]), r"dict\.\['fr'\]\.txt and dict\.de\.txt are missing beside"),
    ],
)
def test_a_checkpoint_that_does_not_fit_its_options_is_refused(change, message, tmp_path):
    reference = Reference({"layout": "0.9"})
    change(reference)
    with pytest.raises(ConversionError, match=message):
        convert("fairseq", reference.write(tmp_path / "fairseq"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == [tmp_path / "fairseq"]


def test_tied_matrices_that_differ_are_refused(tmp_path):
    reference = Reference(ALL)
    reference.tensors["decoder.output_projection.weight"] = reference.tensors["encoder.embed_tokens.weight"] + 1
    with pytest.raises(
        ConversionError, match=r"encoder.embed_tokens.weight and decoder.output_projection.weight differ"
    ):
        convert("fairseq", reference.write(tmp_path / "fairseq"), tmp_path / "out")


# -------------------------------------------------------------------------------------------------------- vocabularies


def test_codes_and_marked_pieces(tmp_path):
    words = {"en": ["lo@@", "w", "er", "l@@", "r"], "de": ["ti@@", "ef", "er", "t@@"]}
    folder = Reference({"layout": "0.9"}, words).write(tmp_path / "fairseq")
    convert("fairseq", folder, tmp_path / "cut")
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "cut")
    assert tokenizer("lo@@ w er low")["input_ids"] == [4, 5, 6, 3, 2]
    assert tokenizer.decode([4, 5, 6, 2], skip_special_tokens=True) == "tief er"
    (folder / "codes.en").write_text("#version: 0.2\nl o\ne r</w>\n")
    (folder / "codes.de").write_text("#version: 0.2\nt i\ne f</w>\n")
    done = convert("fairseq", folder, tmp_path / "codes")
    assert [note for note in done.notes if "--set tokenizer=moses" not in note] == []
    assert files_on_the_card(tmp_path / "codes") == {path.name for path in folder.iterdir()}
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "codes")
    assert tokenizer("low er lr")["input_ids"] == [4, 5, 6, 7, 8, 2]
    assert tokenizer(text_target="tief er")["input_ids"] == [4, 5, 3, 3, 2]
    assert tokenizer.decode([4, 5, 2], skip_special_tokens=True) == "tief"
    (folder / "codes").write_text("")
    (folder / "codes.en").unlink(), (folder / "codes.de").rename(folder / "codes.old")
    with pytest.raises(ConversionError, match=r"codes, codes\.old could each cut the words of 'en'; leave one"):
        convert("fairseq", folder, tmp_path / "two")


@pytest.mark.parametrize("place", ["data-bin", "../data-bin", ".."])
def test_dictionaries_in_the_folder_of_the_preprocessed_data_are_found(place, tmp_path):
    reference = Reference({"layout": "0.9", "data": "/home/someone/data-bin"})
    folder = reference.write(tmp_path / "runs" / "checkpoints")
    (folder / place).mkdir(exist_ok=True)
    for path in list(folder.glob("dict.*.txt")):
        path.rename(folder / place / path.name)
    assert convert("fairseq", tmp_path / "runs", tmp_path / "out").reopened == 0


def test_dictionaries_are_read_as_fairseq_reads_them(tmp_path):
    reference = Reference({"layout": "0.9"})
    folder = reference.write(tmp_path / "fairseq")
    (folder / "dict.en.txt").write_text("a 5\n<pad> 0 #fairseq:overwrite\nb 4\nc 3\nd 2\na 1 #fairseq:overwrite\n")
    convert("fairseq", folder, tmp_path / "out")
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("a b")["input_ids"] == [9, 6, 2] and tokenizer.pad_token_id == 1
    (folder / "dict.en.txt").write_text("a 5\na 4\n")
    with pytest.raises(ConversionError, match=r"dict\.en\.txt: 'a' stand more than once"):
        convert("fairseq", folder, tmp_path / "twice")
    (folder / "dict.en.txt").write_text("a 5\nb\n")
    with pytest.raises(ConversionError, match=r"dict.en.txt, line 2: 'b' is not a token with its count"):
        convert("fairseq", folder, tmp_path / "uncounted")


@pytest.mark.parametrize("stated", [True, False])
def test_moses_is_built_in(stated, tmp_path):
    """The checkpoint seldom names the tokenizer, which is an option of fairseq-generate; then the command does."""
    sacremoses = pytest.importorskip("sacremoses")
    moses = {"tokenizer": "moses", "moses_no_escape": True}
    reference = Reference({"layout": "0.9", **(moses if stated else {})})
    folder = reference.write(tmp_path / "fairseq")
    (folder / "dict.en.txt").write_text("it 5\n's 4\nwell 3\n@-@ 2\n. 1\n, 1\n")
    done = convert("fairseq", folder, tmp_path / "out", options=None if stated else moses)
    assert any(note.startswith("tokenizer: texts are cut as by the Moses tokenizer") for note in done.notes)
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")
    text = "it's well-well."
    words = sacremoses.MosesTokenizer(lang="en").tokenize(text, aggressive_dash_splits=True, escape=False)
    assert tokenizer(text)["input_ids"] == [4, 5, 6, 7, 6, 8, 2]
    assert words == ["it", "'s", "well", "@-@", "well", "."]
    with pytest.raises(ConversionError, match="tokenizer='mecab': must be one of None, space, moses, nltk"):
        convert("fairseq", folder, tmp_path / "other", options={"tokenizer": "mecab"})
