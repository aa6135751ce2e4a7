"""A translation memory: texts that are translated already, as they are or nearly."""

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from ...common.corpus_files import read_pairs
from ...common.white_space import normalize_space
from ..results import NearMatch
from ..text.texts import has_letters
from .inline import Piece, Text
from .variables import PROSE, signs_of, without_variables


MOST_PAIRS, MOST_CHARACTERS = 1_000_000, 2**28
# Of near matches: how alike they are at least, from 0 to 1, and characters of the longest text that has some.
LEAST_SIMILARITY, LONGEST_NEAR = 0.7, 1000
# Texts that one is compared with: so that this takes some hundredths of a second in a memory of any size.
MOST_COMPARED = 100_000


class Memory:
    """Translations of texts. White space at the edges and its kind do not count; of equal texts the last does."""

    # Texts of documents reach the model without their variables, which are put back where those of all translations
    # are; so a text with variables is found without them, too. `digest` is the SHA-256 of the pairs.

    def __init__(self, pairs: Iterable[tuple[str, str]]):
        self._pairs, self._bare, digest, characters = dict[str, str](), dict[str, str](), hashlib.sha256(), 0
        for source, target in pairs:
            source, target = normalize_space(source), normalize_space(target)
            if not source or not target:
                continue
            digest.update(f"{source}\0{target}\0".encode("utf-8", "surrogatepass"))
            characters += len(source) + len(target)
            self._pairs[source] = target
            if len(self._pairs) > MOST_PAIRS or characters > MOST_CHARACTERS:
                raise ValueError(
                    f"more than {MOST_PAIRS:,} texts or {MOST_CHARACTERS:,} characters; at most so many are read."
                )
            bare = _bare(source)
            if bare != source and has_letters(bare):
                self._bare[bare] = _bare(target)
        self.digest, self._by_length = digest.hexdigest(), list[str]()

    @classmethod
    def read(cls, path: str, languages: tuple[str | None, str | None] = (None, None)) -> "Memory":
        """The memory of a file with both sides: TMX, or another that holds pairs, such as .tsv."""
        # Codes of source and target are for files with several languages.
        try:
            return cls(read_pairs(path, languages))
        except ValueError as error:
            raise ValueError(f"{error}" if f"{error}".startswith(path) else f"{path}: {error}") from error

    def get(self, text: str) -> str | None:
        """The translation of a text, if the memory has it."""
        key = normalize_space(text)
        return self._pairs.get(key, self._bare.get(key))

    def near(self, text: str, most: int = 3) -> list[NearMatch]:
        """The most similar texts, best first, by characters that stay (Levenshtein); none of long and known ones."""
        key = normalize_space(text)
        if not key or len(key) > LONGEST_NEAR or self.get(key) is not None:
            return []
        try:
            from rapidfuzz import process
            from rapidfuzz.distance import Levenshtein
        except ModuleNotFoundError as error:
            raise ValueError(
                "rapidfuzz, which finds near matches, is not installed: pip install 'vanilla_transformer_hf[formats]'"
            ) from error
        if not self._by_length:
            self._by_length = sorted(self._pairs, key=len)
        # The similarity is at most that of the lengths; of too many texts, those of the nearest lengths.
        first = bisect_left(self._by_length, LEAST_SIMILARITY * len(key), key=len)
        last = bisect_right(self._by_length, len(key) / LEAST_SIMILARITY, key=len)
        middle = bisect_left(self._by_length, len(key), key=len)
        first, last = max(first, middle - MOST_COMPARED // 2), min(last, middle + MOST_COMPARED // 2)
        found = process.extract(
            key,
            self._by_length[first:last],
            scorer=Levenshtein.normalized_similarity,
            score_cutoff=LEAST_SIMILARITY,
            limit=most,
        )
        return [NearMatch(source, self._pairs[source], round(score, 3)) for source, score, _ in found]


def _bare(text: str) -> str:
    """What the model reads of a text with variables, as of one in a document; the text itself where it is several."""
    if not any(sign in text for sign in signs_of(PROSE)):
        return text
    sentences = Text(without_variables([Piece("text", text)], PROSE)).sentences
    return sentences[0].text if len(sentences) == 1 else text
