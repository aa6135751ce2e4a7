"""
tensor2tensor's SubwordTextEncoder (data_generators/text_encoder.py, tokenizer.py) as a backend of our tokenizer.

A text is cut where letters and digits meet anything else, and a single space between two such words is dropped. In
a word, what the vocabulary's alphabet lacks becomes `\\` + code point + `;`, and `_` ends it. Then the longest piece
that fits is taken from the left. A backend of the `tokenizers` library can only spell out code points that are listed
when it is made: those of `SPELLED`; any other character that the alphabet lacks is taken for U+FFFD.
"""

import re
from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers


ALPHANUMERIC = r"\p{L}\p{N}"
CUT = "\ufdd0"  # a code point that is not a character
LONGEST_WORD = 10_000

# Latin letters with accents, Greek, Cyrillic, punctuation, currencies
SPELLED = [*range(0x20, 0x7F), *range(0xA1, 0x180), *range(0x391, 0x3CA), *range(0x400, 0x460), *range(0x2010, 0x2040)]
SPELLED += [ord("\t"), ord("\n"), *range(0x20A0, 0x20C0)]


def subwords(tokens: Sequence[str]) -> Tokenizer:
    """A backend whose ids are the places in `tokens`, the lines of a subword vocabulary without their quotes."""
    alphabet = {character for token in tokens for character in token} | set("\\_u;0123456789")
    spelled = [chr(code) for code in SPELLED if chr(code) not in alphabet or chr(code) == "\n"]
    known = "".join(map(re.escape, sorted(alphabet - {"\n"})))
    space = rf"(?<=[{ALPHANUMERIC}]) (?=[{ALPHANUMERIC}])"
    border = rf"(?<=[{ALPHANUMERIC}])(?=[^{ALPHANUMERIC}])|(?<=[^{ALPHANUMERIC}])(?=[{ALPHANUMERIC}])"
    backend = Tokenizer(
        models.WordPiece(
            {token: index for index, token in enumerate(tokens)},
            unk_token="",
            continuing_subword_prefix="",
            max_input_chars_per_word=LONGEST_WORD,
        )
    )
    backend.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(CUT, "\ufffd"),
            normalizers.Replace(Regex(space), CUT),
            normalizers.Replace(Regex(border), CUT),
            normalizers.Replace("\\", "\\\\"),
            normalizers.Replace("_", "\\u"),
            *(normalizers.Replace(character, f"\\{ord(character)};") for character in spelled),
            normalizers.Replace(Regex(f"[^{known}{CUT}]"), f"\\{0xFFFD};"),
            normalizers.Replace(Regex(rf"{CUT}+|(?<=[\s\S])\z"), f"_{CUT}"),
        ]
    )
    backend.pre_tokenizer = pre_tokenizers.Split(CUT, behavior="removed")
    between_words = rf"(?<=[{ALPHANUMERIC}])(?<!\\u)_(?=[{ALPHANUMERIC}])"
    backend.decoder = decoders.Sequence(
        [
            decoders.Fuse(),
            decoders.Replace("\\\\", CUT),
            *(decoders.Replace(f"\\{ord(character)};", character) for character in [*spelled, "\ufffd"]),
            decoders.Replace(Regex(between_words), " "),
            decoders.Replace("_", ""),
            decoders.Replace("\\u", "_"),
            decoders.Replace(CUT, "\\"),
        ]
    )
    return backend
