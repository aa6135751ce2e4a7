"""What the page shows first of a model: the example of its card, its languages and its corpus."""

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import hf_hub_download, metadata_load

from ..common.hub_waits import bounded_waits
from ..common.opening import DAMAGE, HUB_TIMEOUT
from ..common.settings import read_text
from ..publishing.model_card import CardFacts


CARD = "README.md"
# How the template of cards calls a model: the example is the first string, "..." where there was none.
CALL = re.compile(r'^(?:batch = tokenizer\(\[|print\(pipeline\(.*\)\()("(?:[^"\\]|\\.)*")', re.MULTILINE)


@dataclass(frozen=True)
class Card:
    """What a card says; empty where it says nothing."""

    example: str = ""
    languages: tuple[str, ...] = ()  # The source's and the target's, or those of text without pairs
    corpus: str = ""
    pairs: int | None = None


def card_of(name: str | os.PathLike) -> Card:
    """The card of a saved folder or a Hub repository; empty if it cannot be read: a model opens without it."""
    facts = CardFacts()
    with suppress(*DAMAGE), bounded_waits():
        folder = Path(name)
        facts = CardFacts.read(folder) if folder.is_dir() else facts
        example, pair = facts.example or "", (facts.source_lang, facts.target_lang)
        languages = [str(one) for one in (pair if all(pair) else facts.languages)]
        if not example:
            if not folder.is_dir():
                folder = Path(hf_hub_download(str(name), CARD, etag_timeout=HUB_TIMEOUT)).parent
            if (folder / CARD).is_file() and (call := CALL.search(read_text(folder / CARD))):
                example = "" if call[1] == '"..."' else str(json.loads(call[1]))
                found = (metadata_load(folder / CARD) or {}).get("language") or []
                languages = languages or [str(one) for one in ([found] if isinstance(found, str) else found)]
        return Card(example, tuple(languages), facts.corpus or "", facts.pairs)
    return Card()
