"""
Vocabularies of the toolkits as backends of our tokenizer: every id is the toolkit's own.

Toolkits cut a text into pieces first and look these up afterwards. Where a backend needs pieces that the toolkit's
vocabulary lacks, they stand behind it; the tokenizer's `listed_pieces` says where it ends, and what stands behind
becomes unknown. A piece that only the vocabulary has, and the cutting never makes, is written with a space in front:
none is left in a text when pieces are looked for.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ...translation.text.texts import TARGET_LANG_TAGS
from ..source import ConversionError
from .files import MOST_TOKENS, read_json, read_lines
from .sentencepiece_model import BYTE, LONGEST_TOKEN, NORMAL, USER_DEFINED, SentencePieceModel, read_sentencepiece


END_OF_WORD = "</w>"
NAME = re.compile(r"<[^\s<>]+>|>>[^\s<>]+<<")
NO_CHARACTER = "\ufdd0"
TARGET_TAG = re.compile(r">>([^\s<>]+)<<|<2(\w+)>")


def check_unique(tokens: Sequence[str], where: str = "vocabulary"):
    if len(tokens) > MOST_TOKENS:
        raise ConversionError(f"{where} has {len(tokens):,} tokens; at most {MOST_TOKENS:,} are read")
    for index, token in enumerate(tokens):
        if not isinstance(token, str) or len(token) > LONGEST_TOKEN:
            what = f"{len(token):,} characters long" if isinstance(token, str) else f"a {type(token).__name__}"
            raise ConversionError(f"{where}: entry {index} is {what}; expected at most {LONGEST_TOKEN:,}")
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError as error:
        raise ConversionError(f"{where}: a token holds a lone surrogate, which is not a character") from error
    seen: set[str] = set()
    twice = [token for token in tokens if token in seen or seen.add(token)]  # type: ignore[func-returns-value]
    if twice:
        raise ConversionError(f"{where}: {', '.join(map(repr, twice[:5]))} stand more than once")


def read_ids(path: Path) -> list[str]:
    """The tokens of a JSON file of tokens and ids, in the order of the ids."""
    ids = read_json(path)
    tokens = sorted(ids, key=lambda token: str(ids[token]).zfill(12))
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise ConversionError(f"{path}: the ids are not 0 to {len(tokens) - 1}, each once")
    return tokens


def ends_with(backend: Tokenizer, token: str | None) -> Tokenizer:
    """The backend, which adds `token` after every text; None adds nothing."""
    if token is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"$A {token}", pair=f"$A {token} $B {token}", special_tokens=[(token, backend.token_to_id(token))]
        )
    return backend


def joined(source: Tokenizer, target: Tokenizer, *, is_separate: bool | None = None, **fields: Any) -> Any:
    """The tokenizer with a backend for each side; one for both, unless they are or must be separate."""
    separate = source.to_str() != target.to_str() if is_separate is None else is_separate
    return VanillaTransformerTokenizer(
        tokenizer_object=target,
        source_tokenizer_object=source if separate else None,
        separate_vocabularies=separate,
        split_special_tokens=True,
        **fields,
    )


def limit(tokenizer: VanillaTransformerTokenizer, config: VanillaTransformerConfig) -> None:
    """Let the tokenizer map pieces after the model's vocabularies to the unknown token."""
    for name, backend, size in (
        ("listed_pieces", tokenizer.backend_tokenizer, config.vocab_size),
        ("source_listed_pieces", tokenizer.source_backend_tokenizer, config.source_vocab_size or config.vocab_size),
    ):
        if backend.get_vocab_size() > size:
            setattr(tokenizer, name, size)
            tokenizer.init_kwargs[name] = size


def register_language_tags(tokenizer: VanillaTransformerTokenizer) -> None:
    """Register the tags of a tokenizer's source vocabulary as `target_lang_tags`."""
    # Those of Marian (">>deu<<") and of Johnson et al. 2017 ("<2de>"), if a text that holds one is read as that token.
    if TARGET_LANG_TAGS in tokenizer.init_kwargs:
        return
    vocabulary = tokenizer.source_backend_tokenizer.get_vocab()
    tags = {match[1] or match[2]: name for name in sorted(vocabulary) if (match := TARGET_TAG.fullmatch(name))}
    found = {}
    for language, tag in tags.items():
        alone, joined = tokenizer([tag, f"{tag}a"], add_special_tokens=False)["input_ids"]
        if alone == [vocabulary[tag]]:
            found[language] = tag if joined[:1] == alone else f"{tag} "  # a word of a text, without a space no tag
    if found:
        tokenizer.init_kwargs[TARGET_LANG_TAGS] = found


def words(tokens: Sequence[str], unk: str, joiner: str | None = None) -> Tokenizer:
    """Words divided by white space, each with its place in `tokens` as its id; any other word is `unk`."""
    # `joiner` is the mark that a toolkit's pieces of one word have at their ends ("@@"); decoding joins them.
    check_unique(tokens)
    backend = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=unk))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if joiner is not None:
        # Each token but the first comes to a decoder with no space before it.
        backend.decoder = decoders.Sequence(
            [
                decoders.Replace(Regex(r"\z"), " "),
                decoders.Replace(f"{joiner} ", ""),
                decoders.Fuse(),
                decoders.Strip(" ", 0, 1),
            ]
        )
    return backend


def read_merges(path: Path) -> list[tuple[str, str]]:
    """The merges of a codes file of subword-nmt 0.2 or fastBPE, first learned first."""
    merges = []
    for number, line in enumerate(read_lines(path), 1):
        fields = line.split(" ")
        if number == 1 and fields[0] == "#version:":
            if fields[1:] != ["0.2"]:
                raise ConversionError(f"{path}: codes of version {' '.join(fields[1:])}; 0.2 can be read")
            continue
        if not line.strip():
            continue
        if len(fields) not in (2, 3) or (len(fields) == 3 and not fields[2].isdigit()):
            raise ConversionError(f"{path}, line {number}: {line!r} is not a pair of symbols")
        if END_OF_WORD in fields[:2]:
            raise ConversionError(f"{path}, line {number}: codes of subword-nmt 0.1; learn them again with 0.2")
        merges.append((fields[0], fields[1]))
    return list(dict.fromkeys(merges))  # of two equal lines the first counts


def byte_pairs(
    tokens: Sequence[str],
    merges: Sequence[tuple[str, str]],
    unk: str,
    specials: Sequence[str] = (),
    joiner: str | None = "@@",
    where: str = "vocabulary",
) -> Tokenizer:
    """Words divided by white space and cut by merges (Sennrich et al. 2016), as subword-nmt and fastBPE do."""
    # A piece that does not end its word ends with `joiner` in `tokens`; None: a piece that does end its word ends with
    # "</w>". Each of `tokens` has its place as its id.
    check_unique(tokens, where)
    inner = {}
    for index, token in enumerate(tokens):
        if token in specials or token == unk or joiner is None:
            piece = token
        elif token.endswith(joiner) and token != joiner:
            piece = token.removesuffix(joiner)
        else:
            piece = token + END_OF_WORD
        # What cannot be cut out of a word is never looked up: two spellings of one piece, or a name of a special.
        inner[" " + token if piece in inner else piece] = index
    for piece in itertools.chain.from_iterable((left, right, left + right) for left, right in merges):
        inner.setdefault(piece, len(inner))
    backend = Tokenizer(models.BPE(inner, list(merges), unk_token=unk, end_of_word_suffix=END_OF_WORD))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.BPEDecoder(suffix=END_OF_WORD)
    return backend


def sentencepiece(model_path: Path, tokens: Sequence[str], unk: str, only_listed: bool = False) -> Tokenizer:
    """Pieces of a SentencePiece model, each with its place in `tokens` as its id; any other piece is `unk`."""
    # With `only_listed` a unigram model cuts with the pieces of `tokens` and with single characters alone, as after
    # SentencePieceProcessor.SetVocabulary(tokens). Tokens in angle brackets ("</s>", ">>de<<") are names, not text: a
    # text that holds one is cut before its last character. What is not in the model goes through it unchanged, and a
    # toolkit finds it if it is a token all the same, such as a letter of the other language; here, only if it is a
    # single character.
    check_unique(tokens)
    model = read_sentencepiece(model_path)
    if model.model_type not in ("unigram", "bpe") or model.suffix_whitespace or not model.escape_whitespaces:
        raise ConversionError(
            f"{model_path}: a {model.model_type} model, or one that has its spaces elsewhere than before words; "
            "unigram and bpe models with spaces before words can be read"
        )
    scores = {piece.text: piece.score for piece in model.pieces if piece.kind in (NORMAL, USER_DEFINED, BYTE)}
    if only_listed and model.model_type == "unigram":
        kept = {*tokens, *(piece for piece in scores if len(piece) == 1)}
        scores = {piece: score for piece, score in scores.items() if piece in kept}
    names = [token for token in tokens if token not in scores and (token == unk or NAME.fullmatch(token))]
    alphabet = {piece for piece in scores if len(piece) == 1} | {"▁"}
    letters = [token for token in tokens if len(token) == 1 and token not in alphabet and not model.byte_fallback]
    found = scores.keys() | {*names, *letters}
    listed = [token if token in found else " " + token for token in tokens]
    pieces = [*listed, *(scores.keys() - set(tokens))]
    units = [piece.text for piece in model.pieces if piece.kind == USER_DEFINED]
    if model.model_type == "unigram":
        normal = [piece.score for piece in model.pieces if piece.kind == NORMAL]
        # unigram_model.cc: so that what the user defined is always preferred
        scores |= {unit: len(unit) * max(normal) - 0.1 for unit in units}
        scored = [(piece, scores.get(piece, min(normal))) for piece in pieces]
        backend = Tokenizer(models.Unigram(scored, tokens.index(unk), model.byte_fallback))
        units = []
    else:
        backend = Tokenizer(
            models.BPE(
                {piece: index for index, piece in enumerate(pieces)},
                _merges(scores),
                unk_token=unk,
                fuse_unk=True,
                byte_fallback=model.byte_fallback,
                ignore_merges=bool(units),
            )
        )
    _add_text_steps(backend, model, names, units)
    if (
        letters
    ):  # of several unknown characters in a row the toolkit makes one piece: here, one that is not a character
        known = "".join(map(re.escape, sorted(alphabet)))
        more = normalizers.Replace(Regex(f"[^{known}]{{2,}}"), NO_CHARACTER)
        backend.normalizer = normalizers.Sequence([backend.normalizer, more])
    return backend


def _merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Pairs of pieces that make a piece, the best piece first: what SentencePiece's bpe merges, in its order."""
    pairs = [
        (score, piece[:place], piece[place:])
        for piece, score in scores.items()
        for place in range(1, len(piece))
        if piece[:place] in scores and piece[place:] in scores
    ]
    return [(left, right) for _, left, right in sorted(pairs, key=lambda pair: -pair[0])]


def _add_text_steps(backend: Tokenizer, model: SentencePieceModel, names: Sequence[str], units: Sequence[str]):
    """What SentencePiece does to a text before it is cut (normalizer.cc), and how pieces become a text again."""
    steps: list = []
    if model.precompiled_charsmap:
        steps.append(normalizers.Precompiled(model.precompiled_charsmap))
    if model.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r"\A | \z"), "")]
    if model.add_dummy_prefix:
        steps.append(normalizers.Prepend(" "))
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    cuts = []
    if names and model.model_type == "unigram":  # bpe makes no piece that its merges do not lead to
        ends = "|".join(f"(?<={re.escape(name[:-1])})(?={re.escape(name[-1])})" for name in names)
        cuts.append(pre_tokenizers.Split(Regex(ends), behavior="isolated"))
    if units:
        cuts.append(pre_tokenizers.Split(Regex("|".join(map(re.escape, units))), behavior="isolated"))
    if cuts:
        backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(Regex(r"\A (?=.)"), ""),
            decoders.ByteFallback(),
            decoders.Metaspace(prepend_scheme="first" if model.add_dummy_prefix else "never", split=False),
        ]
    )
