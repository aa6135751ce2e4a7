"""The search of the documentation site: what mkdocs-material does with lunr.js, by lunr's port to Python."""

import re
from collections.abc import Iterable
from typing import Any

from lunr.builder import Builder
from lunr.pipeline import Pipeline
from lunr.stop_word_filter import WORDS, stop_word_filter


class SiteSearch:
    """
    Finds sections of `search_index.json` and tells their pages, as the site lists them.

    Args:
        content: The file.
    """

    def __init__(self, content: dict[str, Any]):
        config = content["config"]
        assert config["lang"] == ["en"] and config["pipeline"] == ["stopWordFilter"], "what is built here"
        self._separator = re.compile(config["separator"])
        builder = Builder()
        builder.ref("location")
        builder.b(0)
        builder.pipeline = Pipeline()
        builder.pipeline.add(stop_word_filter)
        for name, settings in config["fields"].items():
            builder.field(name, boost=settings["boost"])
        for section in content["docs"]:
            words = {name: self._words(re.sub("<[^>]+>", " ", section.get(name, ""))) for name in config["fields"]}
            builder.add({"location": section["location"], **words}, {"boost": section.get("boost", 1)})
        self._index = builder.build()

    def _words(self, text: str) -> list[str]:
        return [word for word in self._separator.split(text.lower()) if word]

    def pages(self, query: str) -> list[str]:
        """The addresses of the pages that are shown, best first. Each word may be the beginning of one."""
        words, best = self._words(query), dict[str, float]()
        for found in self._index.search(" ".join(f"{word}*" for word in words)):
            page, _, section = found["ref"].partition("#")
            share = _share(words, found["match_data"].metadata)
            best[page] = max(best.get(page, 0), found["score"] * (1 + ((not section) + share) ** 2))
        return sorted(best, key=lambda page: -best[page])


def _share(words: list[str], terms: Iterable[str]) -> float:
    """The share of the words that were found; words such as "of" are no loss."""
    found = {word: any(term.startswith(word) for term in terms) for word in words}
    counted = [is_found for word, is_found in found.items() if is_found or word not in WORDS]
    return sum(counted) / len(counted)
