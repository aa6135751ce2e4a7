"""torch.nn.Transformer: the module itself for every option. A real state dict is in test_samples.py."""

import json
import math

import pytest
import torch
import yaml
from safetensors.torch import save_file
from samples import agree, named_by, write_reference
from torch import nn

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.conversion import ConversionError, convert


class Embedding(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embedding = nn.Embedding(size, 16)


class Positions(nn.Module):
    """The tutorial's table: (positions, 1, D), sines and cosines interleaved."""

    def __init__(self, trained=False):
        super().__init__()
        angles = torch.arange(20.0)[:, None] * torch.exp(-torch.arange(0, 16, 2) * math.log(10000) / 16)
        table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).unsqueeze(1)
        self.register_buffer("pos_embedding", torch.randn(20, 1, 16) if trained else table)


class Tutorial(nn.Module):
    """A translation model around nn.Transformer, under the names of PyTorch's tutorial."""

    def __init__(
        self, sizes=(11, 9), scaled=True, trained=False, positions=True, output_bias=True, offset=0, **settings
    ):
        super().__init__()
        settings = {"nhead": 4, "num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 24, **settings}
        self.transformer = nn.Transformer(d_model=16, dropout=0.0, batch_first=True, **settings)
        self.src_tok_emb, self.tgt_tok_emb = Embedding(sizes[0]), Embedding(sizes[1])
        self.generator = nn.Linear(16, sizes[1], bias=output_bias)
        if positions:
            self.positional_encoding = Positions(trained)
        self.scale, self.offset = 4.0 if scaled else 1.0, offset
        for parameter in self.parameters():
            if parameter.dim() == 1:
                nn.init.normal_(parameter, mean=float(parameter.mean() > 0.5), std=0.3)
        self.double().eval()

    def embed(self, embedding, ids):
        x = embedding.embedding(torch.tensor([ids])) * self.scale
        if hasattr(self, "positional_encoding"):
            x = x + self.positional_encoding.pos_embedding[self.offset :, 0][: len(ids)]
        return x

    @torch.no_grad()
    def logits(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(len(target), dtype=torch.float64)
        x = self.transformer(self.embed(self.src_tok_emb, source), self.embed(self.tgt_tok_emb, target), tgt_mask=mask)
        return self.generator(x)[0]


def write(folder, tensors, file="model.pt", **settings):
    folder.mkdir(exist_ok=True)
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    save_file(tensors, folder / file) if file.endswith(".safetensors") else torch.save(tensors, folder / file)
    if settings:
        (folder / "settings.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return folder


def agreement(tmp_path, model, sizes=(11, 9), tensors=None, **settings):
    folder = write(tmp_path / "run", tensors or model.state_dict(), **{"nhead": 4, **settings})
    return agree("torch_nn", folder, tmp_path, model.logits, sizes)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("bias", [True, False])
def test_options_of_the_module(activation, norm_first, bias, tmp_path):
    model = Tutorial(activation=activation, norm_first=norm_first, bias=bias)
    done = agreement(tmp_path, model, activation=activation, norm_first=norm_first)
    assert done.config.encoder_final_norm and done.config.decoder_final_norm  # in post-norm too


def test_norm_epsilon_and_sizes(tmp_path):
    model = Tutorial(layer_norm_eps=0.01, num_encoder_layers=3, num_decoder_layers=1, dim_feedforward=40, nhead=8)
    agreement(tmp_path, model, layer_norm_eps=0.01, nhead=8)


def test_no_scale_no_positions_no_output_bias(tmp_path):
    model = Tutorial(scaled=False, positions=False, output_bias=False)
    agreement(tmp_path, model, scale_embedding=False, positions="none")


def test_positions_that_are_stored_nowhere(tmp_path):
    model = Tutorial()
    tensors = {name: tensor for name, tensor in model.state_dict().items() if "pos" not in name}
    agreement(tmp_path, model, tensors=tensors, positions="sinusoidal")


@pytest.mark.parametrize("offset", [0, 2])
def test_trained_positions(offset, tmp_path):
    done = agreement(tmp_path, Tutorial(trained=True, offset=offset), position_offset=offset)
    assert done.config.position_encoding == "learned" and done.config.max_position_embeddings == 20 - offset


def test_stored_sinusoids_are_recognised(tmp_path):
    assert agreement(tmp_path, Tutorial()).config.position_encoding == "sinusoidal"


def test_stacks_without_final_norms_and_unlike_each_other(tmp_path):
    model = Tutorial()
    layers = {
        "encoder": nn.TransformerEncoderLayer(16, 2, 20, 0.0, "gelu", batch_first=True, norm_first=True),
        "decoder": nn.TransformerDecoderLayer(16, 8, 28, 0.0, batch_first=True),
    }
    model.transformer.encoder = nn.TransformerEncoder(layers["encoder"], 3, enable_nested_tensor=False)
    model.transformer.decoder = nn.TransformerDecoder(layers["decoder"], 1)
    model.double().eval()
    settings = {
        "nhead": {"encoder": 2, "decoder": 8},
        "norm_first": {"encoder": True, "decoder": False},
        "activation": {"encoder": "gelu", "decoder": "relu"},
    }
    done = agreement(tmp_path, model, **settings)
    assert not done.config.encoder_final_norm and not done.config.decoder_final_norm


def test_shared_matrices(tmp_path):
    model = Tutorial(sizes=(9, 9))
    model.generator.weight = model.tgt_tok_emb.embedding.weight
    assert agreement(tmp_path, model, sizes=(9, 9)).config.embedding_sharing == "decoder"


def test_one_embedding_for_everything(tmp_path):
    model = Tutorial(sizes=(9, 9), output_bias=False)
    model.src_tok_emb = model.tgt_tok_emb
    model.generator.weight = model.tgt_tok_emb.embedding.weight
    kept = {name: t for name, t in model.state_dict().items() if "src_tok" not in name and "generator" not in name}
    names = {"source_embedding": "tgt_tok_emb.embedding", "output": None}
    done = agreement(tmp_path, model, sizes=(9, 9), tensors=kept, names=names)
    assert done.config.embedding_sharing == "all"


def test_own_names_safetensors_and_settings_as_checkpoint(tmp_path):
    model = Tutorial()
    tensors = {
        name.replace("transformer.encoder", "enc")
        .replace("transformer.decoder", "net.dec")
        .replace("src_tok_emb.embedding", "embed_in")
        .replace("tgt_tok_emb.embedding", "embed_out")
        .replace("generator", "head")
        .replace("positional_encoding.pos_embedding", "pe"): tensor
        for name, tensor in model.state_dict().items()
    }
    tensors["temperature.weight"] = torch.ones(1)
    names = {
        **{"encoder": "enc", "decoder": "net.dec", "source_embedding": "embed_in", "target_embedding": "embed_out"},
        **{"output": "head", "source_positions": "pe", "target_positions": "pe", "ignored": ["temperature.weight"]},
    }
    folder = write(tmp_path / "run", tensors, "a.safetensors", nhead=4, names=names, checkpoint="a.safetensors")
    write(folder, {"other": torch.zeros(1)}, "b.pt")
    assert agree("auto", folder / "settings.yaml", tmp_path, model.logits, (11, 9)).source == "torch_nn"


@pytest.mark.parametrize("place", ["model_state_dict", "state_dict", "model"])
def test_a_state_dict_among_other_things(place, tmp_path):
    model = Tutorial()
    folder = write(tmp_path / "run", {}, nhead=4)
    tensors = {f"module.{name}": tensor.float() for name, tensor in model.state_dict().items()}
    torch.save({"epoch": 3, place: tensors}, folder / "model.pt")
    agree("torch_nn", folder, tmp_path, model.logits, (11, 9))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"norm_first": True}, {"activation": "gelu", "nhead": 2}])
def test_what_no_file_says_the_reference_tells(tmp_path, settings):
    model = Tutorial(scaled=False, **settings)
    reference = write_reference(tmp_path / "ref.npz", model.logits, (11, 9), start=2)
    folder = write(tmp_path / "run", model.state_dict())
    done = convert("torch_nn", folder, tmp_path / "out", reference=reference)
    assert done.reference <= 1e-5
    heads, first, kind = (
        settings.get("nhead", 4),
        settings.get("norm_first", False),
        settings.get("activation", "relu"),
    )
    told = {"nhead": heads, "norm_first": first, "activation": kind, "scale_embedding": False, "layer_norm_eps": 1e-5}
    found = [f"{name}={value}: not in the files; found as what gives the logits" for name, value in told.items()]
    assert [note.partition(" of ref.npz")[0] for note in done.notes[: len(found)]] == found
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert all(line in card for line in found)
    wrong = {"nhead": 8, "norm_first": first, "activation": kind, "scale_embedding": True}
    folder = write(tmp_path / "wrong", model.state_dict(), **wrong)
    with pytest.raises(ConversionError, match=r"from those of .*ref.npz; 1e-05 is allowed\n  note: "):
        convert("torch_nn", folder, tmp_path / "other", reference=reference)


@pytest.mark.parametrize("eps", [1e-5, 1e-6, 1e-12])
def test_the_epsilon_of_the_norms_is_what_the_reference_tells(eps, tmp_path):
    model = Tutorial(layer_norm_eps=eps)
    for name in ("src_tok_emb", "tgt_tok_emb"):  # small numbers, beside which ε counts
        getattr(model, name).embedding.weight.data *= 1e-3
    model.positional_encoding.pos_embedding *= 1e-3
    folder = write(tmp_path / "run", model.state_dict(), nhead=4, norm_first=True)
    model_pre = Tutorial(layer_norm_eps=eps, norm_first=True)
    model_pre.load_state_dict(model.state_dict())
    done = agree("torch_nn", folder, tmp_path, model_pre.logits, (11, 9))
    assert done.config.layer_norm_eps == eps
    assert any(note.startswith(f"layer_norm_eps={eps}: not in the files") for note in done.notes)


# ------------------------------------------------------------------------------------------- refusals and vocabularies


def test_all_that_cannot_be_expressed_is_listed_together(tmp_path):
    settings = {"nhead": 4, "activation": "tanh", "positions": "rotary", "norm_frist": True}
    names = {"source_embedding": "nowhere", "decoder": "nothing", "enocder": "x"}
    folder = write(tmp_path / "run", Tutorial().state_dict(), **settings, names=names)
    expected = ["norm_frist", "activation", "positions", "names.enocder", "names.source_embedding", "names.decoder"]
    assert [each.split(" is ")[0] for each in named_by("torch_nn", folder, tmp_path)] == expected


USUAL = {
    **{"nhead": 8, "norm_first": False, "activation": "relu", "layer_norm_eps": 1e-5, "scale_embedding": True},
    "position_offset": 0,
}


def test_all_that_no_file_gives_is_asked_for(tmp_path):
    tensors = {name: tensor for name, tensor in Tutorial().state_dict().items() if "pos" not in name}
    folder = write(tmp_path / "run", tensors, nhead=4)
    (folder / "vocab.json").write_text(json.dumps({"src": [*VOCABULARY, "a", "b"], "tgt": VOCABULARY}))
    with pytest.raises(ConversionError) as error:
        convert("torch_nn", folder, tmp_path / "out")
    asked = {**USUAL, "positions": "sinusoidal", "source_bos": True, "source_eos": True}
    del asked["nhead"]
    lines = [line.strip() for line in str(error.value).splitlines()]
    assert set(lines[1:-1]) == {
        f"{name}: {value if isinstance(value, str) else json.dumps(value)} is usual" for name, value in asked.items()
    }
    assert "--set norm_first=false" in lines[-1] and "--reference" in lines[-1]
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConversionError, match="'vocabulary' is not an option of torch_nn"):
        convert("torch_nn", folder, tmp_path / "out", options={"vocabulary": "v.json"})
    with pytest.raises(ConversionError, match="norm_first: 'no'"):
        convert("torch_nn", folder, tmp_path / "out", options={**asked, "norm_first": "no"})
    done = convert("torch_nn", folder, tmp_path / "out", options={**asked, "norm_first": True})
    assert done.config.encoder_norm_position == "pre" and done.config.encoder_attention_heads == 4
    assert done.notes == [
        "max_length=256: not in the files; the default",
        "dropout=0.1: not in the files; the default",
        "label_smoothing=0.0: not in the files; the default",
    ]
    assert "--set norm_first=true" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


def test_without_a_vocabulary_there_is_no_tokenizer(tmp_path):
    done = convert("torch_nn", write(tmp_path / "run", Tutorial().state_dict(), **USUAL), tmp_path / "out")
    assert "pad_token_id=1: not in the files; the default" in done.notes and "no vocabulary" in done.notes[-1]
    assert not (tmp_path / "out" / "tokenizer.json").exists()


def test_two_files_with_weights_are_too_many(tmp_path):
    folder = write(tmp_path / "run", Tutorial().state_dict(), nhead=4)
    write(folder, {}, "other.pt")
    with pytest.raises(ConversionError, match=r"holds model\.pt, other\.pt; name it"):
        convert("torch_nn", folder, tmp_path / "out")


VOCABULARY = ["[PAD]", "[UNK]", "<sos>", "</s>", "one", "two", "x", "y", "z"]


@pytest.mark.parametrize("kind", ["one file", "json", "ids", "lines"])
def test_vocabularies(kind, tmp_path):
    folder = write(tmp_path / "run", Tutorial(sizes=(9, 9)).state_dict())
    settings = {**USUAL, "source_bos": False, "source_eos": True}
    settings |= {"max_length": 7, "dropout": 0.0, "label_smoothing": 0.0}
    if kind == "one file":
        (folder / "vocab.json").write_text(json.dumps(VOCABULARY))
    elif kind == "json":
        (folder / "v.json").write_text(json.dumps({"src": VOCABULARY, "tgt": VOCABULARY}))
        settings["vocabulary"] = "v.json"
    elif kind == "ids":
        (folder / "v.json").write_text(json.dumps({token: VOCABULARY.index(token) for token in reversed(VOCABULARY)}))
        settings |= {"source_vocabulary": "v.json", "target_vocabulary": "v.json"}
    else:
        (folder / "v.txt").write_text("\n".join(VOCABULARY) + "\n")
        settings |= {"source_vocabulary": "v.txt", "target_vocabulary": "v.txt"}
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
    done = convert("torch_nn", folder, tmp_path / "out")
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("two six")["input_ids"] == [5, 1, 3]
    assert tokenizer(text_target="one")["input_ids"] == [4, 3]
    assert (done.config.pad_token_id, done.config.decoder_start_token_id, done.config.eos_token_id) == (0, 2, 3)
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["max_new_tokens"] == 7
    assert done.notes == []


def test_a_special_token_that_is_missing(tmp_path):
    folder = write(tmp_path / "run", Tutorial(sizes=(9, 9)).state_dict(), nhead=4, special_tokens={"eos": "<eot>"})
    (folder / "vocab.json").write_text(json.dumps(VOCABULARY))
    with pytest.raises(ConversionError, match=r"special_tokens\.eos: <eot> is None"):
        convert("torch_nn", folder, tmp_path / "out")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"nhead": "four"}, "nhead: 'four'"),
        ({"nhead": {"encoder": 2}}, r"nhead\.decoder: None"),
        ({"nhead": 4, "names": {"encoder": 3}}, r"names\.encoder: 3"),
        ({"nhead": 4, "position_offset": "1", "checkpoint": 5}, r"checkpoint: 5.*\n.*position_offset: '1'"),
    ],
)
def test_values_of_another_type_are_named(settings, named, tmp_path):
    with pytest.raises(ConversionError, match=rf"settings\.yaml: settings that cannot be used\n.*{named}"):
        convert("torch_nn", write(tmp_path / "run", Tutorial().state_dict(), **settings), tmp_path / "out")
