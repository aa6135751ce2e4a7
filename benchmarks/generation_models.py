"""Folders with equal weights for every engine: ours, MarianMT's and CTranslate2's."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, MarianMTModel

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.conversion.targets import export


# Suffixes of the names of weights whose columns read the residual stream, and of those whose rows write to it.
READERS = (
    "embed_tokens.weight",
    "shared.weight",
    "lm_head.weight",
    "fc1.weight",
    *(f"{n}_proj.weight" for n in "qkv"),
)
WRITERS = tuple(f"{name}.{kind}" for name in ("out_proj", "fc2", "layer_norm") for kind in ("weight", "bias"))


def random_model(config: VanillaTransformerConfig, seed: int = 0) -> VanillaTransformerForConditionalGeneration:
    """
    An untrained model whose searches end only at the limit and whose outputs are as varied as those of a trained
    model.

    The output weights of `</s>` and padding are zeros, so that their logits are 0, while some thousand other tokens
    have larger ones. A minimum length would have the same effect, but its cost differs between engines.

    With freshly drawn tied weights, each token would predict itself, and the layers would hide the differences between
    positions and between sources: all outputs would repeat one word. Random signs in the last norm, and layer weights
    divided by two, give outputs of many words that differ between sentences.
    """
    torch.manual_seed(seed)
    model = VanillaTransformerForConditionalGeneration(config).eval()
    norm = model.model.decoder.layers[-1].final_layer_norm
    with torch.no_grad():
        for module in model.model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.mul_(0.5)
        norm.weight.copy_(torch.randn_like(norm.weight).sign())
        model.lm_head.weight[[config.eos_token_id, config.pad_token_id]] = 0.0
    return model


def as_marianmt(model: VanillaTransformerForConditionalGeneration) -> VanillaTransformerForConditionalGeneration:
    """
    A MarianMT model that computes the same function. Its attention has biases, which are zeros here if ours has none.
    It puts all sines of a position before all cosines, so the features of the residual stream are reordered.
    """
    config = model.config
    order = torch.arange(config.d_model)
    settings = {**config.to_dict(), "attention_bias": True}
    if config.position_encoding == config.decoder_position_encoding == "sinusoidal":
        order = order.view(-1, 2).t().flatten()
        settings |= dict.fromkeys(("position_encoding", "decoder_position_encoding"), "sinusoidal_halves")
    twin = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig.from_dict(settings)).eval()
    ours = model.state_dict()
    with torch.no_grad():
        for name, tensor in twin.state_dict().items():
            if name not in ours:
                tensor.zero_()
            elif name.endswith(READERS):
                tensor.copy_(ours[name][:, order])
            elif name.endswith(WRITERS):
                tensor.copy_(ours[name][order])
            else:
                tensor.copy_(ours[name])
    return twin


def write_ctranslate2(marianmt: Path, folder: Path) -> None:
    """
    Convert a MarianMT folder with CTranslate2's own loader; the name of each token is its id.

    CTranslate2's MarianMT loader replaces the embedding of the start token by zeros, as Marian trains it. Ours is
    trained, as in BART, so BART's loader, from which the other is derived, is used.
    """
    from ctranslate2.converters.converter import Converter
    from ctranslate2.converters.transformers import BartLoader

    class Loader(Converter):
        def _load(self) -> Any:
            model = MarianMTModel.from_pretrained(marianmt, dtype=torch.float32)
            config: Any = model.config
            config.normalize_before = config.normalize_embedding = False
            with torch.no_grad():
                spec = BartLoader().get_model_spec(model)
            spec.register_source_vocabulary([str(index) for index in range(config.vocab_size)])
            spec.register_target_vocabulary([str(index) for index in range(config.decoder_vocab_size)])
            spec.config.decoder_start_token = str(config.decoder_start_token_id)
            spec.config.eos_token = str(config.eos_token_id)
            spec.config.unk_token = str(config.pad_token_id)  # there are no unknown tokens here
            return spec

    Loader().convert(str(folder))


def write_models(
    model: VanillaTransformerForConditionalGeneration, folder: Path, engines: set[str], dtypes: set[torch.dtype]
) -> None:
    """
    Save `model` for `engines` in `folder`/NAME in float32, ours and MarianMT also in `folder`/DTYPE/NAME. A model that
    is opened in the type of its file maps the file.
    """
    model = model.float()
    model.save_pretrained(folder / "ours")
    if engines & {"marian", "ctranslate2"}:
        as_marianmt(model).save_pretrained(folder / "twin")
        export("marianmt", folder / "twin", folder / "marian")
    if "ctranslate2" in engines:
        write_ctranslate2(folder / "marian", folder / "ctranslate2")
    for dtype in dtypes - {torch.float32}:
        for path in (folder / "ours", folder / "marian"):
            if path.exists():
                opened = AutoModelForSeq2SeqLM.from_pretrained(path, dtype=dtype)
                opened.save_pretrained(folder / str(dtype).removeprefix("torch.") / path.name)
