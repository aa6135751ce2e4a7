"""The sentence that the page shows first: the example of a model's card."""

import json
import os
import re
from contextlib import suppress
from pathlib import Path

from huggingface_hub import hf_hub_download

from ..common.hub_waits import bounded_waits
from ..common.opening import DAMAGE, HUB_TIMEOUT
from ..common.settings import read_text
from ..publishing.model_card import CardFacts


CARD = "README.md"
# How the template of cards calls a model: the example is the first string, "..." where there was none.
CALL = re.compile(r'^(?:batch = tokenizer\(\[|print\(pipeline\(.*\)\()("(?:[^"\\]|\\.)*")', re.MULTILINE)


def example_of(name: str | os.PathLike) -> str:
    """
    The example of a saved folder's or a Hub repository's card. Empty if it has none, or if it cannot be read: a model
    opens without its card.
    """
    with suppress(*DAMAGE), bounded_waits():
        folder = Path(name)
        if folder.is_dir() and (found := CardFacts.read(folder).example):
            return found
        if not folder.is_dir():
            folder = Path(hf_hub_download(str(name), CARD, etag_timeout=HUB_TIMEOUT)).parent
        if call := CALL.search(read_text(folder / CARD)):
            return "" if (found := json.loads(call[1])) == "..." else str(found)
    return ""
