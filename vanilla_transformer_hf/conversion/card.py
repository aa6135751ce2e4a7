"""What the card of a converted model says: where its weights come from, and what was measured."""

import hashlib
from pathlib import Path
from typing import Any

from ..publishing.model_card import CardFacts, ConversionFacts, SourceFile


def describe_file(path: Path) -> SourceFile:
    """Name, size in bytes, and SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return SourceFile(path.name, path.stat().st_size, digest.hexdigest())


def card_facts(done: Any, name: str, command: str, files: list[SourceFile]) -> CardFacts:
    """What is known of a `Conversion` that `command` made."""
    facts = ConversionFacts(
        done.source, command, files, done.reopened, done.reference, done.reference_tokens, done.greedy, done.notes
    )
    return CardFacts(name=name, conversion=facts)
