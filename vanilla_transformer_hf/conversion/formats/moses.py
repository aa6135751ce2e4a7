"""
The Moses tokenizer (Koehn et al. 2007) as steps of a backend of our tokenizer, as sacremoses has it: punctuation made
uniform, words and punctuation divided, dashes split, XML's characters escaped.

What a step inserts depends on the characters beside it, so each is a pattern that looks around and a constant. Where
matches of Moses' own patterns would overlap (a quotation mark between dots and dots), the words may differ. The list
of abbreviations that keep their dots belongs to Moses and is read from sacremoses, which FSMT's own tokenizer needs
too.
"""

import re
from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers


try:
    from sacremoses.corpus import NonbreakingPrefixes
except ImportError:
    NonbreakingPrefixes = None


# A letter that no text has, in capitals as Moses' own marker is: it stands for each of several dots in a row.
DOT = "\U00010400"

# replace-unicode-punctuation.perl, as FSMTTokenizer has it
UNICODE_PUNCTUATION = [
    *zip("，、”“∶：？《》）！（；」「～’━〈〉【】％", ',,""::?"")!(;""~\'-<>[]%'),
    *((chr(0xFF10 + digit), str(digit)) for digit in range(10)),
    (r"[。．]\s*", ". "),
    ("…", "..."),
]

# normalize-punctuation.perl: lines 21 to 67
UNIFORM = [
    *(("\r", ""), (r"\(", " ("), (r"\)", ") "), (" +", " "), (r"(?<=\)) (?=[.!:?;,])", ""), (r"\( ", "(")),
    *((r" \)", ")"), (r"(?<=\d) (?=%)", ""), (" :", ":"), (" ;", ";"), ("`", "'"), ("''", ' " ')),
    *(("[„“”]", '"'), ("–", "-"), ("—", " - "), (" +", " "), ("´", "'"), ("[‘‚’]", "'"), ("''", '"'), ("…", "...")),
    *(("\u00a0«\u00a0|«\u00a0|«", '"'), ("\u00a0»\u00a0|\u00a0»|»", '"')),
    *(("\u00a0(?=[%:?!;])", ""), ("nº\u00a0", "nº "), ("\u00a0(?=ºC|cm)", " "), (",\u00a0", ", "), (" +", " ")),
]
# A quotation mark before commas and dots goes behind them; behind dots it goes before them. First it is put in at its
# new place, then it is taken away at the old one.
QUOTES = {
    "en": [(r'"[,.]+\K', '"'), (r'"(?=[,.]+")', "")],
    **{name: [(',"', '",'), (r'(?<!\.)(?=\.+"[^<])', '"'), (r'"\.+\K"(?=[^<])', "")] for name in ("de", "es", "fr")},
}
DECIMAL_COMMA = ("de", "es", "cz", "cs", "fr")

# Characters with a meaning in XML, the ampersand first.
ESCAPES = {
    "&": "&amp;",
    "|": "&#124;",
    "<": "&lt;",
    ">": "&gt;",
    "'": "&apos;",
    '"': "&quot;",
    "[": "&#91;",
    "]": "&#93;",
}

# Characters that are separated from their neighbours. Moses does not treat Chinese, Japanese and Korean characters as
# letters in text of other languages.
OTHER = r"[^\p{Alnum}\s.'`,\-]|[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]"
# Between letters, and not behind one that the last pattern has used up.
INSIDE = r"(?<=\p{Alpha})(?<!\p{Alpha}'\p{Alpha})'(?=\p{Alpha})"
ROMANCE = [
    (r"(?<=\P{Alpha})'(?=\P{Alpha})", " ' "),
    (r"(?<=\P{Alpha})'(?=\p{Alpha})", " ' "),
    (r"(?<=\p{Alpha})'(?=\P{Alpha})", " ' "),
    (INSIDE, "' "),
]
APOSTROPHES = {
    "en": [
        (r"(?<=\P{Alpha})'(?=\P{Alpha})", " ' "),
        (r"(?<=[^\p{Alpha}\p{N}])'(?=\p{Alpha})", " ' "),
        (r"(?<=\p{Alpha})'(?=\P{Alpha})", " ' "),
        (rf"{INSIDE}|(?<=\p{{N}})'(?=s)", " '"),
    ],
    "fr": ROMANCE,
    "it": ROMANCE,
}


def _dots(abbreviations: Sequence[str]) -> str:
    """The dots that end a word and get a space before them: all but those of abbreviations and inside a sentence."""
    numeric = [word.partition(" ")[0] for word in abbreviations if "#NUMERIC_ONLY#" in word]
    others = [word for word in abbreviations if "#NUMERIC_ONLY#" not in word]
    kept = [r"(?=[^\s.]*+\.\S++(?<=\.))[^\s\p{Alpha}]*+\p{Alpha}", r"\S+\.\s+\p{Lower}"]
    if others:
        kept.append(rf"(?:{'|'.join(map(re.escape, others))})\.(?:\s|\z)")
    if numeric:
        kept.append(rf"(?:{'|'.join(map(re.escape, numeric))})\.\s+[0-9]")
    return r"(?<=\s)" + "".join(f"(?!{pattern})" for pattern in kept) + r"\S+\K\.(?=\s|\z)"


def _uniform(language: str) -> list[tuple[str, str]]:
    """Punctuation made uniform, by the rules of a language, and without characters that are not printed."""
    return [
        *UNICODE_PUNCTUATION,
        *UNIFORM,
        *QUOTES.get(language, []),
        ("(?<=\\d)\u00a0(?=\\d)", "," if language in DECIMAL_COMMA else "."),
        (r"\A\s+|(?<!\s)\s+\z", ""),
        (r"\p{C}", ""),
    ]


def moses(
    language: str,
    abbreviations: Sequence[str],
    lowercase: bool = False,
    *,
    uniform: str | None = "",
    splits_dashes: bool = True,
    escapes: bool = True,
) -> normalizers.Normalizer:
    """Text of a language to words with white space between them; `splits_dashes` is "aggressive_dash_splits"."""
    # `uniform`: the language by whose rules punctuation is made uniform before; "": `language`; None: it is not.
    steps: list[tuple[str, str]] = [
        *([] if uniform is None else _uniform(uniform or language)),
        (r"\s+", " "),
        ("[\\x00-\\x1f]", ""),
        (r"\A\s+|\s+\z", ""),
        (f"(?<={OTHER})|(?={OTHER})", " "),
        *([(r"(?<=\p{Alnum})-(?=\p{Alnum})", " @-@ ")] if splits_dashes else []),
        (r"(?<=\.)\.|\.(?=\.)", DOT),
        (f"(?<!{DOT})(?={DOT})|(?<={DOT})(?!{DOT}|\\z)", " "),
        (r"(?<=\P{N}),|,(?=\P{N})|(?<=\p{N}),\z", " , "),
        *APOSTROPHES.get(language, [("'", " ' ")]),
        (r"\A", " "),  # so that the first word has white space before it like the others
        (_dots(abbreviations), " ."),
        (r"\s+", " "),
        (r"\.' ?\z", " . ' "),
        (DOT, "."),
        *((re.escape(character), escaped) for character, escaped in ESCAPES.items() if escapes),
    ]
    replaced = [normalizers.Replace(Regex(pattern), constant) for pattern, constant in steps]
    return normalizers.Sequence([*([normalizers.Lowercase()] if lowercase else []), *replaced])


def abbreviations_of(language: str) -> list[str] | None:
    """Moses' list of a language, English's where it has none; None where sacremoses is not installed."""
    return None if NonbreakingPrefixes is None else [word.strip() for word in NonbreakingPrefixes().words(language)]


def add_moses(backend: Tokenizer, language: str, lowercase: bool = False, **settings: Any) -> None:
    """Let a backend divide words as `moses` does before its own steps, and undo its escapes when it decodes."""
    # Without sacremoses nothing is added.
    if (abbreviations := abbreviations_of(language)) is None:
        return
    # Not by `Strip`, behind which the library panics where characters were inserted at the end.
    edges = normalizers.Replace(Regex(r"\A\s+|\s+\z"), "")
    before = [moses(language, abbreviations, lowercase, **settings), edges]
    backend.normalizer = normalizers.Sequence([*before, *([backend.normalizer] if backend.normalizer else [])])
    # Without a decoder, tokens are joined by spaces.
    spaces = [decoders.Replace(Regex(r"\z"), " "), decoders.Fuse(), decoders.Strip(" ", 0, 1)]
    own = [backend.decoder] if backend.decoder else spaces
    backend.decoder = decoders.Sequence([*own, decoders.Fuse(), *unescape()])


def note(side: str) -> str:
    """What the tokenizer of a model with this side's Moses does."""
    if abbreviations_of("en") is None:
        return (
            f"{side}: texts are expected, and translations come out, as the Moses tokenizer cuts them: sacremoses was "
            "not installed when this model was converted"
        )
    return f"{side}: texts are cut as by the Moses tokenizer; translations are not detokenized"


def unescape() -> list[decoders.Decoder]:
    """Steps that join split dashes and undo the escapes; words and punctuation stay divided."""
    pairs = [(" @-@ ", "-"), *((escaped, character) for character, escaped in reversed(ESCAPES.items()))]
    return [decoders.Replace(old, new) for old, new in pairs]
