"""Terms of a glossary, found in texts in time that grows with their length alone."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from unicodedata import category

from ...common.column_names import MissingColumnError, find_columns
from ...common.corpus_files import UNKNOWN_LANGUAGES, kind_of, read_pairs
from ...common.unit_files import elements, text_of
from ...common.white_space import normalize_space


# A word, a mark, or a character of scripts without spaces: Thai, Lao, Burmese, Khmer, Japanese, Chinese.
_NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
WORD = re.compile(rf"[{_NO_SPACES}]|[^\W{_NO_SPACES}]+|[^\w\s]")
MOST_TERMS, MOST_WORDS = 100_000, 32
# Most terms that one sentence's translation must contain; others are reported as missing.
MOST_OF_SENTENCE = 32
# Between forms of a term, such as its plural; key of the terms that end at a node of the tree.
FORMS, END = "|", ""
LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
# Ends of the states of TBX terms that nobody shall use, and of one that is better than others.
DEPRECATED, PREFERRED = ("deprecatedTerm-admn-sts", "supersededTerm-admn-sts"), "preferredTerm-admn-sts"

Languages = tuple[str | None, str | None]


class Term(NamedTuple):
    """A form of a term, and what its translation contains."""

    source: str
    target: str


class Glossary:
    """Terms, found as whole words in any case, with their translations; of those at one word the longest counts."""

    # One with a capital behind its first character, such as "IT", is found only as it is written. `forms` separates
    # forms of either side, such as the plural in ("dog|dogs", "Hund|Hunde"): the n-th form is translated by the n-th,
    # or each by the only one; None: a pair is one form. `digest` is the SHA-256 of the terms.

    def __init__(self, terms: Iterable[tuple[str, str]], forms: str | None = FORMS):
        self._tree, self._count, digest = dict[str, Any](), 0, hashlib.sha256()
        for source, target in terms:
            digest.update(f"{source}\0{target}\0".encode("utf-8", "surrogatepass"))
            sides = (side.split(forms) if forms else [side] for side in (source, target))
            names, translations = ([*map(normalize_space, side)] for side in sides)
            if len(translations) == 1:
                translations *= len(names)
            if len(names) != len(translations):
                raise ValueError(
                    f"{source[:60]!r} has {len(names)} forms and {target[:60]!r} {len(translations)}: expected as "
                    "many, or one translation."
                )
            for term in map(Term, names, translations):
                self._add(term)
        self.digest = digest.hexdigest()

    @classmethod
    def read(cls, path: str, languages: Languages = (None, None)) -> "Glossary":
        """The glossary of a file: TBX, or a table of terms and translations, such as .tsv."""
        # Codes of source and target are for files with several languages.
        try:
            is_tbx = kind_of(path) == ".tbx"
            return cls(_tbx_terms(path, languages), forms=None) if is_tbx else cls(read_pairs(path, languages))
        except ValueError as error:
            raise ValueError(f"{error}" if f"{error}".startswith(path) else f"{path}: {error}") from error

    def _add(self, term: Term) -> None:
        words, node = WORD.findall(term.source), self._tree
        if not words or not term.target:
            raise ValueError(f"{term.source[:60]!r}, translated as {term.target[:60]!r}, is no term: a side is empty.")
        if len(words) > MOST_WORDS:
            raise ValueError(f"{term.source[:60]!r} has {len(words)} words: a term has at most {MOST_WORDS}.")
        self._count += 1
        if self._count > MOST_TERMS:
            raise ValueError(f"more than {MOST_TERMS:,} terms; at most so many are read.")
        for word in words:
            node = node.setdefault(word.casefold(), {})
        # By how it is written, or "" for any other case: of terms that are equal, the last counts.
        node = node.setdefault(END, {})
        node[tuple(words)] = term
        if not any(map(str.isupper, term.source[1:])):
            node[END] = term

    def find(self, text: str) -> list[Term]:
        """The terms in a text, each once."""
        words = [*WORD.finditer(text)]
        found, place = dict[Term, None](), 0
        while place < len(words):
            node, best, following = self._tree, None, place + 1
            for last in range(place, min(place + MOST_WORDS, len(words))):
                node = node.get(words[last][0].casefold(), {})
                if not node:
                    break
                end = words[last].end()
                is_inside = category(text[end : end + 1] or " ").startswith("M")  # of a letter, before its marks
                if END in node and not is_inside:
                    written = tuple(word[0] for word in words[place : last + 1])
                    if term := node[END].get(written, node[END].get(END)):
                        best, following = term, last + 1
            if best is not None:
                found[best] = None
            place = following
        return [*found]


def _tbx_terms(path: str, languages: Languages) -> Iterator[tuple[str, str]]:
    """The terms of a TBX file, of both versions: of each concept all of the source with the best one of the target."""
    known, has_both = dict[str, None](), False
    for name, concept in elements(path, ("martif", "tbx"), ("termEntry", "conceptEntry")):
        if name in ("martif", "tbx"):
            continue
        terms = dict[str, list[str]]()
        for section in concept.iterchildren("{*}langSet", "{*}langSec"):
            language, best = section.get(LANGUAGE) or "", list[str]()
            for group in dict.fromkeys(term.getparent() for term in section.iterdescendants("{*}term")):
                states = {each.text for each in group.iterdescendants("{*}termNote")}
                for term in group.iterchildren("{*}term") if not states & {*DEPRECATED} else ():
                    if text := text_of(path, term).strip():
                        best.insert(0 if PREFERRED in states else len(best), text)
            terms.setdefault(language, []).extend(best)
        known |= dict.fromkeys(terms)
        if len(known) > 1000:
            raise ValueError(f"{path}, line {concept.sourceline}: more than a thousand languages.")
        if None in languages:
            raise ValueError(f"{path}: terms in {', '.join(known)}. {UNKNOWN_LANGUAGES}")
        try:
            source, target = find_columns(path, [*terms], tuple((str(code),) for code in languages))
        except MissingColumnError:
            continue
        has_both = True
        if terms[source] and terms[target]:
            yield from ((each, terms[target][0]) for each in terms[source])
    if known and not has_both:
        wanted = " and ".join(map(str, languages))
        raise ValueError(f"{path}: no concept has terms in {wanted}; its languages are {', '.join(known)}.")
