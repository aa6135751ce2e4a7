"""The measurements of a conversion: the reopened model against itself before saving, and against the toolkit."""

import copy
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..model.config.front_ends import FRONT_ENDS, input_name_of, reads_tokens
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..model.search.generate import check_token_ids
from ..model.tokenizer.failures import is_failure
from .formats.npz import Arrays
from .source import ConversionError


REFERENCE_NAMES = ("src_ids", "src_mask", "tgt_in_ids", "tgt_mask", "logits")

# Test texts for tokenizers: letters and marks that normalization changes, spaces, and an empty text.
TEXTS = (
    "",
    "Hello, world! Größe ½ № ﬁ Å e\u0301 \u200b\u00a0\u3000x … „quoted“ ＡＢＣ １２３ 日本語 한국어 русский العربية",
    "a  b\tc\u2028d",
    "one two three 1234567890",
)


def read_reference(path: Path) -> dict[str, torch.Tensor]:
    """A reference of an `.npz` file: src_ids (B, S), src_mask, tgt_in_ids (B, T), tgt_mask, logits (B, T, V)."""
    # Masks are true on real tokens.
    try:
        found = Arrays(path)
        arrays = {name: found[name] for name in REFERENCE_NAMES}
    except (ConversionError, KeyError) as error:
        raise ConversionError(f"{path} is not a reference with {', '.join(REFERENCE_NAMES)}: {error}") from error
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    fits = shapes["src_ids"] == shapes["src_mask"] and shapes["tgt_in_ids"] == shapes["tgt_mask"]
    fits = fits and shapes["tgt_mask"] == shapes["logits"][:2] and len(shapes["logits"]) == 3
    if not fits or len(shapes["src_ids"]) != 2 or not arrays["tgt_mask"].any():
        raise ConversionError(f"{path} holds arrays that do not fit each other: {shapes}")
    return arrays


def compare_with_reference(
    model: VanillaTransformerForConditionalGeneration, path: Path, rows: int | None = None
) -> tuple[float, int]:
    """Largest difference between the model's logits and a reference's, of its first `rows`, and the positions."""
    # The positions are those of targets. The reference may lack the last of the model's pieces: those that the toolkit
    # does not have.
    arrays = read_reference(path)
    pieces = arrays["logits"].shape[-1]
    if pieces > model.config.vocab_size:
        raise ConversionError(f"{path} has logits of {pieces} pieces, and the model has {model.config.vocab_size}")
    check_token_ids(arrays["src_ids"], model.config.source_vocab_size or model.config.vocab_size, f"{path}: src_ids")
    check_token_ids(arrays["tgt_in_ids"], model.config.vocab_size, f"{path}: tgt_in_ids")
    differences = []
    for row in range(len(arrays["src_ids"][:rows])):
        one = {name: array[row : row + 1] for name, array in arrays.items()}
        batch = {
            "input_ids": one["src_ids"].long(),
            "attention_mask": one["src_mask"].long(),
            "decoder_input_ids": one["tgt_in_ids"].long(),
            "decoder_attention_mask": one["tgt_mask"].long(),
        }
        real = one["tgt_mask"].bool()
        differences.append((logits_of(model, batch)[real][:, :pieces] - one["logits"][real]).abs().flatten())
    found = torch.cat(differences)
    return (found.max().item() if len(found) else 0.0), int(arrays["tgt_mask"][:rows].sum())


def example_batch(config: VanillaTransformerConfig) -> dict[str, torch.Tensor]:
    """Random ids, by a fixed seed, of two sentences, the second padded; or random frames or pixels of two sources."""
    generator = torch.Generator().manual_seed(0)
    if not reads_tokens(config):  # without padding, which toolkits treat differently
        source = torch.randn(2, *FRONT_ENDS[config.front_end].shape(config), generator=generator)
        length = min(12, config.decoder_max_position_embeddings or 12)
        target = torch.randint(config.vocab_size, (2, length), generator=generator)
        target[target == config.pad_token_id] = (config.pad_token_id + 1) % config.vocab_size
        target[:, 0] = config.decoder_start_token_id or 0
        return {input_name_of(config): source, "decoder_input_ids": target}
    if not config.is_encoder_decoder:
        length = min(12, config.max_position_embeddings)
        ids, mask = torch.randint(config.vocab_size, (2, length), generator=generator), torch.ones(2, length).long()
        mask[1, length // 2 :] = 0
        # Not padding by its id, where there is none, nor padding where there is a token.
        ids[(mask == 1) & (ids == config.pad_token_id)] = (config.pad_token_id + 1) % config.vocab_size
        return {"input_ids": ids.masked_fill(mask == 0, config.pad_token_id), "attention_mask": mask}
    length = min(12, config.max_position_embeddings, config.decoder_max_position_embeddings or 12)
    source_size = config.source_vocab_size or config.vocab_size
    source = torch.randint(source_size, (2, length), generator=generator)
    target = torch.randint(config.vocab_size, (2, length), generator=generator)
    target[:, 0] = config.decoder_start_token_id or 0
    mask = torch.ones_like(source)
    mask[1, length // 2 :] = 0
    return {
        "input_ids": source,
        "attention_mask": mask,
        "decoder_input_ids": target,
        "decoder_attention_mask": mask.clone(),
    }


@torch.no_grad()
def logits_of(model: VanillaTransformerForConditionalGeneration, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Logits (B, T, V) of a batch, or the first output of a model without a head, as float64."""
    options = {"use_cache": False} if model.config.is_encoder_decoder else {}
    return model(**batch, **options)[0].double()


def compare_with_toolkit(model: Any, toolkit: Any, batch: dict[str, torch.Tensor]) -> tuple[float, int]:
    """Largest difference between the model's outputs and those of transformers' own, and the number of tokens."""
    # In float32, in units of the largest output where that is above 1.
    mask = batch.get("attention_mask")
    real = torch.ones_like(batch["decoder_input_ids"], dtype=torch.bool) if mask is None else mask.bool()
    exact = model if model.dtype == torch.float32 else copy.deepcopy(model).float()
    found, expected = logits_of(exact, batch), logits_of(toolkit.eval(), batch)
    if found.dim() == 3:
        found, expected = found[real], expected[real]
    return (found - expected).abs().max().item() / max(1.0, expected.abs().max().item()), int(real.sum())


def try_processor(processor: Any) -> list[Any]:
    """What `try_tokenizer` finds of its tokenizer, and the frames of a tone."""
    extractor = processor.feature_extractor
    tone = np.sin(np.arange(extractor.sampling_rate // 2) / 20)
    features = extractor(tone, sampling_rate=extractor.sampling_rate, return_tensors="np")
    return [*try_tokenizer(processor.tokenizer), features["input_features"].tolist()]


def try_tokenizer(tokenizer: Any) -> list[list[int] | str]:
    """The ids of some texts as source and as target, which are also decoded; or the error of one."""
    # A toolkit whose vocabulary has no unknown word fails on new words, too; a tokenizer of a damaged model may panic.
    found: list[list[int] | str] = []
    for text, side in itertools.product(TEXTS, ("text", "text_target")):
        try:
            ids = tokenizer(**{side: text})["input_ids"]
            tokenizer.decode(ids)
            found.append(ids)
        except Exception as error:
            found.append(str(error))
        except BaseException as error:
            if not is_failure(error):
                raise
            raise ConversionError(f"the tokenizer panics on {text!r}: {error}; its model is damaged") from error
    return found
