"""The config: presets against Table 3, every refusal, and what is saved."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest
import torch
from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassClassValidationError, StrictDataclassError
from transformers import AutoConfig

from vanilla_transformer_hf import (
    PRESETS,
    RecurrentSeq2SeqConfig,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
)
from vanilla_transformer_hf.model import configuration_vanilla_transformer
from vanilla_transformer_hf.model import modeling_vanilla_transformer as modeling
from vanilla_transformer_hf.model.config.auto_classes import CLASSES, in_folder


# Table 3 of the paper: parameters in millions, where the row states them; the other rows have the base model's 65.
TABLE_3 = {
    **dict.fromkeys(("base", "A-h1", "A-h4", "A-h16", "A-h32", "D-p0", "D-p2", "D-ls0", "D-ls2", "E"), 65),
    **{"B-dk16": 58, "B-dk32": 60, "C-N2": 36, "C-N4": 50, "C-N8": 80, "C-d256": 28, "C-d1024": 168, "C-ff1024": 53},
    **{"C-ff4096": 90, "big": 213},
    # Not in the paper: JoeyNMT's benchmark page, and Wu et al. 2021.
    **{"iwslt_de_en": 19, "multi30k_tiny": 2.6, "multi30k_small": 36.5},
    # Shazeer 2020: as many as the base model.
    **dict.fromkeys(("glu", "bilinear", "reglu", "geglu", "swiglu"), 65),
}


def count_parameters(config: VanillaTransformerConfig) -> float:
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(config)
    return sum(parameter.numel() for parameter in model.parameters()) / 1e6


@pytest.mark.parametrize("name", TABLE_3)
def test_presets_have_the_published_number_of_parameters(name):
    ours = count_parameters(VanillaTransformerConfig.from_preset(name))
    print(f"{name:15} ours {ours:6.1f} M, published {TABLE_3[name]:6.1f} M")
    assert ours == pytest.approx(TABLE_3[name], rel=0.08)


def test_every_row_of_table_3_is_a_preset():
    assert set(PRESETS) == {*TABLE_3, "deep_shallow"}  # a shape for speed, without a published size


def test_rows_a_keep_the_amount_of_computation():
    for heads in (1, 4, 16, 32):
        model = VanillaTransformerForConditionalGeneration(
            VanillaTransformerConfig.from_preset(f"A-h{heads}", encoder_layers=1, decoder_layers=1, vocab_size=8)
        )
        attention = model.model.encoder.layers[0].self_attn
        assert (attention.d_k, attention.d_v) == (512 // heads, 512 // heads)


def test_preset_with_override_and_unknown_preset():
    assert VanillaTransformerConfig.from_preset("big", vocab_size=1000).vocab_size == 1000
    with pytest.raises(ValueError, match=r"'A-h3'.*did you mean 'A-h32' or 'A-h4'.*there are base, A-h1"):
        VanillaTransformerConfig.from_preset("A-h3")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encoder_attention_heads": 7}, r"encoder_attention_heads=7: must divide d_model=512"),
        ({"decoder_attention_heads": 7, "d_k": 64}, r"decoder_attention_heads=7: must divide d_model=512"),
        ({"vocab_size": 0}, r"vocab_size=0: must be greater than 0"),
        ({"source_vocab_size": -5, "embedding_sharing": "none"}, r"source_vocab_size=-5: must be greater than 0"),
        ({"d_model": -512}, r"d_model=-512: must be greater than 0"),
        ({"encoder_layers": 0}, r"encoder_layers=0: must be greater than 0"),
        ({"encoder_ffn_dim": -1}, r"encoder_ffn_dim=-1: must be greater than 0"),
        ({"d_k": 0}, r"d_k=0: must be greater than 0"),
        ({"encoder_d_model": 0}, r"encoder_d_model=0: must be greater than 0"),
        (
            {"encoder_d_model": 36, "embedding_sharing": "none"},
            r"encoder_attention_heads=8: must divide encoder_d_model=36",
        ),
        ({"encoder_d_model": 256}, r"embedding_sharing='all' with encoder_d_model=256 and d_model=512.*'decoder' or"),
        (
            {"encoder_d_model": 27, "embedding_sharing": "none", "encoder_attention_heads": 3},
            r"encoder_d_model=27: position_encoding='sinusoidal' needs an even one of at least 2",
        ),
        ({"decoder_max_position_embeddings": 0}, r"decoder_max_position_embeddings=0: must be greater than 0"),
        ({"decoder_position_encoding": "rotatory"}, r"decoder_position_encoding.*'rotary', 'rotary_halves'"),
        ({"max_position_embeddings": 0}, r"max_position_embeddings=0: must be greater than 0"),
        ({"layer_norm_eps": 0.0}, r"layer_norm_eps=0.0: must be greater than 0"),
        ({"encoder_residual_alpha": float("inf")}, r"encoder_residual_alpha=inf: must be at least 0"),
        ({"decoder_residual_alpha": -0.5}, r"decoder_residual_alpha=-0.5: must be at least 0"),
        ({"position_offset": -1}, r"position_offset=-1: must be at least 0"),
        # Alone: transformers puts "Class validation error for validator …:" in front of a ValueError.
        ({"dropout": 1.0}, r"\Adropout=1\.0: must be at least 0 and less than 1\Z"),
        ({"attention_dropout": -0.1}, r"attention_dropout=-0.1: must be at least 0 and less than 1"),
        ({"activation_dropout": 2}, r"activation_dropout=2: must be at least 0 and less than 1"),
        ({"label_smoothing": 1}, r"label_smoothing=1: must be at least 0 and less than 1"),
        ({"pad_token_id": 37000}, r"pad_token_id=37000: must lie within the vocabulary, 0 to 36999"),
        ({"eos_token_id": [1, -2]}, r"eos_token_id=\[1, -2\]: must lie within the vocabulary, 0 to 36999"),
        ({"source_vocab_size": 9000}, r"embedding_sharing='all' with source_vocab_size=9000.*'decoder' or 'none'"),
        (
            {"source_vocab_size": 9, "embedding_sharing": "none", "pad_token_id": 9},
            r"pad_token_id=9: must lie within the source vocabulary, 0 to 8",
        ),
        ({"d_model": 33, "d_k": 8, "d_v": 8}, r"d_model=33: position_encoding='sinusoidal' needs an even one"),
        ({"activation_function": "rellu"}, r"activation_function='rellu' \(did you mean 'relu'.*must be one of gelu"),
        ({"decoder_activation_function": "rellu"}, r"decoder_activation_function='rellu' \(did you mean 'relu'"),
        ({"type_vocab_size": -1}, r"type_vocab_size=-1: must be at least 0"),
        (
            {"rotary_fraction": 0.5, "position_encoding": "t5_bias"},
            r"rotary_fraction=0.5: only position_encoding='rotary' or 'rotary_halves' has it; leave rotary_fraction "
            r"out, or set position_encoding or decoder_position_encoding",
        ),
        (
            {"linformer_k": 8},
            r"only attention of the type 'linformer' has it.*set encoder_.*_type or cross_attention_type$",
        ),
        ({"memory_length": 8}, r"leave memory_length out, or set decoder_attention_type$"),
        ({"attention_window": 8}, r"or set encoder_attention_type or decoder_attention_type$"),
        ({"max_relative_distance": 9}, r"max_relative_distance=9: only position_encoding='shaw' or 't5_bias' has it"),
        ({"relative_buckets": 8}, r"relative_buckets=8: only position_encoding='t5_bias' has it"),
        ({"hierarchical_alpha": 0.3}, r"hierarchical_alpha=0.3: only position_encoding='hierarchical' has it"),
        (
            {"hierarchical_alpha": 0.5, "position_encoding": "hierarchical"},
            r"hierarchical_alpha=0.5: must be greater than 0, less than 1, and not 0.5",
        ),
        ({"relative_buckets": 6, "position_encoding": "t5_bias"}, r"relative_buckets=6: must be a multiple of 4"),
        (
            {"max_relative_distance": 16, "decoder_position_encoding": "t5_bias"},
            r"max_relative_distance=16: must be greater than half of relative_buckets=32",
        ),
        (
            {"rotary_fraction": 0.02, "position_encoding": "rotary"},
            r"position_encoding='rotary': heads of 64 features and rotary_fraction=0.02 leave no pair",
        ),
        ({"encoder_norm_position": "middle"}, r"encoder_norm_position.*\('post', 'pre'\), got middle"),
        ({"embedding_sharing": "both"}, r"embedding_sharing.*\('all', 'decoder', 'none'\), got both"),
        ({"d_model": "512"}, r"d_model.*int, got str"),
        ({"droput": 0.1}, r"no field 'droput' \(did you mean 'dropout'"),
        ({"norm_position": "pre"}, r"no field 'norm_position' \(did you mean 'encoder_norm_position'"),
        ({"num_atention_heads": 8}, r"no field 'num_atention_heads' \(did you mean 'num_attention_heads'"),
    ],
)
def test_refusals_name_field_value_and_what_is_allowed(fields, message):
    with pytest.raises((ValueError, StrictDataclassError), match=re.compile(message, re.DOTALL)):
        VanillaTransformerConfig(**fields)


@pytest.mark.parametrize("config_class", [VanillaTransformerConfig, RecurrentSeq2SeqConfig])
@pytest.mark.parametrize("fields", [{"dropout": 1.5}, {"dropout": "x"}, {"d_model": "16"}, {"vocab_size": -1}])
def test_every_refusal_is_a_value_error_of_one_line(config_class, fields, tmp_path):
    """On construction, on assignment, and before saving; the host's own errors are no ValueErrors."""
    with pytest.raises(ValueError, match=f"{next(iter(fields))}.*") as refused:
        config_class(**fields)
    assert isinstance(refused.value, StrictDataclassError) and "\n" not in str(refused.value)
    config = config_class()
    ((name, value),) = fields.items()
    with pytest.raises(ValueError, match=name):
        setattr(config, name, value)  # a wrong type
        config.save_pretrained(tmp_path)  # a value out of range
    with pytest.raises(ValueError, match=name):
        config_class.from_dict({**config_class().to_dict(), **fields})


def test_a_config_of_a_subclass_is_refused_alike():
    @strict
    class Narrower(VanillaTransformerConfig):
        model_type = "narrower"

        def validate_width(self):
            if self.d_model > 64:
                raise ValueError(f"d_model={self.d_model}: must be at most 64")

    Narrower(d_model=64, encoder_attention_heads=4, decoder_attention_heads=4)
    for fields in ({"d_model": 128}, {"d_model": "64"}, {"dropout": 2.0}):
        with pytest.raises(StrictDataclassError, match=next(iter(fields))):
            Narrower(**fields)


def test_unknown_fields_of_a_newer_version_pass():
    assert VanillaTransformerConfig(rotary_base=10000).rotary_base == 10000


def test_what_follows_from_other_fields():
    config = VanillaTransformerConfig(decoder_norm_position="pre", pad_token_id=5, embedding_sharing="none")
    assert (config.encoder_final_norm, config.decoder_final_norm) == (False, True)
    assert config.decoder_start_token_id == 5
    assert config.tie_word_embeddings is False
    assert VanillaTransformerConfig(tie_word_embeddings=False).tied_matrices == "none"
    config = VanillaTransformerConfig(hidden_size=64, position_encoding="learned", max_position_embeddings=9)
    assert (config.encoder_d_model, config.decoder_position_encoding) == (64, "learned")
    assert config.decoder_max_position_embeddings == 9


def test_a_field_that_follows_another_still_does_after_saving(tmp_path):
    VanillaTransformerConfig(d_model=64, embedding_sharing="none").save_pretrained(tmp_path)
    config = VanillaTransformerConfig.from_pretrained(tmp_path, d_model=32, activation_function="gelu")
    assert (config.d_model, config.encoder_d_model, config.decoder_activation_function) == (32, 32, "gelu")
    VanillaTransformerConfig(d_model=64, encoder_d_model=32, embedding_sharing="none").save_pretrained(tmp_path)
    config = VanillaTransformerConfig.from_pretrained(tmp_path, d_model=96)
    assert (config.d_model, config.encoder_d_model) == (96, 32)


def test_generic_names_of_transformers():
    config = VanillaTransformerConfig(hidden_size=64, num_attention_heads=4, decoder_attention_heads=4)
    assert (config.d_model, config.encoder_attention_heads, config.num_hidden_layers) == (64, 4, 6)


def test_saved_and_loaded_again_is_the_same_file(tmp_path):
    config = VanillaTransformerConfig.from_preset("iwslt_de_en", source_vocab_size=77, embedding_sharing="decoder")
    config.save_pretrained(tmp_path / "first")
    VanillaTransformerConfig.from_pretrained(tmp_path / "first").save_pretrained(tmp_path / "second")
    first, second = (tmp_path / name / "config.json" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    assert not {"num_beams", "max_length", "length_penalty"} & json.loads(first.read_text()).keys()


def test_every_choice_has_exactly_the_rows_of_its_table():
    tables = {
        "norm_type": modeling.NORMS.rows,
        "feed_forward_type": modeling.INNER_PROJECTIONS,
        "position_encoding": modeling.POSITION_SCHEMES,
        "decoder_position_encoding": modeling.POSITION_SCHEMES,
    }
    hints = VanillaTransformerConfig.__annotations__
    for field, table in tables.items():
        hint = next((part for part in get_args(hints[field]) if get_args(part)), hints[field])  # without its None
        assert set(get_args(hint)) == set(table), field


class Reading:
    """A config that records which of its fields are read."""

    def __init__(self, config):
        self.config, self.names = config, set()

    def __getattr__(self, name):
        self.names.add(name)
        return getattr(self.config, name)


def test_every_field_is_read_outside_the_config(tiny_config):
    package = Path(modeling.__file__).parent
    checks = {"attention_kinds", "conflicts", "kinds", "position_schemes", "variants"}
    code = "".join(
        path.read_text()
        for path in package.rglob("*.py")
        if not path.name.startswith("configuration_") and not (path.parent.name == "config" and path.stem in checks)
    )
    # Read by transformers' generation, or through another field that stands for them.
    elsewhere = {"bos_token_id", "eos_token_id", "is_encoder_decoder", "use_cache"}
    through = {"embedding_sharing": "tied_matrices", "tie_word_embeddings": "tied_matrices"}
    # Read by a name that is made of the stack's.
    made = {
        "encoder_attention_type": "window",
        "decoder_attention_type": "blocks",
        "cross_attention_type": "linformer",
    }
    model = modeling.VanillaTransformerModel(tiny_config(**made))
    encoder, decoder = (stack.layers[0].self_attn for stack in (model.encoder, model.decoder))
    assert (type(encoder), type(decoder)) == (modeling.ATTENTION_TYPES["window"], modeling.ATTENTION_TYPES["blocks"])
    assert type(model.decoder.layers[0].encoder_attn) is modeling.CROSS_ATTENTION_TYPES["linformer"]
    reading = Reading(tiny_config())
    modeling.heads_of_layers(reading, "cross")
    for stack in ("encoder", "decoder"):
        modeling.StackSizes(reading, stack)
    for field in set(VanillaTransformerConfig.__annotations__) - elsewhere - made.keys() - reading.names:
        name = through.get(field, field)
        assert re.search(rf"config\.{name}\b", code), f"{field} is never read"


def test_what_follows_a_field_follows_its_assignment_too():
    config = VanillaTransformerConfig()
    config.hidden_size = 256
    assert (config.d_model, config.encoder_d_model) == (256, 256)
    config.position_encoding = "learned"
    assert config.decoder_position_encoding == "learned"
    apart = VanillaTransformerConfig(encoder_d_model=64, embedding_sharing="decoder")
    apart.d_model = 256
    assert apart.encoder_d_model == 64


VERSION = configuration_vanilla_transformer.VERSION_FIELD


@pytest.mark.parametrize("ours", ["0.2.0", "0.2.7", "0.2.0rc1", "0.10.1"])
@pytest.mark.parametrize("theirs", [None, "0.1.9", "0.2.0", "0.2.99", "0.2.0.dev3", "0.2"])
def test_a_config_of_this_version_or_an_older_one_opens(ours, theirs, tiny_config, tmp_path, monkeypatch):
    tiny_config().save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved.pop(VERSION) == configuration_vanilla_transformer.VERSION
    (tmp_path / "config.json").write_text(json.dumps(saved | ({VERSION: theirs} if theirs else {})))
    monkeypatch.setattr(configuration_vanilla_transformer, "VERSION", ours)
    config = AutoConfig.from_pretrained(tmp_path)
    assert not hasattr(config, VERSION)
    assert config.to_dict()[VERSION] == ours, "saved again, it is this version's"


@pytest.mark.parametrize("theirs", ["0.3.0", "0.10.0", "1.0", "0.3.0rc1", "1.0.dev0"])
def test_a_newer_config_is_refused_with_advice(theirs, tiny_config, monkeypatch):
    saved = tiny_config().to_dict() | {VERSION: theirs}
    monkeypatch.setattr(configuration_vanilla_transformer, "VERSION", "0.2.5")
    with pytest.raises(ValueError, match=f"{theirs} wrote this config, and 0.2.5 would .*: upgrade the package; or"):
        VanillaTransformerConfig.from_dict(saved)


@pytest.mark.parametrize("theirs", ["newest", 3, ""])
def test_what_is_no_version_is_refused(theirs, tiny_config):
    with pytest.raises(ValueError, match=f"{VERSION}={theirs!r}: must be a version, such as"):
        VanillaTransformerConfig.from_dict(tiny_config().to_dict() | {VERSION: theirs})


STACKS = {
    "encoder_decoder": {},
    "encoder": {"is_encoder_decoder": False},
    "decoder": {"is_encoder_decoder": False, "is_decoder": True},
}


@pytest.mark.parametrize(("stacks", "auto_class"), [(kind, name) for kind in STACKS for name in CLASSES[kind]])
@pytest.mark.parametrize("prefix", ["", "someone/numbers--"])
def test_a_saved_model_opens_with_each_auto_class(stacks, auto_class, prefix, tiny_config):
    models = in_folder(CLASSES[stacks])
    entered = {"AutoConfig": "a.B", auto_class: prefix + models[auto_class]}
    config = tiny_config(auto_map=entered, **STACKS[stacks])
    expected = {"AutoConfig": "a.B"} | {name: prefix + model for name, model in models.items()}
    assert config.to_dict()["auto_map"] == expected


@pytest.mark.parametrize("auto_map", [{"AutoConfig": "a.B"}, {"AutoModelForSeq2SeqLM": "mine.Model"}])
def test_other_models_are_not_entered(auto_map, tiny_config):
    assert tiny_config(auto_map=auto_map).to_dict()["auto_map"] == auto_map


def test_configs_of_other_defaults_have_the_checks_of_variants():
    @strict
    class PerformerConfig(VanillaTransformerConfig):
        encoder_attention_type: str = "performer"

    with pytest.raises(StrictDataclassClassValidationError, match="its weights are never computed"):
        PerformerConfig(vocab_size=9, attention_dropout=0.1)


def test_the_dropout_of_a_classifier_makes_no_variant():
    assert "config.variants" not in VanillaTransformerConfig(vocab_size=9, classifier_dropout=0.2).modules
