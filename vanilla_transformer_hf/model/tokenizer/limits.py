"""
What the files of a tokenizer may hold.

One of a few KB can hang whoever opens it or reads a text with it: by steps that each double a text, by a pattern that
backtracks without end, by 100,000 special tokens. So a tokenizer is held to what training and conversion can make of
it, and to the other steps of the `tokenizers` library that take linear time.
"""

import base64
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Regex, normalizers

from .failures import is_failure


LARGEST_FILE = 256 * 2**20  # bytes
MOST_PIECES = 4_000_000  # those of merges between them included
MOST_ADDED = 10_000
LONGEST_PIECE = 1_000  # characters
LONGEST_PATTERN = 2**20
MOST_STEPS = 2_000  # of tensor2tensor's vocabularies, one for each character that they spell
MOST_OF_A_KIND = 2  # of steps that are not `REPEATED`
MOST_GROWTH = 64  # times as long as a text, of which Unicode itself takes 18
LONGEST_WORD = 10_000  # characters of WordPiece, whose time grows with their square
MOST_OF_TEMPLATE = 16
LARGEST_NUMBER = 2**24
MOST_REPEATS, MOST_OPTIONS = 1, 4  # in one alternative of a pattern
LONGEST_PROBE, LONGEST_TIME = 2**15, 1.0  # characters, seconds

KINDS_OF_MODEL = ("BPE", "WordPiece", "WordLevel", "Unigram")
KINDS = {
    "normalizer": "Sequence NFC NFD NFKC NFKD Nmt Lowercase Replace Prepend Precompiled Strip StripAccents ByteLevel "
    "BertNormalizer",
    "pre_tokenizer": "Sequence Metaspace Split ByteLevel WhitespaceSplit Whitespace Punctuation Digits "
    "BertPreTokenizer CharDelimiterSplit UnicodeScripts",
    "post_processor": "Sequence TemplateProcessing BertProcessing RobertaProcessing ByteLevel",
    "decoder": "Sequence ByteLevel Replace Strip Fuse BPEDecoder ByteFallback Metaspace WordPiece CTC",
}
REPEATED = ("Sequence", "Replace", "Split", "Strip")

# Parts of patterns with more: what Moses' list of abbreviations looks ahead for, in patterns that conversion writes,
# and the words of well-known tokenizers.
KNOWN_PARTS = (
    *(r"(?!(?=[^\s.]*+\.\S++(?<=\.))[^\s\p{Alpha}]*+\p{Alpha})", r"(?!\S+\.\s+\p{Lower})"),
    *(r"|\s*[\r\n]+", r"| ?[^\s\p{L}\p{N}]+[\r\n]*"),
)
PARTS_OF_PATTERN = re.compile(
    r"(?P<open>\((?:\?(?:[imx-]*:|<?[=!]|>))?)|(?P<close>\))|(?P<alternative>\|)"
    r"|(?P<repeat>[*+?]|\{\d*(?:,\d*)?\})(?P<mode>[?+]?)|(?P<back>\\[1-9gk])|\\[pP]\{[^}]*\}|\\.|(?P<set>\[)|.",
    re.DOTALL,
)


def check_files(files: Mapping[str, str | None]) -> None:
    """Check the files of a tokenizer, by transformers' names for them, before one of them is read."""
    # A `ValueError` that names file and part, if one has other or more parts than a tokenizer may have.
    for name in ("tokenizer_file", "source_tokenizer_file"):
        if file := files.get(name):
            check_tokenizer_file(file)
    for name in ("tokenizer_config_file", "special_tokens_map_file"):
        if file := files.get(name):
            check_added(file)


def check_tokenizer_file(path: str | os.PathLike) -> None:
    """A `ValueError` that names the part, if a `tokenizer.json` is larger, or has more parts, than it may have."""
    # Before the `tokenizers` library reads it. What is no JSON object is left to the library.
    content = _read(path)
    if not isinstance(content, dict):
        return
    try:
        _check(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except (TypeError, AttributeError, LookupError, RecursionError):
        return  # a part of the wrong type, which the library names
    except BaseException as error:
        if not is_failure(error):
            raise
        raise ValueError(f"{path}: the library cannot read it ({str(error).splitlines()[0]})") from error


def check_added(path: str | os.PathLike) -> None:
    """A `ValueError` if a file of settings of a tokenizer adds too many tokens."""
    content = _read(path)
    for name in ("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"):
        if isinstance(content, dict) and isinstance(value := content.get(name), (dict, list)):
            _at_most(f"{path}: the number of {name}", len(value), MOST_ADDED)


def _read(path: str | os.PathLike) -> Any:
    """The value of a JSON file; None if it is damaged."""
    if os.path.getsize(path) > LARGEST_FILE:
        raise ValueError(f"{path} is larger than the {LARGEST_FILE:,} bytes that such a file may have")
    with open(path, encoding="utf-8-sig") as file:
        try:
            return json.load(file)
        except (ValueError, RecursionError):
            return None


def _check(content: dict[str, Any]) -> None:
    _check_model(content.get("model") or {})
    added = content.get("added_tokens") or []
    _at_most("added_tokens", len(added), MOST_ADDED)
    for number, token in enumerate(added):
        _at_most(f"the length of added_tokens.{number}", len(token["content"]), LONGEST_PIECE)
    for name in ("padding", "truncation"):
        for field, value in _numbers(content.get(name), name):
            _at_most(field, value, LARGEST_NUMBER)
    for part, kinds in KINDS.items():
        steps = list(_steps(content.get(part)))
        _at_most(f"the number of steps of {part}", len(steps), MOST_STEPS)
        for step in steps:
            if step.get("type") not in kinds.split():
                raise ValueError(f"{part}: a step {step.get('type')!r}: expected one of {', '.join(kinds.split())}")
            _check_step(part, step)
        for kind, count in Counter(step["type"] for step in steps).items():
            if kind not in REPEATED:
                _at_most(f"{part}: the number of steps {kind}", count, MOST_OF_A_KIND)
        _check_growth(part, [step for step in steps if step["type"] == "Replace"])


def _at_most(what: str, found: float, most: float) -> None:
    if not found <= most:  # a NaN, too
        raise ValueError(f"{what} is {found:,}: expected at most {most:,}")


def _numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{name}.{key}")
    elif isinstance(value, (int, float)):
        yield name, value


def _check_model(model: dict[str, Any]) -> None:
    if (kind := model.get("type", "BPE")) not in KINDS_OF_MODEL:
        raise ValueError(f"a model {kind!r}: expected one of {', '.join(KINDS_OF_MODEL)}")
    pieces = model.get("vocab") or []
    _at_most("the number of pieces", len(pieces), MOST_PIECES)
    _at_most("the number of merges", len(model.get("merges") or []), MOST_PIECES)
    texts = pieces if isinstance(pieces, dict) else [piece[0] for piece in pieces]
    _at_most("the length of a piece", max(map(len, texts), default=0), LONGEST_PIECE)
    _at_most("model.max_input_chars_per_word", model.get("max_input_chars_per_word") or 0, LONGEST_WORD)
    for name in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
        _at_most(f"the length of model.{name}", len(model.get(name) or ""), LONGEST_PIECE)
    unk = model.get("unk_id")
    if kind == "Unigram" and unk is not None and not 0 <= unk < len(pieces):
        raise ValueError(f"model.unk_id is {unk}: expected the number of one of {len(pieces):,} pieces")


def _steps(value: Any) -> Iterator[dict[str, Any]]:
    """A step of a tokenizer, with those of sequences, at any depth."""
    if value is None:
        return
    yield value
    if value.get("type") == "Sequence":
        for name in ("normalizers", "pretokenizers", "processors", "decoders"):
            for inner in value.get(name) or []:
                yield from _steps(inner)


def _check_step(part: str, step: dict[str, Any]) -> None:
    kind = step["type"]
    for name in ("content", "prepend", "replacement", "suffix", "prefix"):
        if isinstance(step.get(name), str):
            _at_most(f"{part}: the length of {name} of {kind}", len(step[name]), LONGEST_PIECE)
    if isinstance(pattern := (step.get("pattern") or {}).get("Regex"), str):
        check_pattern(pattern)
    if kind == "Precompiled":
        _check_charsmap(base64.b64decode(step["precompiled_charsmap"]))
    if kind == "Strip" and part == "decoder":  # panics on a text that is shorter
        _at_most("decoder: stop of Strip", step.get("stop", 0), 1)
    if kind == "TemplateProcessing":
        for name in ("single", "pair"):
            _at_most(f"{part}: the number of parts of {name}", len(step.get(name) or []), MOST_OF_TEMPLATE)
        for token in step["special_tokens"].values():
            _at_most(f"{part}: the number of ids of a special token", len(token["ids"]), MOST_OF_TEMPLATE)


def _check_charsmap(content: bytes) -> None:
    """SentencePiece's table of characters: the size of a trie, the trie, and the texts that it leads to."""
    size = int.from_bytes(content[:4], "little")
    if len(content) < 4 or size % 4 or not 0 < size <= len(content) - 4:
        raise ValueError("normalizer: precompiled_charsmap is not a table of SentencePiece")
    longest = max(map(len, content[4 + size :].split(b"\0")))
    normalizers.Precompiled(content).normalize_str("".join(map(chr, range(1, 0xD800))))  # panics if the trie is wrong
    _at_most("normalizer: the length of a text of precompiled_charsmap", longest, 4 * MOST_GROWTH)


def _check_growth(part: str, steps: list[dict[str, Any]]) -> None:
    """Check how long a text becomes that has all that the steps look for and all that they insert."""
    literals = [text for step in steps for text in (step["pattern"].get("String"), step["content"]) if text]
    text = " ".join(["Aa 1.", *dict.fromkeys(literals)])
    longest, began = min(MOST_GROWTH * len(text), LONGEST_PROBE), time.process_time()
    for step in steps:
        pattern, content = step["pattern"], step["content"]
        if "String" in pattern:
            if not pattern["String"]:
                raise ValueError(f"{part}: a step Replace looks for an empty text")
            text = text.replace(pattern["String"], content)
        else:
            text = normalizers.Replace(Regex(pattern["Regex"]), content).normalize_str(text)
        _at_most(f"{part}: the length of all that steps Replace look for and insert", len(text), longest)
        _at_most(f"{part}: the time in s of steps Replace", time.process_time() - began, LONGEST_TIME)


def check_pattern(pattern: str) -> None:
    """A `ValueError` if a pattern may not take about linear time in the library's engine, which backtracks."""
    # What is repeated has no repeats or alternatives in it, and few repeats follow each other.
    _at_most("the length of a pattern", len(pattern), LONGEST_PATTERN)
    shown = pattern if len(pattern) <= 60 else f"{pattern[:60]}…"
    rest = pattern
    for known in KNOWN_PARTS:
        rest = rest.replace(known, "")
    if _repeats_without_end(rest):
        raise ValueError(
            f"the pattern {shown!r} could take time without end: expected no repeats of what has repeats or "
            f"alternatives in it, and at most {MOST_REPEATS} repeat and {MOST_OPTIONS} options in a row"
        )


def _repeats_without_end(pattern: str) -> bool:
    # Of each open group: its beginning, [repeats, options] of the branch, the most of one, whether it has several.
    groups: list[list[Any]] = [["", [0, 0], [0, 0], False]]
    last: list[int] | None = None  # [repeats, options, has alternatives, is a group] of what a repeat would repeat
    place = 0
    while place < len(pattern):
        found = PARTS_OF_PATTERN.match(pattern, place)
        assert found is not None
        place = found.end()
        if found["back"] or (found["open"] == "(" and pattern[place : place + 1] in ("?", "*")):
            return True  # a reference, a name, a condition, a comment
        if found["set"]:
            place = _end_of_set(pattern, place)
        if found["open"]:
            groups.append([found["open"], [0, 0], [0, 0], False])
            last = None
        elif found["alternative"]:
            _, branch, most, _ = groups[-1]
            groups[-1][1:] = [[0, 0], [max(pair) for pair in zip(branch, most)], True]
            last = None
        elif found["close"]:
            if len(groups) == 1:
                return True
            begin, branch, most, several = groups.pop()
            inner = [max(pair) for pair in zip(branch, most)]
            if inner[0] > MOST_REPEATS or inner[1] > MOST_OPTIONS:
                return True
            last = [*inner, int(several), 1]
            if not begin.endswith(("=", "!")):
                groups[-1][1] = [sum(pair) for pair in zip(groups[-1][1], inner)]
            elif inner[0]:  # what looks around is tried once, but behind a repeat for each number of it
                groups[-1][1][0] += inner[0] if groups[-1][1][0] else 0
                groups[-1][3] = True
        elif found["repeat"]:
            if last is None or pattern[place : place + 1] in ("*", "+", "?", "{"):
                return True  # a repeat of nothing, or of a repeat
            kind = _kind_of_repeat(found["repeat"], found["mode"])
            # An exact number of a group is one of copies, which multiply where groups are nested.
            if kind is None or last[0] or (kind != "option" and any(last[:3])) or (kind == "exact" and last[3]):
                return True
            groups[-1][1][0] += kind == "repeat"
            groups[-1][1][1] += kind == "option"
            last = None
        else:
            last = [0, 0, 0, 0]
    most = [max(pair) for pair in zip(*groups[0][1:3])]
    return len(groups) > 1 or most[0] > MOST_REPEATS or most[1] > MOST_OPTIONS


def _end_of_set(pattern: str, place: int) -> int:
    """The place after the bracket that closes the set of characters that has been opened before `place`."""
    depth = 1
    while depth and place < len(pattern):
        depth += {"[": 1, "]": -1}.get(pattern[place], 0)
        place += 2 if pattern[place] == "\\" else 1
    return place


def _kind_of_repeat(sign: str, mode: str) -> str | None:
    """ "repeat" of any number, "option" of a few, "exact"; None for one that the engine reads otherwise."""
    if sign == "?":
        return "option"
    if sign in "*+":
        return "repeat"
    low, _, high = sign[1:-1].partition(",")
    if mode == "+" or not (low or high) or max(int(low or 0), int(high or 0)) > LONGEST_PIECE:
        return None
    if "," not in sign or low == high:
        return "exact"
    return "option" if high and int(high) <= 8 else "repeat"
