"""The page in the cell of a notebook: `explore(model, tokenizer, text)`, or `audio=` or `image=` for the text."""

import os
import re
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

from ..common.files import write_text
from .explorer import Explorer, subject_of
from .file_sources import FileSubject
from .page import page_file, page_of
from .requests import RequestError, shown
from .subject import Subject


# Maximum count of numbers of heads, or of tensors, in a cell: 10 MB at most in a notebook's file.
MOST_IN_A_CELL = 1_000_000
# What the page can be asked to show, as fields of its address.
SETTINGS = ("num_beams", "length_penalty", "length_penalty_type", "max_new_tokens", "target_lang",
            "draws", "seed", "temperature", "top_k", "top_p")  # fmt: skip
# What a model reads -> the argument that has it.
ARGUMENTS = {"text": "text", "speech": "audio", "image": "image"}
# Its scripts run, and may offer a picture as a download; the notebook itself is out of their reach.
FRAME = (
    '<iframe title="{title}" sandbox="allow-scripts allow-downloads" '
    "style=\"width: 100%; height: {height}px; border: 1px solid #8888; resize: vertical\" srcdoc='{page}'></iframe>"
)


@dataclass(frozen=True, repr=False)
class CellPage:
    """A page about one translation. A notebook shows it where it is the last value of a cell, or by `display`."""

    text: str  # the sentence, or the name of the recording or image
    page: str  # the page, an HTML document that loads nothing
    height: int  # of its frame in the notebook, in pixels

    def save(self, path: str | os.PathLike) -> Path:
        """Write the page to a file, which opens in a browser without a server."""
        write_text(path, self.page)
        return Path(path)

    def _repr_html_(self) -> str:
        # The page has many double quotes and few single ones: the attribute stands between the latter.
        page = self.page.replace("&", "&amp;").replace("'", "&#39;")
        return FRAME.format(title=escape(f"Model explorer: {self.text}"), height=self.height, page=page)

    def __repr__(self) -> str:
        size = len(self.page.encode()) / 1e6
        return f"<a page of {size:.1f} MB: a notebook shows it in its cell; .save('page.html') writes it to a file>"


def explore(
    model: Any,
    tokenizer: Any,
    text: str | None = None,
    *,
    audio: Any = None,
    image: Any = None,
    view: str = "translate",
    height: int = 720,
    theme: Literal["light", "dark"] | None = None,
    **settings: Any,
) -> CellPage:
    """
    Show every number of a translation in the cell of a notebook: the explorer's page with this sentence, recording or
    image. It loads nothing from the network, and a saved notebook still has it. The model itself is not changed.

    Args:
        model: An encoder–decoder, a language model or a masked one, on any device.
        tokenizer: Its tokenizer; of a model that reads recordings or images, its processor.
        text: The sentence.
        audio: Instead of a text, the path of a recording, or samples (N) with their rate, as transformers' pipelines
            take them: `{"raw": samples, "sampling_rate": 8000}`.
        image: Instead of a text, the path of an image, or a PIL image.
        view: What is shown first: "translate", "tour", "attention", "head", "walk" or another view.
        height: Of the frame, in pixels.
        theme: Colours; None follows the browser's.
        settings: Of the search, or of draws: `num_beams`, `length_penalty`, `length_penalty_type`, `max_new_tokens`,
            `target_lang`, `draws`, `seed`, `temperature`, `top_k`, `top_p`.

    Returns:
        The page. A notebook shows it where it is the last value of a cell, or by `display`; anywhere else `save(path)`
        writes it to a file.

    Raises:
        OSError: A file cannot be read.
        ValueError: The model does not predict tokens; or the text, the file, a setting, the view or the theme cannot
            be used, which the message names.

    Example:

    ```python
    >>> from vanilla_transformer_hf import Translator, explore
    >>> translator = Translator.from_pretrained("model_cards/multi30k_raw_en_de")
    >>> explore(translator.model, translator.tokenizer, "Two dogs are playing.", num_beams=4)
    <a page of ... MB: a notebook shows it in its cell; .save('page.html') writes it to a file>

    ```
    """
    # A cell watches no run: its view has another row.
    views = re.findall(r'name: "(\w+)", draw: \w+, needsOurs', str(page_file("views.js")))
    if view not in views:
        raise RequestError("view", f"{view!r} is not one: expected one of {', '.join(views)}")
    if theme not in (None, "light", "dark"):
        raise RequestError("theme", f"{theme!r} is not one: expected light, dark or None")
    for name in settings.keys() - {*SETTINGS}:
        raise RequestError(shown(name), f"is not a setting of the page: expected one of {', '.join(SETTINGS)}")
    given = {name: value for name, value in settings.items() if value is not None}
    name = Path(getattr(model, "name_or_path", "") or type(model).__name__).name
    was_training = model.training
    try:
        subject = subject_of(name, model, tokenizer)
        shown_text = _open_source(subject, {"text": text, "audio": audio, "image": image})
        page = page_of(Explorer([subject]), shown_text, given, view=view, theme=theme, most_numbers=MOST_IN_A_CELL)
    finally:
        model.train(was_training)
    return CellPage(shown_text, page, height)


def _open_source(subject: Subject, sources: dict[str, Any]) -> str:
    """The sentence, or the name of the file that was opened."""
    given = [name for name, source in sources.items() if source is not None]
    if len(given) != 1:
        raise RequestError("text", f"give one of text, audio and image: got {' and '.join(given) or 'none'}")
    wanted = ARGUMENTS[subject.reads]
    if given != [wanted]:
        raise RequestError(given[0], f"{subject.name} reads {subject.reads}: give {wanted}")
    if isinstance(subject, FileSubject):
        return subject.open_given(sources[wanted])
    text: str = sources[wanted]
    return text
