"""What a run knows of itself before it begins, for the card of its model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..publishing.model_card import NOT_TRAINED, TRAINED, CardFacts, public_settings
from .data.parts import corpus_parts
from .machine import describe_hardware
from .recipe import RunArguments


def facts_of_run(
    run: RunArguments,
    settings: dict[str, Any],
    folder: Path,
    pairs: int | None,
    origin: Sequence[str] = (),
    mixture: Sequence[str] = (),
) -> CardFacts:
    """
    The facts for the card of a run's model.

    Args:
        run: The arguments of the run.
        settings: The settings that the card lists.
        folder: The folder of the model, which names it.
        pairs: The number of sentence pairs, or of texts; None of a stream.
        origin: Sentences about the weights that the model began with.
        mixture: Sentences about the corpora of an epoch, if there are several.
    """
    data, model = run.data, run.model.model_name_or_path
    parts = corpus_parts(data)
    texts = {name: str(part.train_source) for name, part in parts.items() if part.train_source}
    names, sources = (list(texts), list(texts.values())) if parts else ([], [str(data.train_source)])
    targets = {part.target_lang for part in parts.values() or [data]}
    # Pruning and distillation, from the card of the model that is trained further.
    compression = CardFacts.read(Path(model)).compression if model is not None and Path(model).is_dir() else []
    return CardFacts(
        name=folder.resolve().name,
        corpus=data.corpus_name or ", ".join(names) or Path(sources[0]).name,
        pairs=pairs,
        datasets=[source for source in dict.fromkeys(sources) if not Path(source).exists()],
        source_lang=data.source_lang,
        target_lang=targets.pop() if len(targets) == 1 else None,
        mixture=list(mixture),
        license=run.model.license,
        # A local folder has no name that others could look up.
        base_model=None if model is None or Path(model).exists() else model,
        further=model is not None,
        origin=list(origin),
        compression=[sentence.replace(NOT_TRAINED, TRAINED) for sentence in compression],
        example=run.model.card_example,
        project_url=run.model.project_url,
        settings=public_settings(settings),
        device=describe_hardware(run.training),
    )
