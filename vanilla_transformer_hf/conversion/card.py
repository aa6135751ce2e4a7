"""The model card of a converted model: where its weights come from, and what was measured."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from transformers import GenerationConfig


TEMPLATE = Path(__file__).with_name("card_template.md")

HOST_FIELDS = ("tie_word_embeddings", "is_encoder_decoder", "use_cache")

# What of a generation config a reader of the card wants to know.
DECODING = ("num_beams", "length_penalty", "early_stopping", "max_new_tokens", "max_length")


@dataclass
class SourceFile:
    """A file that was read, so that a reader can tell whether it is the one they have."""

    name: str
    size: int
    sha256: str


def describe_file(path: Path) -> SourceFile:
    """Name, size in bytes, and SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return SourceFile(path.name, path.stat().st_size, digest.hexdigest())


def make_card(
    done: Any, title: str, command: str, files: list[SourceFile], generation: GenerationConfig, tokenizer: Any
) -> ModelCard:
    """The card of a `Conversion`; `tokenizer` is None where the source had none."""
    config = done.config
    names = [getattr(tokenizer, side, None) for side in ("src_lang", "tgt_lang")]
    languages = [name for name in names if isinstance(name, str)]
    data = ModelCardData(
        # The Hub knows codes, not every name that a toolkit's user may have chosen.
        language=[name for name in languages if re.fullmatch(r"[a-z]{2,3}", name)] or None,
        library_name="transformers",
        pipeline_tag="translation",
        tags=[config.model_type, done.source],
    )
    fields = {name: getattr(config, name) for name in type(config).__annotations__ if not name.endswith("_id")}
    settings = {name: getattr(generation, name, None) for name in DECODING}
    return ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        done=done,
        title=title,
        command=command,
        files=files,
        direction=" to ".join(languages) if len(languages) == 2 else "text",
        languages=languages,
        tokenizer=tokenizer is not None,
        generation=", ".join(f"{name} {value}" for name, value in settings.items() if value is not None) or "greedy",
        architecture={name: value for name, value in fields.items() if value is not None and name not in HOST_FIELDS},
    )
