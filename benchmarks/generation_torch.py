"""The engines of the benchmark that run on torch: our model with our search and with transformers', and MarianMT."""

from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel

from .generation_engine import Searcher, forget_peak
from .turns import allocated_memory, peak_memory


# The dtypes in which every model on torch runs.
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def make_searcher(model: PreTrainedModel, settings: dict[str, Any], streams: bool = False, **options: Any) -> Searcher:
    """
    `generate()` or `generate_stream()` of a model, with transformers' defaults for everything that is neither measured
    nor among the options of its generation config.
    """
    device = torch.device(settings["device"])
    model = model.eval().to(device)
    quantized = {} if settings["dtype"] in DTYPES else {"quantization": settings["dtype"]}
    special = {
        name: getattr(model.config, name) for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id")
    }

    def configure(beams: int, new_tokens: int, others: dict[str, Any]) -> None:
        found = {**special, **options, **others, "num_beams": beams, "max_new_tokens": new_tokens}
        model.generation_config = GenerationConfig(**found)

    def prepare(batch: list[list[int]]) -> dict[str, torch.Tensor]:
        rows = [torch.tensor(row) for row in batch]
        pad = special["pad_token_id"]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
        lengths = torch.tensor([[len(row)] for row in batch])
        mask = (torch.arange(padded.shape[1]) < lengths).long()
        return {"input_ids": padded.to(device), "attention_mask": mask.to(device)}

    def search(batches: list[dict[str, torch.Tensor]]) -> list[Any]:
        torch.manual_seed(0)  # of samples
        if streams:
            outputs = model.generate_stream(batches, **quantized)  # type: ignore
        else:
            outputs = (model.generate(**batch) for batch in batches)  # type: ignore
        found = list(outputs)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return found

    def ids(output: Any) -> list[list[int]]:
        ends = (special["eos_token_id"], special["pad_token_id"])
        rows = [row[1:] for row in getattr(output, "sequences", output).tolist()]
        return [row[: next((at for at, index in enumerate(row) if index in ends), None)] for row in rows]

    if device.type == "cuda":
        return Searcher(
            configure,
            prepare,
            search,
            ids,
            lambda: torch.cuda.reset_peak_memory_stats(device),
            allocated_memory,
        )
    return Searcher(configure, prepare, search, ids, forget_peak, peak_memory)


def set_matmul(fp32_precision: str | None) -> None:
    """Set a value of `common.matmul.MATMULS` without importing this package, so that MarianMT's memory does not
    include it."""
    if fp32_precision is not None:
        torch.backends.mkldnn.matmul.fp32_precision = fp32_precision  # type: ignore[attr-defined]


def open_our_weights(model_class: Any, settings: dict[str, Any], streams: bool = False, **options: Any) -> Searcher:
    set_matmul(settings["fp32_precision"])
    model = model_class.from_pretrained(settings["folder"], dtype=DTYPES.get(settings["dtype"], torch.float32))
    return make_searcher(model, settings, streams, **options)


def open_ours(settings: dict[str, Any]) -> Searcher:
    from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration

    return open_our_weights(VanillaTransformerForConditionalGeneration, settings, streams=True)


def open_batch_by_batch(settings: dict[str, Any]) -> Searcher:
    from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration

    return open_our_weights(VanillaTransformerForConditionalGeneration, settings)


def host_search_class() -> Any:
    """Our model with transformers' search instead of ours."""
    from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration

    theirs = {name: value for name, value in vars(GenerationMixin).items() if not name.startswith("__")}
    return type("HostSearch", (VanillaTransformerForConditionalGeneration,), theirs)


def open_host_search(settings: dict[str, Any]) -> Searcher:
    return open_our_weights(host_search_class(), settings)


def open_static(settings: dict[str, Any]) -> Searcher:
    """Ours with transformers' static cache, for which transformers' loops run, compiled on a GPU."""
    from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration

    return open_our_weights(VanillaTransformerForConditionalGeneration, settings, cache_implementation="static")


def open_marian(settings: dict[str, Any], **options: Any) -> Searcher:
    from transformers import MarianMTModel

    set_matmul(settings["fp32_precision"])
    model = MarianMTModel.from_pretrained(settings["folder"], dtype=DTYPES[settings["dtype"]])
    return make_searcher(model, settings, **options)


def open_marian_static(settings: dict[str, Any]) -> Searcher:
    return open_marian(settings, cache_implementation="static")
