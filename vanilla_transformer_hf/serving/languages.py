"""Languages of the served models: their English names, and which of them a text is in."""

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import Any

import langcodes

from ..common.languages import lingua_languages


# Characters of the texts of a request that are enough to identify their language.
ENOUGH = 2000


def english_name(code: str) -> str:
    """The English name of a language, such as "German" for "de"; the code itself if it is not one of BCP 47."""
    language = _language(code)
    return code if language is None else language.display_name("en")


def _language(code: str) -> langcodes.Language | None:
    try:
        language = langcodes.Language.get(code)
    except ValueError:
        return None
    return language if language.is_valid() else None


class LanguageDetector:
    """Which served language texts are in, by lingua (extra `detect`), which reads its models with the first text."""

    def __init__(self, sources: Iterable[str], targets: Iterable[str]):
        self._sources = [*dict.fromkeys(sources)]
        self._codes = [*dict.fromkeys([*self._sources, *targets])]

    def detect(self, texts: Sequence[str], among: Collection[str] | None = None) -> list[tuple[str, float]]:
        """Codes of languages, all or some `among` them, and confidences (0 to 100) among all, likeliest first."""
        # They are 0 where the texts do not show the language.
        likely = self._likely("\n".join(texts)[:ENOUGH])
        found = [(code, value) for code, value in likely if among is None or code in among]
        if found:
            return found
        expected = [code for code in self._sources if among is None or code in among]
        if not expected or (len(expected) > 1 and self._detector is None):
            known = ", ".join(expected) or "none is known"
            raise ValueError(f"languages are not detected here: expected one of {known}; 'detect' is the extra for it")
        return [(expected[0], 0.0)]

    @property
    def can_compare(self) -> bool:
        """Whether languages can be told from each other: lingua is installed and supports two of them."""
        return self._detector is not None

    def _likely(self, text: str) -> list[tuple[str, float]]:
        """All served languages that the text may be in, the most likely first."""
        if self._detector is None:
            return []
        values = {each.language: each.value for each in self._detector.compute_language_confidence_values(text)}
        total = sum(values[language] for language in self._known.values())
        found = [
            (code, round(100 * values[language] / total, 1))
            for code, language in self._known.items()
            if values[language]
        ]
        return sorted(found, key=lambda each: -each[1])

    @cached_property
    def _known(self) -> dict[str, Any]:
        """The served languages that lingua supports; empty if it is not installed."""
        try:
            all_known = lingua_languages()
        except ModuleNotFoundError:
            return {}
        codes = {code: language.to_alpha3() for code in self._codes if (language := _language(code)) is not None}
        return {code: all_known[alpha3] for code, alpha3 in codes.items() if alpha3 in all_known}

    @cached_property
    def _detector(self) -> Any:
        """What compares languages; None if there are not two of them to compare."""
        languages = {*self._known.values()}
        if len(languages) < 2:
            return None
        import lingua

        return lingua.LanguageDetectorBuilder.from_languages(*languages).build()
