"""
Regular expressions take time that grows with the length of a text alone, whatever the text is.

Each of the package is run over texts made of what it matches: prefixes of such texts, and their pieces repeated.
"""

import ast
import importlib
import random
import re
import re._parser as parser
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from time import process_time

import pytest
from machine import is_within
from tokenizers import Tokenizer, models

import vanilla_transformer_hf
from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.conversion.formats import vocabularies
from vanilla_transformer_hf.conversion.formats.moses import APOSTROPHES, add_moses
from vanilla_transformer_hf.conversion.formats.sentencepiece_model import Piece, SentencePieceModel
from vanilla_transformer_hf.conversion.formats.subword_text import subwords


PACKAGE = Path(vanilla_transformer_hf.__file__).parent
METHODS = {"match", "fullmatch", "search", "finditer", "findall", "sub", "split"}
# They read names and docstrings of the code itself, no text of a user.
OF_THE_CODE = {"registration.py", "translation/pipeline.py", "training/options.py"}
LETTERS = "ax1A_ .-@/\\\"'<>(){}[]&;:,=%\n\t!?é中»|~+#$*"
LENGTHS = 15_000, 120_000
# Seconds of the shorter text where bounds are set: the square of so many steps takes more, as do 2 to the power of 26.
SECONDS = 0.08
# How many times as long the longer text may take, from some milliseconds on: eight times the steps, a square 64 times.
MOST_GROWTH, TIMED = 20, 0.005


def patterns() -> dict[tuple, set[str]]:
    """(file, pattern, flags) of all regular expressions -> the methods by which they are used."""
    found, used = defaultdict(set), defaultdict(set)
    files = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).as_posix() not in OF_THE_CODE]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS):
                continue
            of = node.func.value
            used[getattr(of, "id", getattr(of, "attr", None))].add(node.func.attr)
            if getattr(of, "id", None) == "re" and isinstance(node.args[0], ast.Constant):
                flags = re.MULTILINE if len(node.args) > 2 else 0
                found[f"{path.relative_to(PACKAGE)}", node.args[0].value, flags].add(node.func.attr)
    for path in files:
        if "re.compile(" in path.read_text("utf-8"):
            name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            for variable, value in vars(importlib.import_module(name)).items():
                for one in compiled(value):
                    key = f"{path.relative_to(PACKAGE)}", one.pattern, one.flags
                    found[key] |= used.get(variable) or {"finditer"}
    return found


def compiled(value) -> Iterator[re.Pattern]:
    if isinstance(value, re.Pattern):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        yield from compiled(inner)


def matching(tree, rng) -> str:
    """A text that a parsed pattern matches, but for its assertions."""
    text = ""
    for kind, value in tree:
        match f"{kind}":
            case "LITERAL":
                text += chr(value)
            case "NOT_LITERAL" | "ANY":
                text += rng.choice("x. ")
            case "IN":
                is_not = f"{value[0][0]}" == "NEGATE"
                fit = [letter for letter in LETTERS if any(is_in(each, letter) for each in value) != is_not]
                text += rng.choice(fit or [chr(each[1]) for each in value if f"{each[0]}" == "LITERAL"] or ["x"])
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                least, most, inner = value
                for _ in range(rng.randint(least, min(most, least + 2))):
                    text += matching(inner, rng)
            case "SUBPATTERN" | "ATOMIC_GROUP" | "ASSERT" | "BRANCH":
                inner = {"SUBPATTERN": -1, "ASSERT": 1}.get(f"{kind}")
                inner = value if inner is None else value[inner]
                text += matching(rng.choice(value[1]) if f"{kind}" == "BRANCH" else inner, rng)
    return text


def is_in(item, letter) -> bool:
    kind, value = f"{item[0]}", item[1]
    if kind == "CATEGORY":
        does = {"SPACE": letter.isspace(), "DIGIT": letter.isdigit(), "WORD": letter.isalnum() or letter == "_"}
        return does[f"{value}".rpartition("_")[2]] != ("_NOT_" in f"{value}")
    return (
        ord(letter) in range(value[0], value[1] + 1) if kind == "RANGE" else kind == "LITERAL" and ord(letter) == value
    )


def hostile(pattern: str, flags: int) -> list[tuple[str, str, str]]:
    """What a hostile text begins with, what it repeats, and its end."""
    rng, tree = random.Random(1), parser.parse(pattern, flags)
    found = {("", letter, end) for letter in "a A1\n_-.@<\"'\\" for end in ("", "\0")}
    for _ in range(15):
        text = matching(tree, rng)[:24]
        for first in range(len(text)):
            for width in (1, 2, 3, 5, 8, 16):
                unit, end = text[first : first + width], rng.choice(["", "\0"])
                found |= {("", unit, end), (text[:first], unit, end)}
    return rng.sample(sorted(found), min(len(found), 250))


def seconds(pattern: re.Pattern, methods: set[str], text: str) -> float:
    given = text if isinstance(pattern.pattern, str) else text.encode("latin-1", "replace")
    began = process_time()
    for method in methods:
        if method == "finditer":
            sum(1 for _ in pattern.finditer(given))
        else:
            getattr(pattern, method)(*([given[:0]] if method == "sub" else []), given)
    return process_time() - began


@pytest.mark.parametrize("key", sorted(found := patterns(), key=str), ids=lambda key: f"{key[0]}-{key[1][:30]!r}")
def test_each_regular_expression_is_linear(key):
    _, pattern, flags = key
    methods, one = found[key], re.compile(pattern, flags)
    shapes = hostile(pattern, flags)

    def text(shape, length):
        begin, unit, end = shape
        return begin + unit * (length // len(unit)) + end

    assert is_within(max(seconds(one, methods, text(shape, 26)) for shape in shapes), SECONDS)
    slowest = sorted(shapes, key=lambda shape: -seconds(one, methods, text(shape, 1500)))[:3]
    for shape in slowest:
        shorter, longer = (min(seconds(one, methods, text(shape, each)) for _ in range(2)) for each in LENGTHS)
        assert is_within(shorter, SECONDS), shape
        assert longer < max(TIMED, MOST_GROWTH * shorter), (shape, shorter, longer)


LETTERS_ALONE = SentencePieceModel([Piece(letter, -1.0) for letter in ("▁", "a", "▁a")])


def backends() -> Iterator[Tokenizer]:
    for language in ("en", *APOSTROPHES):
        backend = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
        add_moses(backend, language)
        yield backend
    yield subwords([*map(chr, range(32, 127)), "ab_"])
    yield vocabularies.sentencepiece(Path("spm.model"), ["<unk>", "▁", "a", "▁a"], "<unk>")
    for normalizes in (True, False):
        settings = {"lowercase": True, "normalize_white_space": normalizes, "show_progress": False}
        yield VanillaTransformerTokenizer.train(["a b"], vocab_size=270, **settings).backend_tokenizer


def test_each_tokenizer_cuts_texts_in_linear_time(monkeypatch):
    monkeypatch.setattr(vocabularies, "read_sentencepiece", lambda path: LETTERS_ALONE)
    units = [
        *" '.-,aA1(é中\n\t_;<▁&@/\"\u200b\xa0\u0301",
        "a.",
        "Mr.",
        "1,",
        " .",
        "' ",
        ". ' ",
        "a ",
        "\u200b ",
        "\\u_",
    ]
    for backend in backends():
        for unit in units:
            text = f"a{unit * (15_000 // len(unit))}x"
            began = process_time()
            backend.normalizer.normalize_str(text)
            assert is_within(process_time() - began, 0.2), (backend.normalizer, unit)
