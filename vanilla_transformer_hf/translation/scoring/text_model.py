"""A model and its tokenizer: texts to token ids within the model's limits."""

import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.tokenization_utils_base import LARGE_INTEGER

from ...common.choices import ENOUGH_LINES, MULTI_SENTENCE_SHARE, SplitSentences, TooLongToTranslate, check_choice
from ...common.opening import check_fit, is_own
from ...model.config.attention_kinds import ATTENTION_KINDS
from ..text.tally import Tally
from ..text.texts import PART_MAX_LENGTH, TARGET_LANG_TAGS, LanguageTags, TextEncoder, WithoutLetters, pad_rows


logger = logging.getLogger(__name__)

# Lines of a stream that are sorted by length together: more lines need less padding but answer later.
WINDOW = 2048


class TextModel:
    """
    The base of translating, scoring and aligning: a model, its tokenizer, and the limits of length.

    Args:
        model: An encoder–decoder. It is put into evaluation mode and stays on its device.
        tokenizer: The tokenizer it was trained with.

    Attributes:
        source_prefix (`str`): Text put before each source text.
        without_letters (`str`): What `translate` does with a text without letters, such as "***" or "42": "copy" (the
            text is its own translation), "mark" (it is translated, and `Translation.is_suspicious`) or "translate".
        matmul (`str`): The library of float32 matrix products in use.
        quantization (`str`, *optional*): "int8" where linear maps are computed in this type.
        max_source_length (`int`): Tokens of the longest source line that goes through the model at once.
        split_sentences (`str`): Whether sentences on one line are translated one by one, unless given in a call:
            "auto", "always" or "never".

    Raises:
        ValueError: The tokenizer's vocabulary does not fit the model.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        check_fit(model, tokenizer)
        self.model: Any = model.eval()
        self.tokenizer, self.source_prefix, self.matmul = tokenizer, "", "default"
        self.without_letters: WithoutLetters = "copy"
        self.quantization: str | None = None
        positions = getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length
        self._positions = positions
        self._max_target_positions = getattr(model.config, "decoder_max_position_embeddings", None) or positions
        self.max_source_length = self._guessed_source_length = min(tokenizer.model_max_length, positions)
        self._has_doubted = False
        self.split_sentences: SplitSentences = "auto"
        self._tags: tuple[Any, Any, LanguageTags] | None = None

    def use_target_lang(self, language: str) -> None:
        """
        Set the target language: its tag becomes the `source_prefix`.

        Args:
            language: One of the languages that a multilingual model was trained with (`target_lang_tags`), or its tag.

        Raises:
            ValueError: The tokenizer has no tag for it.
        """
        self.source_prefix = self.tag_of(language)

    @property
    def language_tags(self) -> LanguageTags:
        """The tags with which a source text may begin; read again for another tokenizer or others of its tags."""
        tags, registered = self._tags, self.tokenizer.init_kwargs.get(TARGET_LANG_TAGS)
        if tags is None or tags[0] is not self.tokenizer or tags[1] is not registered:
            self._tags = tags = self.tokenizer, registered, LanguageTags(self.tokenizer)
        return tags[2]

    @property
    def target_lang_tags(self) -> dict[str, str]:
        """Target language -> the tag that sources begin with; empty for models with one target language."""
        return dict(self.tokenizer.init_kwargs.get(TARGET_LANG_TAGS) or {})

    def tag_of(self, language: str) -> str:
        """
        The tag of a target language, or of one that is named by its tag (">>deu<<"), for a single request: the
        `source_prefix` of `encoder`.

        Raises:
            ValueError: The tokenizer has no tag for it.
        """
        tags = self.target_lang_tags
        if named := [tag for tag in tags.values() if tag.strip() == language.strip()]:
            return named[0]
        if language not in tags:
            known = f"expected one of {', '.join(tags)}" if tags else "its tokenizer has no target_lang_tags"
            raise ValueError(f"{language!r} is not a target language of this model: {known}.")
        return tags[language]

    def pieces_of(self, texts: str | Iterable[str]) -> list[int]:
        """The sorted token ids that occur in texts of the target language; texts may be a stream."""
        texts = [texts] if isinstance(texts, str) else texts
        return sorted({piece for some in windows(texts, WINDOW) for ids in self._target_ids(some) for piece in ids})

    @property
    def max_target_length(self) -> int:
        """Tokens of the longest target line that is scored or aligned."""
        return int(self._max_target_positions) - 1

    def encoder(
        self,
        too_long: TooLongToTranslate = "split",
        is_target: bool = False,
        source_prefix: str | None = None,
        split_sentences: SplitSentences | None = None,
    ) -> TextEncoder:
        """The encoder of one side's texts within the model's limits; its own prefix and sentences by default."""
        if too_long == "whole":
            self._check_whole()
        limit = self.max_target_length if is_target else self.max_source_length
        is_guess = (
            not is_target
            and self.tokenizer.model_max_length > LARGE_INTEGER
            and self.max_source_length == self._guessed_source_length
        )
        source_prefix = self.source_prefix if source_prefix is None else source_prefix
        prefix = "" if is_target else source_prefix
        part = None if is_target else self.tokenizer.init_kwargs.get(PART_MAX_LENGTH)
        positions = _positions_of(self.model.get_decoder()) if is_target else self._most_source_positions
        language = getattr(self.tokenizer, "tgt_lang" if is_target else "src_lang", None)
        in_sentences = self._splits_sentences(split_sentences or self.split_sentences, too_long)
        encoder = TextEncoder(
            self.tokenizer,
            limit,
            too_long=too_long,
            is_target=is_target,
            is_guess=is_guess,
            prefix=prefix,
            part_limit=part,
            positions=positions,
            language=language,
            in_sentences=in_sentences,
            copies_without_letters=not is_target and self.without_letters == "copy",
            language_tags=self.language_tags,
        )
        if not is_target and limit <= encoder.around:
            raise ValueError(f"max_source_length={limit}: must be at least {encoder.around + 1}")
        if not is_target and limit > self._most_source_positions:
            raise ValueError(f"max_source_length={limit}: the model has {self._most_source_positions} positions")
        return encoder

    def _splits_sentences(self, choice: SplitSentences, too_long: str) -> bool:
        """Whether the sentences of a line are translated one by one; a text that is to stay whole stays whole."""
        if check_choice("split_sentences", choice, SplitSentences) != "auto":
            return choice == "always"
        # Models that do not record their training text, such as converted ones, were most likely trained on sentences.
        return too_long != "whole" and self.tokenizer.init_kwargs.get(MULTI_SENTENCE_SHARE, 0) < ENOUGH_LINES

    @property
    def _most_source_positions(self) -> float:
        longest = getattr(self.model.config, "max_position_embeddings", None)
        # Other models of transformers have it in their config.
        most = getattr(self.model.get_encoder(), "longest", longest) or math.inf
        is_limited = getattr(self.model.config, "cross_attention_type", "full") == "linformer"
        return min(most, longest) if is_limited and longest else most

    def _check_whole(self) -> None:
        """Raise `ValueError` where long texts cannot go whole through the model, or one of the ensemble."""
        for model in (self.model, *getattr(self, "ensemble", ())):
            if not is_own(model.config):
                raise ValueError(f"too_long='whole': not supported by {type(model).__name__}; give 'split'")
            if ATTENTION_KINDS[kind := model.config.encoder_attention_type].is_quadratic:
                raise ValueError(
                    f"too_long='whole': the encoder's attention is {kind!r}, whose cost grows with the square of a "
                    "text's length; give 'split', or a model with another encoder_attention_type, such as 'window'"
                )

    def warn(self, tally: Tally, too_long: str, has_targets: bool = False) -> None:
        """Log losses with their numbers of texts; log once that lengths are doubtful."""
        target_limit = self.max_target_length if has_targets else None
        for name, note in tally.notes(too_long, self.max_source_length, target_limit).items():
            if name == "without_letters":  # no loss
                logger.info(note)
            elif name != "doubtful" or not self._has_doubted:
                logger.warning(note)
            self._has_doubted |= name == "doubtful"

    def collate(self, sources: Sequence[Sequence[int]]) -> dict[str, Any]:
        """`input_ids` and `attention_mask` (B, S) of B sources of at most S tokens; S is at least 1."""
        input_ids, attention_mask = pad_rows(sources, self.tokenizer.pad_token_id)
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def _target_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of target texts, without special tokens."""
        options = {"add_special_tokens": False}
        return self.encoder(is_target=True).ids(texts, **options)["input_ids"] if texts else []


def _positions_of(stack: Any) -> float:
    """The number of positions of a stack of this package."""
    return getattr(stack, "longest", None) or math.inf


def windows(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """The items in lists of this size, read only as far as needed."""
    if size < 1:
        raise ValueError(f"window={size}: must be at least 1")
    items = iter(items)
    while some := list(itertools.islice(items, size)):
        yield some
