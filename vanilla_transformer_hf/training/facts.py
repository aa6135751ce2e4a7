"""The facts of a run that are known before it begins, for the card of its model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..publishing.model_card import NOT_TRAINED, TRAINED, CardFacts, public_settings
from .data.parts import corpus_parts
from .pretraining.denoising import DENOISING, NoisePlan
from .recipe import RunArguments


def facts_of_run(
    run: RunArguments,
    settings: dict[str, Any],
    folder: Path,
    pairs: int | None,
    origin: Sequence[str] = (),
    mixture: Sequence[str] = (),
) -> CardFacts:
    """The facts for the card of a run's model; `origin` and `mixture` are sentences, `pairs` is None of a stream."""
    data, model = run.data, run.model.model_name_or_path
    parts = corpus_parts(data)
    sources = [str(part.train_source) for part in parts.values() if part.train_source]
    names = data.train_text or sources or [str(data.train_source)]
    named = ", ".join(name for name, part in parts.items() if part.train_source)
    targets = {part.target_lang for part in parts.values() or [data]}
    # Pretraining, pruning and distillation, from the card of the model that is fine-tuned.
    known = CardFacts.read(Path(model)).inherited() if model is not None and Path(model).is_dir() else CardFacts()
    on_hub = [each for each in dict.fromkeys(names) if not Path(each).exists()]
    corpus = data.corpus_name or named or ", ".join(on_hub) or None  # a file is not named after its data set
    about = []
    if data.task == DENOISING:  # for the card, and for those of models that are made of this one
        text = " of ".join(each for each in (f"{pairs:,} texts" if pairs else "", corpus or "") if each) or "text"
        spoken = f" ({', '.join(data.text_langs)})" if data.text_langs else ""
        about = [f"Pretrained by denoising {text}{spoken}: {NoisePlan.of(data)}."]
    threads, training = torch.get_num_threads(), run.training
    device = f"{threads} CPU thread{'s' * (threads > 1)}"
    if training.device.type == "cuda":
        device = torch.cuda.get_device_name(training.device)
    return CardFacts(
        name=folder.resolve().name,
        task=data.task if data.task == DENOISING else None,
        languages=data.text_langs or [],
        corpus=corpus,
        pairs=pairs,
        datasets=on_hub,
        source_lang=data.source_lang,
        target_lang=targets.pop() if len(targets) == 1 else None,
        mixture=list(mixture),
        license=run.model.license,
        # A local folder has no name that others could look up.
        base_model=None if model is None or Path(model).exists() else model,
        further=model is not None,
        origin=[*origin, *about],
        quoted=[sentence.replace(NOT_TRAINED, TRAINED) for sentence in known.quoted],
        example=run.model.card_example,
        project_url=run.model.project_url,
        settings=public_settings(settings),
        device=device if training.world_size == 1 else f"{training.world_size} processes, {device} each",
    )
