"""Tokenizer of the vanilla Transformer: one vocabulary shared by source and target, or one for each.

`VanillaTransformerTokenizer.train` builds byte-level vocabularies that give every Unicode text back unchanged; the
class itself works with any backend of the `tokenizers` library.
"""

import copy
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import BatchEncoding
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from .saving.saved_code import TokenizerSavesCode
from .tokenizer.failures import is_failure


TOKENIZER_FILES = {"tokenizer_file": "tokenizer.json", "source_tokenizer_file": "source_tokenizer.json"}

# Their indices in this list are their ids in every trained vocabulary.
SPECIAL_TOKENS = ["<pad>", "</s>", "<unk>"]
# The special tokens that control the model: in texts of users their names are plain text.
CONTROL_ROLES = ("pad_token", "bos_token", "eos_token", "unk_token")

# A word includes the space before it. Marks stay with their letters (Devanagari, decomposed accents). The limit of 64
# keeps a text without spaces from becoming one word, which would take WordPiece quadratic time.
WORDS = r" ?[\p{L}\p{M}]{1,64}| ?\p{N}{1,64}| ?[^\s\p{L}\p{M}\p{N}]{1,64}|\s{1,64}(?!\S)|\s{1,64}"

# Name -> (empty model, trainer). WordPiece marks the start of a word (by its space) and not the continuation, as in
# Wu et al. (arXiv 1609.08144, section 4.1), so both models share alphabet and decoder. 65 characters have 260 bytes.
MODELS = {
    "bpe": (partial(models.BPE, unk_token="<unk>"), trainers.BpeTrainer),
    "wordpiece": (
        partial(models.WordPiece, unk_token="<unk>", continuing_subword_prefix="", max_input_chars_per_word=65 * 4),
        partial(trainers.WordPieceTrainer, continuing_subword_prefix=""),
    ),
}

# Stands before a leading space of a text, or of what follows an added token, until the space before a first word has
# been put there: without it, a text " dog" would already have that space. A noncharacter, for internal use.
KEEPER = "\ufdd0"

# What `train(normalize_white_space=True)` removes, characters without width or meaning, and what it joins.
INVISIBLE_CHARACTERS = "\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff"
WHITE_SPACE = "\t-\r\x1c- \x85\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
ENDING_SPACE = "".join(
    re.findall(f"[{INVISIBLE_CHARACTERS}{WHITE_SPACE}]", "".join(map(chr, range(0x3001))) + "\ufeff")
)

UNICODE_NORMALIZATIONS = {name: getattr(normalizers, name) for name in ("NFC", "NFKC", "NFD", "NFKD")}


class VanillaTransformerTokenizer(TokenizerSavesCode, TokenizersBackend):
    """Text to token ids and back, with one vocabulary for both languages or one for each.

    Texts become ids of the source vocabulary, and of the target vocabulary under `text_target=`. Everything else uses
    the target vocabulary, which the decoder predicts: `decode`, `batch_decode`, `get_vocab`, `vocab_size`, `len` and
    the conversions between tokens and ids; only `decode_source` and the `source_...` properties use the source
    vocabulary. Tokens added later go into both vocabularies. The sizes for a config are `vocab_size=len(tokenizer)`
    and `source_vocab_size=tokenizer.source_vocab_size`; those for a model that exists are given to its
    `resize_token_embeddings` and `resize_source_token_embeddings`.

    With `split_special_tokens=True`, which `train` sets, the names of the padding, begin, end and unknown tokens in a
    text are plain text ("</s>" is cut into tokens). All other special tokens, such as language tags registered with
    `add_special_tokens({"additional_special_tokens": ["<de>"]})` or `add_tokens(["<de>"], special_tokens=True)`, are
    recognised in texts as in any tokenizer of transformers. With `split_special_tokens=False`, here or in a call, all
    special tokens are recognised.

    A pair of texts becomes one source, each followed by an end token; with `return_token_type_ids=True`,
    `token_type_ids` are 0 in the first and 1 in the second, for models with `type_vocab_size` 2.

    Files: `tokenizer.json` holds the shared or target vocabulary, `source_tokenizer.json` a separate source
    vocabulary.

    Args:
        separate_vocabularies: Whether the source has its own vocabulary.
        src_lang: Source language, recorded in `tokenizer_config.json`.
        tgt_lang: Target language, recorded likewise.
        listed_pieces: Size of the (target) vocabulary if the backend has additional tokens after it that are only
            intermediate merges, as in toolkits that segment words first and look the tokens up afterwards: these
            become the unknown token.
        source_listed_pieces: The same for a separate source vocabulary.
        kwargs: transformers' arguments, such as `tokenizer_object` (a `tokenizers.Tokenizer`), the special tokens or
            `model_max_length`; `source_tokenizer_object` is the backend of the separate source vocabulary.

    Raises:
        ValueError: The source vocabulary is missing or unreadable, or disagrees on the id of padding or end.

    Example:

    ```python
    >>> from vanilla_transformer_hf import VanillaTransformerTokenizer
    >>> tokenizer = VanillaTransformerTokenizer.from_pretrained("model_cards/multi30k_raw_en_de")
    >>> tokenizer.tokenize("Two dogs are playing.")
    ['ĠTwo', 'Ġdogs', 'Ġare', 'Ġplaying', '.']
    >>> tokenizer.decode(tokenizer("Two dogs are playing.")["input_ids"], skip_special_tokens=True)
    'Two dogs are playing.'
    ```"""

    vocab_files_names = TOKENIZER_FILES
    _source_tokenizer: Tokenizer | None = None

    def __init__(
        self,
        separate_vocabularies: bool = False,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        listed_pieces: int | None = None,
        source_listed_pieces: int | None = None,
        **kwargs: Any,
    ):
        source, source_file = kwargs.pop("source_tokenizer_object", None), kwargs.pop("source_tokenizer_file", None)
        if separate_vocabularies and source is None:
            if source_file is None:
                raise ValueError(
                    f"{kwargs.get('name_or_path', 'separate_vocabularies=True')}: the source vocabulary,"
                    f" {TOKENIZER_FILES['source_tokenizer_file']}, is missing; copy it from where it was saved."
                )
            source = _read_backend(source_file)
        self._source_tokenizer = copy.deepcopy(source) if separate_vocabularies else None
        self.separate_vocabularies, self.src_lang, self.tgt_lang = separate_vocabularies, src_lang, tgt_lang
        self.listed_pieces, self.source_listed_pieces = listed_pieces, source_listed_pieces
        with _naming_damage(kwargs.get("tokenizer_file")):
            super().__init__(
                separate_vocabularies=separate_vocabularies,
                src_lang=src_lang,
                tgt_lang=tgt_lang,
                listed_pieces=listed_pieces,
                source_listed_pieces=source_listed_pieces,
                **kwargs,
            )
        # Arguments of loading are not settings: if they were kept, the next save would write other files.
        for name in ("is_local", "local_files_only"):
            self.init_kwargs.pop(name, None)
        for name in ("pad_token_id", "eos_token_id"):
            ids = getattr(self._source_side(), name), getattr(self, name)
            if ids[0] != ids[1]:
                raise ValueError(
                    f"{name} is {ids[0]} in the source and {ids[1]} in the target vocabulary; it must agree."
                )

    @classmethod
    def train(
        cls,
        source_texts: Iterable[str],
        target_texts: Iterable[str] | None = None,
        *,
        vocab_size: int = 37000,
        model: Literal["bpe", "wordpiece"] = "bpe",
        separate_vocabularies: bool = False,
        lowercase: bool = False,
        unicode_normalization: Literal["NFC", "NFKC", "NFD", "NFKD"] | None = None,
        normalize_white_space: bool = False,
        min_frequency: int = 2,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        show_progress: bool = True,
        length: int | None = None,
    ) -> "VanillaTransformerTokenizer":
        """Train on texts read once, in memory that grows with the number of distinct words only.

        The defaults are the paper's English-German setting (section 5.1); its English-French one is
        `model="wordpiece", vocab_size=32000`. `decode` gives every text back unchanged, except for the changes of
        `lowercase`, `unicode_normalization` and `normalize_white_space`; the names "</s>", "<pad>" and "<unk>" inside
        a text are plain text (`split_special_tokens`). The same texts in any order give the same vocabulary.

        Args:
            source_texts: Texts of the source language.
            target_texts: Texts of the target language.
            vocab_size: Largest size of each vocabulary, special tokens included; a small corpus may yield fewer
                tokens.
            model: How a word is split into tokens: by learned merges ("bpe") or longest token first ("wordpiece").
            separate_vocabularies: Whether source and target each get a vocabulary of their own.
            lowercase: Whether texts are lower-cased, after Unicode normalisation.
            unicode_normalization: Unicode normal form into which texts are brought; saved with the tokenizer.
            normalize_white_space: Whether texts lose white space at their ends and characters without width, and have
                single spaces in the place of all other white space; saved with the tokenizer.
            min_frequency: Minimum number of occurrences of a pair of tokens for it to become a token.
            src_lang: Source language, recorded with the tokenizer.
            tgt_lang: Target language, recorded likewise.
            show_progress: Whether progress bars are shown.
            length: Number of texts of one side if known, for the progress bar.

        Raises:
            TypeError: A text is not a `str`.
            ValueError: A choice is unknown, a corpus is empty, or `vocab_size` is too small.
        """
        if separate_vocabularies and target_texts is None:
            raise ValueError("separate_vocabularies=True needs target_texts.")
        texts: list[Iterable[str]] = [_checked(source_texts, "source")]
        if target_texts is not None:
            texts.append(_checked(target_texts, "target"))
        if not separate_vocabularies:
            length = length and length * len(texts)
            texts = [itertools.chain(*texts)]
        steps = _normalizers(lowercase, unicode_normalization, normalize_white_space)
        choices = (vocab_size, model, steps, normalize_white_space, min_frequency, show_progress, length)
        *source, backend = [_train_backend(side, *choices) for side in texts]
        known: dict[str, Any] = {
            "unicode_normalization": unicode_normalization,
            "normalize_white_space": normalize_white_space,
        }
        return cls(
            tokenizer_object=backend,
            source_tokenizer_object=source[0] if source else None,
            separate_vocabularies=separate_vocabularies,
            src_lang=src_lang,
            tgt_lang=tgt_lang,
            split_special_tokens=True,
            pad_token="<pad>",
            eos_token="</s>",
            unk_token="<unk>",
            **{name: value for name, value in known.items() if value},
        )

    def train_new_from_iterator(self, text_iterator: Any, vocab_size: int, *args: Any, **kwargs: Any) -> Any:
        """Train a new shared vocabulary with this tokenizer's pipeline (transformers' method)."""
        if self.separate_vocabularies:
            raise ValueError("This method trains one vocabulary; use train(..., separate_vocabularies=True) for two.")
        prefix = getattr(self.backend_tokenizer.model, "continuing_subword_prefix", None)
        if prefix is not None:  # transformers passes it on for BPE only
            kwargs.setdefault("continuing_subword_prefix", prefix)
        return super().train_new_from_iterator(text_iterator, vocab_size, *args, **kwargs)

    @property
    def source_backend_tokenizer(self) -> Tokenizer:
        """The backend that reads source texts: `backend_tokenizer` itself when the vocabulary is shared."""
        return self._source_side().backend_tokenizer

    def reading_backends(self) -> tuple[Tokenizer, Tokenizer]:
        """
        New backends that read source and target texts as this tokenizer does, also where it separates the special
        tokens of the user from those that are plain text in a text (`split_special_tokens`).
        """
        source, target = (side._own_backend(self.split_special_tokens) for side in (self._source_side(), self))
        for backend in (source, target):
            backend.encode_special_tokens = self.split_special_tokens
        return source, target

    @property
    def source_vocab_size(self) -> int | None:
        """Size of the separate source vocabulary with added tokens; None when the vocabulary is shared."""
        return len(self._source_side()) if self.separate_vocabularies else None

    def decode_source(self, token_ids: Any, skip_special_tokens: bool = False, **kwargs: Any) -> str | list[str]:
        """`decode` for ids of source texts."""
        return self._source_side().decode(token_ids, skip_special_tokens=skip_special_tokens, **kwargs)

    def _source_side(self) -> "VanillaTransformerTokenizer":
        """This tokenizer with the source vocabulary in the target's place; itself when they are one."""
        if self._source_tokenizer is None:
            return self
        side = copy.copy(self)
        vars(side).update(
            _tokenizer=self._source_tokenizer, _source_tokenizer=None, listed_pieces=self.source_listed_pieces
        )
        return side

    def _is_listed(self, token_id: int) -> bool:
        # Added tokens come after the intermediate tokens.
        limit = self.listed_pieces
        return limit is None or token_id < limit or token_id >= super().vocab_size

    @property
    def vocab_size(self) -> int:
        """Size of the (target) vocabulary without tokens that were added later."""
        return super().vocab_size if self.listed_pieces is None else self.listed_pieces

    def get_vocab(self) -> dict[str, int]:
        """The tokens of the (target) vocabulary with their ids."""
        return {piece: token_id for piece, token_id in super().get_vocab().items() if self._is_listed(token_id)}

    def __len__(self) -> int:
        size, added = super().__len__(), super().__len__() - super().vocab_size
        return size if added or self.listed_pieces is None else self.listed_pieces

    def _convert_token_to_id_with_added_voc(self, token: str) -> int:
        token_id = super()._convert_token_to_id_with_added_voc(token)
        return token_id if token_id is None or self._is_listed(token_id) else self.unk_token_id

    def _convert_encoding(self, *args: Any, **kwargs: Any) -> Any:
        converted, encodings = super()._convert_encoding(*args, **kwargs)
        if self.listed_pieces is not None:
            unk = self.unk_token_id
            rows = converted["input_ids"]
            converted["input_ids"] = [[i if self._is_listed(i) else unk for i in row] for row in rows]
        return converted, encodings

    def __call__(
        self,
        text: Any = None,
        text_pair: Any = None,
        text_target: Any = None,
        text_pair_target: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> BatchEncoding:
        """Source texts, target texts (`text_target`) or both to ids, with all arguments of transformers' class."""
        # Each side is a call of its own: the side is an argument and not a state, which threads would share.
        if text_target is None:
            return super().__call__(text, text_pair, None, None, *args, **kwargs)
        sides = {"is_target": True, **kwargs}
        if text is None:
            return super().__call__(None, None, text_target, text_pair_target, *args, **sides)
        batch = super().__call__(text, text_pair, None, None, *args, **kwargs)
        targets = super().__call__(None, None, text_target, text_pair_target, *args, **sides)
        batch["labels"] = targets["input_ids"]
        return batch

    def _encode_plus(
        self, text: Any, text_pair: Any = None, *args: Any, is_target: bool = False, **kwargs: Any
    ) -> BatchEncoding:
        if self.init_kwargs.get("normalize_white_space") and not kwargs.get("is_split_into_words"):
            text, text_pair = _without_ending_space(text), _without_ending_space(text_pair)
        reader = copy.copy(self if is_target else self._source_side())
        splits = kwargs.get("split_special_tokens")
        # transformers sets truncation, padding and more in the backend. Here, that is one that only this call sees.
        vars(reader)["_tokenizer"] = reader._own_backend(self.split_special_tokens if splits is None else splits)
        return super(VanillaTransformerTokenizer, reader)._encode_plus(text, text_pair, *args, **kwargs)

    def _own_backend(self, splits_control: bool) -> Tokenizer:
        """
        A new backend of the same parts; with `splits_control`, it recognises no special tokens of `CONTROL_ROLES`.

        The parts are shared, not copied, so this takes 0.1 ms and follows every change of them, such as BPE-dropout.
        """
        whole: Any = self._tokenizer
        control = {str(getattr(self, role)) for role in CONTROL_ROLES}
        backend = Tokenizer(whole.model)
        for part in ("normalizer", "pre_tokenizer", "post_processor"):
            if (value := getattr(whole, part)) is not None:
                setattr(backend, part, value)
        added = [token for _, token in sorted(whole.get_added_tokens_decoder().items())]
        for token in added:
            # A backend splits all of its special tokens or none: for reading, the others are ordinary tokens.
            token.special = token.special and not (splits_control and token.content not in control)
        backend.add_tokens(added)  # in the order of their ids, so that they get the same ones
        return backend

    def add_special_tokens(self, special_tokens_dict: dict, *args: Any, **kwargs: Any) -> int:
        """
        Add special tokens (transformers' method).

        A mask token given as a `str` takes in the space before it, as RoBERTa's does: in a text it stands for a token
        with its space, as in training. An `AddedToken` is taken as it is.
        """
        tokens = dict(special_tokens_dict)
        if isinstance(mask := tokens.get("mask_token"), str) and mask not in self.added_tokens_encoder:
            tokens["mask_token"] = _mask(mask)
        return super().add_special_tokens(tokens, *args, **kwargs)

    def _add_tokens(self, new_tokens: list, special_tokens: bool = False) -> int:
        if isinstance(mask := self._special_tokens_map.get("mask_token"), str):  # given to the constructor as a `str`
            new_tokens = [_mask(mask) if str(token) == mask else token for token in new_tokens]
        if self._source_tokenizer is not None:
            self._source_side()._add_tokens(new_tokens, special_tokens)
        return super()._add_tokens(new_tokens, special_tokens)

    def _save_pretrained(
        self, save_directory, file_names, legacy_format=None, filename_prefix=None
    ) -> tuple[str, ...]:
        for file, backend in zip(TOKENIZER_FILES.values(), (self._tokenizer, self._source_tokenizer), strict=True):
            if backend is not None:
                # Padding and truncation are a call's own; what was set in the backend directly is not saved.
                backend.no_padding()
                backend.no_truncation()
                path = os.path.join(save_directory, f"{filename_prefix}-{file}" if filename_prefix else file)
                backend.save(path)
                file_names += (path,)
        return file_names

    @classmethod
    def _from_pretrained(
        cls, resolved_vocab_files, pretrained_model_name_or_path, init_configuration, *init_inputs, **kwargs
    ):
        path = resolved_vocab_files.get("tokenizer_file")
        if path is None:
            name = TOKENIZER_FILES["tokenizer_file"]
            raise OSError(f"{pretrained_model_name_or_path}: {name} is missing; copy it from where it was saved.")
        cls.check_files(resolved_vocab_files)
        try:
            return super()._from_pretrained(
                resolved_vocab_files, pretrained_model_name_or_path, init_configuration, *init_inputs, **kwargs
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            _read_backend(path)  # names the file if that is what failed
            raise

    @classmethod
    def convert_to_native_format(cls, trust_remote_code: bool = False, **kwargs: Any) -> dict[str, Any]:
        """Let `__init__` read the files: transformers would rebuild the backend without its normalizer."""
        return kwargs

    @classmethod
    def _patch_mistral_regex(cls, tokenizer: Tokenizer, *args: Any, **kwargs: Any) -> Tokenizer:
        """Keep the backend unchanged: transformers would look up on the Hub whether a large one is Mistral's."""
        return tokenizer


def _without_ending_space(text: Any) -> Any:
    """Texts, in lists or not, without white space at their ends."""
    # The backend cannot do it: it sees what stands before an added token as a text of its own.
    if isinstance(text, str):
        return text.rstrip(ENDING_SPACE)
    return type(text)(map(_without_ending_space, text)) if isinstance(text, list | tuple) else text


def _mask(name: str) -> AddedToken:
    return AddedToken(name, lstrip=True, normalized=False, special=True)


def _read_backend(path: str) -> Tokenizer:
    with _naming_damage(path):
        return Tokenizer.from_file(path)


@contextmanager
def _naming_damage(path: str | None) -> Iterator[None]:
    """Name the file that the backend could not read: it raises a plain `Exception`, or panics."""
    try:
        yield
    except BaseException as error:
        if path is None or not is_failure(error):
            raise
        raise ValueError(f"{path} is not a complete tokenizer file ({error}); save or copy it again.") from None


def _checked(texts: Iterable[str], side: str) -> Iterator[str]:
    empty = True
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise TypeError(f"{side} text {number} is {type(text).__name__}, not str.")
        empty = empty and not text.strip()
        yield text
    if empty:
        raise ValueError(f"The {side} corpus is empty: there is no text to train a tokenizer on.")


def _choose(table: dict[str, Any], name: str, argument: str) -> Any:
    if name not in table:
        raise ValueError(f"{argument}={name!r} is unknown; allowed are {', '.join(map(repr, table))}.")
    return table[name]


def _normalizers(lowercase: bool, unicode_normalization: str | None, normalize_white_space: bool) -> list:
    """The steps of a new tokenizer's normalizer."""
    steps: list = []
    if normalize_white_space:
        # At the beginning they become a space: Metaspace finds a first word by its place in the text as it was given.
        steps.append(normalizers.Replace(Regex(rf"\A[{INVISIBLE_CHARACTERS}]+"), " "))
        steps.append(normalizers.Replace(Regex(f"[{INVISIBLE_CHARACTERS}]+"), ""))
    if unicode_normalization is not None:
        steps.append(_choose(UNICODE_NORMALIZATIONS, unicode_normalization, "unicode_normalization")())
    if lowercase:
        steps.append(normalizers.Lowercase())
    # A space is put before the text, so that a word has the same tokens first in a sentence as inside it, and the
    # decoder takes one space away. Metaspace adds no space where the text already begins with one: white space that is
    # normalised ends there, and otherwise KEEPER hides that space from it. The normalizer sees what follows an added
    # token as a text of its own; Metaspace does not.
    if normalize_white_space:
        steps.append(normalizers.Replace(Regex(f"[{WHITE_SPACE}]+"), " "))
        return steps
    steps.append(normalizers.Replace(Regex(rf"\A{KEEPER}"), KEEPER + KEEPER))
    steps.append(normalizers.Replace(Regex(r"\A "), f"{KEEPER} "))
    return steps


def _train_backend(
    texts: Iterable[str],
    vocab_size: int,
    model: str,
    steps: list,
    normalize_white_space: bool,
    min_frequency: int,
    show_progress: bool,
    length: int | None,
) -> Tokenizer:
    make_model, make_trainer = _choose(MODELS, model, "model")
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    smallest = len(SPECIAL_TOKENS) + len(alphabet)
    if vocab_size < smallest:
        raise ValueError(
            f"vocab_size={vocab_size} cannot hold the {len(alphabet)} bytes and {len(SPECIAL_TOKENS)} special tokens;"
            f" at least {smallest} are needed."
        )
    backend = Tokenizer(make_model())
    backend.normalizer = normalizers.Sequence(steps)
    keeps_space = [] if normalize_white_space else [Regex(rf"\A{KEEPER}|(?<=\A ){KEEPER}")]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="first", split=False),
            *(pre_tokenizers.Split(each, behavior="removed") for each in keeps_space),
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(content=" ", left=1, right=0)])
    trainer = make_trainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=alphabet,
        show_progress=show_progress,
    )
    backend.train_from_iterator(texts, trainer=trainer, length=length)
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B:1 </s>:1", special_tokens=[("</s>", SPECIAL_TOKENS.index("</s>"))]
    )
    return backend
