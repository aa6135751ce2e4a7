"""Text of one or several languages, as pairs of a text, with the tag of its language if there are tags, and itself."""

import os
from collections.abc import Iterator
from typing import Any

from ...common.lines import read_lines
from ...common.opening import open_tokenizer
from ...translation.text.texts import TARGET_LANG_TAGS
from ..data.column_names import SIDES
from ..data.corpus import from_rows, iterate_rows
from ..data.corpus_files import holds_both_sides
from ..data.parts import ROLES
from ..recipe import RunArguments


def text_rows(where: str, texts: list[tuple[str, list[str], dict[str, Any] | None]]) -> Iterator[dict[str, str]]:
    """
    Each text as both sides of a pair, its tag before the source; `where` names the text in messages.

    `texts` has for each file its path, the tags of its texts (two of pairs), and for pairs the arguments of
    `iterate_rows`.
    """
    for path, tags, pairs in texts:
        if pairs is None:
            for line in read_lines(path):
                yield {"source": tags[0] + line, "target": line}
            continue
        for row in iterate_rows(path, **pairs):
            if not isinstance(row, str):  # the reason why a unit is not a pair
                for tag, side in zip(tags, SIDES):
                    yield {"source": tag + row[side], "target": row[side]}


def tag_of(language: str | None, tags: dict[str, str], path: str) -> str:
    """The tag before the texts of a language; empty if there are no tags."""
    if not tags:
        return ""
    if language not in tags:
        raise ValueError(
            f"the language of {path} is {language or 'not given'}: expected one of {', '.join(tags)}, for which the "
            "tokenizer has tags; set text_langs, or for a file of pairs source_lang and target_lang."
        )
    return tags[language]


def load_texts(run: RunArguments) -> dict[str, Any]:
    """The named text of a run by role (train, validation, test), as `load_corpora` gives pairs."""
    arguments = run.data
    tags = {language: f"<2{language}>" for language in arguments.target_lang_tags or ()}
    if name := run.model.tokenizer_from:
        tags = open_tokenizer(name).init_kwargs.get(TARGET_LANG_TAGS) or {}
    found, given = {}, arguments.text_langs or []
    both = (arguments.source_lang, arguments.target_lang)
    pairs = {f"{side}_{kind}": getattr(arguments, f"{side}_{kind}") for side in SIDES for kind in ("lang", "column")}
    for role in ROLES:
        paths = getattr(arguments, f"{role}_text")
        if not paths:
            continue
        for path in paths:
            if not os.path.exists(path):
                raise FileNotFoundError(f"{path}: no such file.")
        plain = [path for path in paths if not (os.path.isdir(path) or holds_both_sides(path))]
        if given and len(given) != len(plain):
            raise ValueError(
                f"text_langs={' '.join(given)}: {len(given)} languages, but {role}_text names {len(plain)} plain-text "
                "files; name one for each, in their order."
            )
        languages, split = dict(zip(plain, given)), getattr(arguments, f"{role}_split")
        texts = [
            (path, [tag_of(languages.get(path), tags, path)], None)
            if path in plain
            else (path, [tag_of(each, tags, path) for each in both], {**pairs, "split": split})
            for path in paths
        ]
        streams = arguments.streaming and role == "train"
        found[role] = from_rows(text_rows, paths, streams, where=", ".join(paths), texts=texts)
    return found
