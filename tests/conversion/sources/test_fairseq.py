"""fairseq: real checkpoints where they are at hand, and checkpoints in its layout for every option."""

import argparse
import json
import math
import sys
from types import ModuleType

import pytest
import torch
from greedy import check_greedy
from plain_forward import Stack, layer_norm, linear, sinusoid
from samples import PEERS, files_on_the_card, samples, write_reference

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer
from vanilla_transformer_hf.conversion import ConversionError, convert


# ---------------------------------------------------------------------------------------------------- real checkpoints


@pytest.mark.parametrize("name", samples("fairseq-*", "fairseq09-*"))
def test_sample(name, tmp_path):
    folder = PEERS / name
    done = convert("auto", folder, tmp_path / "out", reference=folder / "ref.npz")
    assert done.source == "fairseq"
    assert done.reopened == 0 and done.reference <= 1e-5
    record = check_greedy(tmp_path / "out", folder)
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")
    for text, tokens in zip(record["src_text"], record["src_tokens"], strict=True):
        ids = tokenizer(text)["input_ids"]
        expected = [token if id_ != 3 else "<unk>" for id_, token in zip(ids, tokens, strict=True)]
        assert tokenizer.convert_ids_to_tokens(ids) == expected


@pytest.mark.parametrize("name", samples("fairseq-*", "fairseq09-*"))
def test_sample_beam_search(name, tmp_path):
    folder = PEERS / name
    convert("fairseq", folder, tmp_path / "out")
    record = json.loads((folder / "ref.json").read_text(encoding="utf-8"))
    model = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "out")
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")
    batch = tokenizer(record["src_text"], return_tensors="pt", padding=True)
    for beams in [key for key in record if key.startswith("beam") and f"{key}_settings" in record]:
        settings = record[f"{beams}_settings"]
        ids = model.generate(
            **batch,
            num_beams=settings["beam"],
            length_penalty=float(settings["lenpen"]),
            max_new_tokens=settings["max_len_b"] + 1,
        )
        for ours, theirs in zip(ids.tolist(), record[beams], strict=True):
            assert [i for i in ours if i not in (1, 2)] == [i for i in theirs["ids"] if i != 2], beams


# ---------------------------------------------------------------------------------------- checkpoints for every option

SIZES = {
    "arch": "transformer_iwslt_de_en",
    "task": "translation",
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_embed_dim": 16,
    "decoder_ffn_embed_dim": 24,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "max_source_positions": 30,
    "max_target_positions": 30,
    "source_lang": "en",
    "target_lang": "de",
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
        "encoder_layers": 3,
        "decoder_layers": 1,
        "encoder_ffn_embed_dim": 20,
        "decoder_ffn_embed_dim": 40,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 8,
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
    """A checkpoint in fairseq's layout with weights drawn by chance, and its logits."""

    def __init__(self, options):
        given = dict(options)
        self.layout = given.pop("layout", "0.12")
        self.half = given.pop("half", False)
        self.joined = given.pop("joined", False) or "share_all_embeddings" in given
        self.versions = {
            stack: given.pop(f"{stack}.version", 3.0 if self.layout != "0.6" or PRE.items() <= given.items() else None)
            for stack in ("encoder", "decoder")
        }
        self.options = {**SIZES, "activation_fn": "relu", **given}
        self.words = {side: sorted({*WORDS["en"], *WORDS["de"]}) if self.joined else WORDS[side] for side in WORDS}
        self.tensors = {}
        for stack in ("encoder", "decoder"):
            self.add_stack(stack)
        self.add_output()

    def add(self, name, *shape, around=0.0):
        generator = torch.Generator().manual_seed(len(self.tensors))
        tensor = around + torch.randn(*shape, generator=generator) * (0.3 if len(shape) == 1 else shape[-1] ** -0.5)
        self.tensors[name] = tensor.half() if self.half else tensor

    def on(self, name):
        return bool(self.options.get(name))

    def add_stack(self, stack):
        width, ffn = self.options[f"{stack}_embed_dim"], self.options[f"{stack}_ffn_embed_dim"]
        memory = self.options["encoder_embed_dim"]
        self.add(f"{stack}.embed_tokens.weight", 4 + len(self.words["en" if stack == "encoder" else "de"]), width)
        if self.on(f"{stack}_learned_pos"):
            longest = self.options["max_source_positions" if stack == "encoder" else "max_target_positions"]
            self.add(f"{stack}.embed_positions.weight", longest + 2, width)
        norms = ["self_attn_layer_norm", "final_layer_norm"]
        if stack == "decoder":
            norms.insert(1, "encoder_attn_layer_norm")
        for layer in range(self.options[f"{stack}_layers"]):
            name = f"{stack}.layers.{layer}"
            self.add_attention(f"{name}.self_attn", width, width)
            if stack == "decoder":
                self.add_attention(f"{name}.encoder_attn", width, memory)
            for number, norm in enumerate(norms):
                norm = f"layer_norms.{number}" if self.layout == "0.6" else norm
                self.add(f"{name}.{norm}.weight", width, around=1.0)
                self.add(f"{name}.{norm}.bias", width)
            for part, shape in (("fc1", (ffn, width)), ("fc2", (width, ffn))):
                self.add(f"{name}.{part}.weight", *shape)
                self.add(f"{name}.{part}.bias", shape[0])
                if stack == "encoder" and self.layout == "0.12":  # stale copies
                    self.add(f"{name}.{part}_weight", *shape)
                    self.add(f"{name}.{part}_bias", shape[0])
        for norm, there in (
            ("layer_norm", self.final_norm(stack)),
            ("layernorm_embedding", self.on("layernorm_embedding")),
        ):
            if there:
                self.add(f"{stack}.{norm}.weight", width, around=1.0)
                self.add(f"{stack}.{norm}.bias", width)
        if self.versions[stack] is not None:
            self.tensors[f"{stack}.version"] = torch.tensor([self.versions[stack]])
        self.tensors[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)

    def final_norm(self, stack):
        dropped = (self.versions[stack] or 1.0) <= (1 if stack == "encoder" else 2)
        if stack == "decoder" and self.on("no_decoder_final_norm"):
            return False
        return self.on(f"{stack}_normalize_before") and not dropped

    def add_attention(self, name, width, memory):
        if self.layout in ("0.6", "0.8") and width == memory:
            self.add(f"{name}.in_proj_weight", 3 * width, width)
            self.add(f"{name}.in_proj_bias", 3 * width)
        elif self.layout == "0.8":
            for part, size in (("q", width), ("k", memory), ("v", memory)):
                self.add(f"{name}.{part}_proj_weight", width, size)
            self.add(f"{name}.in_proj_bias", 3 * width)
        else:
            for part, size in (("q", width), ("k", memory), ("v", memory)):
                self.add(f"{name}.{part}_proj.weight", width, size)
                self.add(f"{name}.{part}_proj.bias", width)
        self.add(f"{name}.out_proj.weight", width, width)
        self.add(f"{name}.out_proj.bias", width)

    def add_output(self):
        if self.on("share_all_embeddings"):
            self.tensors["decoder.embed_tokens.weight"] = self.tensors["encoder.embed_tokens.weight"]
        shared, new = self.on("share_decoder_input_output_embed"), self.layout == "0.12"
        if shared and new:
            self.tensors["decoder.output_projection.weight"] = self.tensors["decoder.embed_tokens.weight"]
        elif not shared:
            name = "decoder.output_projection.weight" if new else "decoder.embed_out"
            self.add(name, 4 + len(self.words["de"]), self.options["decoder_embed_dim"])

    # -------------------------------------------------------------------------------------------------------- forward

    def at(self, stack):
        norms = ["self_attn_layer_norm", "final_layer_norm"]
        if stack == "decoder":
            norms.insert(1, "encoder_attn_layer_norm")

        def look_up(part):
            if part == "final_norm":
                return self.pair(f"{stack}.layer_norm")
            layer, *rest = part.split(".")
            name = f"{stack}.layers.{layer}"
            if len(rest) == 2:
                attention = name + {"self_attn": ".self_attn", "cross_attn": ".encoder_attn"}[rest[0]]
                return self.projection(attention, rest[1])
            if rest[0].startswith("ffn"):
                return self.pair(f"{name}.{rest[0].replace('ffn', 'fc')}")
            number = {"norm1": 0, "norm2": 1, "norm3": -1}[rest[0]]
            return self.pair(
                f"{name}.layer_norms.{number % len(norms)}" if self.layout == "0.6" else f"{name}.{norms[number]}"
            )

        return look_up

    def pair(self, name):
        return self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]

    def projection(self, name, part):
        if part == "out" or f"{name}.{part}_proj.weight" in self.tensors:
            return self.pair(f"{name}.{part}_proj")
        bias = self.tensors[f"{name}.in_proj_bias"].chunk(3)["qkv".index(part)]
        if f"{name}.in_proj_weight" in self.tensors:
            return self.tensors[f"{name}.in_proj_weight"].chunk(3)["qkv".index(part)], bias
        return self.tensors[f"{name}.{part}_proj_weight"], bias

    def embed(self, stack, ids):
        width = self.options[f"{stack}_embed_dim"]
        x = self.tensors[f"{stack}.embed_tokens.weight"][ids].double()
        x = x * (1.0 if self.on("no_scale_embedding") else math.sqrt(width))
        for row in range(len(ids)):
            if self.on(f"{stack}_learned_pos"):
                x[row] += self.tensors[f"{stack}.embed_positions.weight"][row + 2]
            elif not self.on("no_token_positional_embeddings"):
                x[row] += sinusoid(row + 2, width, "inclusive")
        if self.on("layernorm_embedding"):
            x = layer_norm(x, self.pair(f"{stack}.layernorm_embedding"), 1e-5)
        return x

    def logits(self, source, target):
        activation = self.options["activation_fn"]
        stacks = {
            stack: Stack(
                self.at(stack),
                self.options[f"{stack}_layers"],
                self.options[f"{stack}_attention_heads"],
                pre_norm=self.on(f"{stack}_normalize_before"),
                activation=SPELLINGS.get(activation, activation),
                final_norm=self.final_norm(stack),
            )
            for stack in ("encoder", "decoder")
        }
        memory = stacks["encoder"].run(self.embed("encoder", source))
        states = stacks["decoder"].run(self.embed("decoder", target), memory)
        for name in ("decoder.output_projection.weight", "decoder.embed_out", "decoder.embed_tokens.weight"):
            if name in self.tensors:
                return linear(states, (self.tensors[name], None))
        raise AssertionError

    # ---------------------------------------------------------------------------------------------------------- files

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
        sizes = [4 + len(self.words[language]) for language in ("en", "de")]
        return write_reference(path, self.logits, sizes, start=2)


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
        "arch": "transformer_lm",
        "adaptive_softmax_cutoff": [10, 20],
        "no_cross_attention": True,
        "activation_fn": "mish",
        "decoder_output_dim": 8,
        "bpe": "gpt2",
        "encoder_layers_to_keep": "0,2",
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
    with pytest.raises(ConversionError) as error:
        convert("fairseq", reference.write(tmp_path / "fairseq"), tmp_path / "out")
    assert [line.split(":")[0].strip() for line in str(error.value).splitlines()[1:]] == list(wrong)


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
    reference = Reference({"layout": "0.9"})
    reference.words = {"en": ["lo@@", "w", "er", "l@@", "r"], "de": ["ti@@", "ef", "er", "t@@"]}
    reference.tensors = {}
    for stack in ("encoder", "decoder"):
        reference.add_stack(stack)
    reference.add_output()
    folder = reference.write(tmp_path / "fairseq")
    convert("fairseq", folder, tmp_path / "cut")
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "cut")
    assert tokenizer("lo@@ w er low")["input_ids"] == [4, 5, 6, 3, 2]
    assert tokenizer.decode([4, 5, 6, 2], skip_special_tokens=True) == "tief er"
    (folder / "codes.en").write_text("#version: 0.2\nl o\ne r</w>\n")
    (folder / "codes.de").write_text("#version: 0.2\nt i\ne f</w>\n")
    done = convert("fairseq", folder, tmp_path / "codes")
    assert [note for note in done.notes if "--set tokenizer=moses" not in note] == []
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


def test_the_card_lists_every_file_that_was_read(tmp_path):
    folder = Reference({}).write(tmp_path / "fairseq")
    for name in ("codes.en", "codes.de"):
        (folder / name).write_text("#version: 0.2\no n\n")
    convert("fairseq", folder, tmp_path / "out")
    assert files_on_the_card(tmp_path / "out") == {path.name for path in folder.iterdir()}


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
