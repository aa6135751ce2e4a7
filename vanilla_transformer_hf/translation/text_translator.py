"""
Texts to translations, whoever searches: languages, lines and sentences, limits of length, batches, and joined results.

Nothing heavy is imported: `Translator` adds a model of torch, `KeptTranslator` only CTranslate2.
"""

import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..common.choices import ENOUGH_LINES, MULTI_SENTENCE_SHARE, SplitSentences, TooLongToTranslate, check_choice
from ..model.config.search_settings import EXTRA_TARGET_TOKENS, LENGTH_LIMITS
from .results import NearMatch, Translation, copied_translation, join_parts
from .search.parts import translate_parts
from .search.token_search import TokenSearch
from .text.splitting import Part
from .text.tally import Tally
from .text.texts import (
    PART_MAX_LENGTH,
    TARGET_LANG_TAGS,
    LanguageTags,
    TextEncoder,
    WithoutLetters,
    has_letters,
    is_constrained,
)


if TYPE_CHECKING:
    from .search.minimum_risk import MinimumRisk


logger = logging.getLogger(__name__)

# Lines of a stream that are sorted by length together: more lines need less padding but answer later.
WINDOW = 2048
# A tokenizer that does not record the length of its training sentences has a larger `model_max_length`.
NO_LENGTH = 10**20
# Arguments with a value for each sentence of a batch: texts are sorted before they are batched.
OF_EACH_SENTENCE = ("prefixes", "required_phrases", "decoder_input_ids")


class KnownTexts(Protocol):
    """Translations of texts, as they are or nearly, such as [`Memory`]."""

    def get(self, text: str) -> str | None: ...

    def near(self, text: str, most: int = ...) -> list[NearMatch]: ...


class Limits(NamedTuple):
    """Numbers of tokens: of the model's positions, and of the longest texts that its stacks can read; may be inf."""

    positions: int
    target_positions: int
    source: float
    target: float


def limits_of(model: Any, tokenizer: Any) -> Limits:
    """How many tokens a model reads."""
    positions = getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length
    longest = getattr(model.config, "max_position_embeddings", None)
    # Other models of transformers have it in their config.
    source = getattr(model.get_encoder(), "longest", longest) or math.inf
    is_limited = getattr(model.config, "cross_attention_type", "full") == "linformer"
    return Limits(
        positions,
        getattr(model.config, "decoder_max_position_embeddings", None) or positions,
        source=min(source, longest) if is_limited and longest else source,
        target=getattr(model.get_decoder(), "longest", None) or math.inf,
    )


class TextTranslator:
    """The base of [`Translator`], which says what its attributes are: texts in, translations out."""

    search: TokenSearch  # from token ids to token ids; it is asked what options it has

    def __init__(self, tokenizer: Any, limits: Limits):
        self.tokenizer, self.source_prefix, self._limits = tokenizer, "", limits
        self.without_letters: WithoutLetters = "copy"
        self.max_source_length = self._guessed_source_length = min(tokenizer.model_max_length, limits.positions)
        self._has_doubted = False
        self.split_sentences: SplitSentences = "auto"
        self._tags: tuple[Any, Any, LanguageTags] | None = None
        self.memory: KnownTexts | None = None
        self.near_matches = 0

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
        return int(self._limits.target_positions) - 1

    def encoder(
        self,
        too_long: TooLongToTranslate = "split",
        is_target: bool = False,
        source_prefix: str | None = None,
        split_sentences: SplitSentences | None = None,
        known: Callable[[str], str | None] | None = None,
    ) -> TextEncoder:
        """
        The encoder of one side's texts within the model's limits; its own prefix and sentences by default. `known`
        gives the translations of a memory.
        """
        if too_long == "whole":
            self._check_whole()
        limit = self.max_target_length if is_target else self.max_source_length
        splits = check_choice("split_sentences", split_sentences or self.split_sentences, SplitSentences)
        if splits == "auto" and (  # models that do not record their text, such as converted ones, know sentences alone
            too_long == "whole" or self.tokenizer.init_kwargs.get(MULTI_SENTENCE_SHARE, 0) >= ENOUGH_LINES
        ):
            splits = "never"
        encoder = TextEncoder(
            self.tokenizer,
            limit,
            too_long,
            is_target,
            is_guess=not is_target
            and self.tokenizer.model_max_length > NO_LENGTH
            and limit == self._guessed_source_length,
            prefix="" if is_target else self.source_prefix if source_prefix is None else source_prefix,
            part_limit=None if is_target else self.tokenizer.init_kwargs.get(PART_MAX_LENGTH),
            positions=self._limits.target if is_target else self._limits.source,
            language=getattr(self.tokenizer, "tgt_lang" if is_target else "src_lang", None),
            in_sentences=splits != "never",
            copies_without_letters=not is_target and self.without_letters == "copy",
            language_tags=self.language_tags,
            known=known,
        )
        if not is_target and limit <= encoder.around:
            raise ValueError(f"max_source_length={limit}: must be at least {encoder.around + 1}")
        if not is_target and limit > self._limits.source:
            raise ValueError(f"max_source_length={limit}: the model has {self._limits.source} positions")
        return encoder

    def translate_stream(
        self,
        texts: Iterable[str],
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        window: int = WINDOW,
        too_long: TooLongToTranslate = "split",
        split_sentences: SplitSentences | None = None,
        tally: Tally | None = None,
        return_scores: bool = False,
        return_alignments: bool = False,
        mbr: "MinimumRisk | None" = None,
        **generate_kwargs: Any,
    ) -> Iterator[list[Translation]]:
        """
        Translate any number of texts in constant memory.

        Args:
            texts: An iterable, read only as far as needed.
            batch_size, batch_tokens, too_long, split_sentences, return_scores, return_alignments, mbr: As in
                `translate`.
            window: Number of texts that are read and sorted by length before the first is translated. With 1, each
                text is answered before the next is read.
            tally: Counts sentences, target tokens, over-long texts, and those whose translations lack a phrase, after
                every batch. If not given, a warning at the end counts the losses.
            generate_kwargs: Other arguments of `generate()`.

        Yields:
            For each text, in order, its n-best list: `num_return_sequences` translations, sorted as in `translate`.

        Raises:
            TypeError: A text is not a `str`.
            ValueError: As `translate`.
        """
        for name in OF_EACH_SENTENCE:
            if generate_kwargs.get(name) is not None:
                raise ValueError(f"{name}: batches have another order than texts; give ConstrainedText instead")
        options = self._search_options(too_long, generate_kwargs, mbr)
        known = None if self.memory is None else self.memory.get
        encoder = self.encoder(too_long, split_sentences=split_sentences, known=known)
        limits = {"batch_size": batch_size, "batch_tokens": batch_tokens}
        counts = tally or Tally()
        try:
            for lines in windows(texts, window):
                parts_of_lines = encoder(lines, counts)
                self._require(lines, parts_of_lines, options, counts)
                found = translate_parts(
                    parts_of_lines,
                    search=self.search,
                    tokenizer=self.tokenizer,
                    limits=limits,
                    tally=counts,
                    return_scores=return_scores,
                    options=options,
                    mbr=mbr,
                )
                if return_alignments:
                    self._align_parts(parts_of_lines, found, limits=limits)
                for line, parts, lists in zip(lines, parts_of_lines, found, strict=True):
                    n_best = self.join(line, parts, lists, options, return_scores, return_alignments)
                    if self.memory is not None and self.near_matches:
                        unknown = [part.text for part in parts if part.known is None]
                        near = [each for text in unknown for each in self.memory.near(text, self.near_matches)]
                        n_best[0].near_matches = tuple(near)
                        counts.add(near_matches=bool(near))
                    if n_best[0].is_suspicious:
                        counts.add(suspicious=1)
                    if n_best[0].missing_terms:
                        counts.add(missing_terms=1)
                    yield n_best
        finally:
            if tally is None:
                self.warn(counts, too_long)

    def _search_options(
        self, too_long: TooLongToTranslate, generate_kwargs: dict[str, Any], mbr: "MinimumRisk | None" = None
    ) -> dict[str, Any]:
        """The arguments of `generate()` for a stream of texts."""
        options = {**generate_kwargs}
        if too_long == "whole" and all(options.get(name) is None for name in (*LENGTH_LIMITS, "generation_config")):
            # The limits that models are saved with are those of their training.
            options["max_extra_tokens"] = max(EXTRA_TARGET_TOKENS, self.max_source_length)
        return options

    def _require(
        self, lines: Sequence[str], parts_of_lines: list[list[Part]], options: dict[str, Any], tally: Tally
    ) -> None:
        """Give parts what their translations must contain; `Translator` can."""
        if any(map(is_constrained, lines)):
            raise ValueError("constraints: need a Translator, which has the model itself")

    def _check_whole(self) -> None:
        """Raise `ValueError` where long texts cannot go whole through the model."""
        raise ValueError("too_long='whole': needs a Translator, which has the model itself")

    def _align_parts(
        self, parts: list[list[Part]], found: list[list[list[Translation]]], limits: dict[str, int | None]
    ) -> None:
        """Fill `alignment` of all translations."""
        raise ValueError("return_alignments: needs a Translator, which has the model itself")

    def join(
        self,
        line: str,
        parts: Sequence[Part],
        found: Sequence[Sequence[Translation]],
        options: dict[str, Any],
        has_scores: bool = False,
        has_alignments: bool = False,
    ) -> list[Translation]:
        """The n-best list of a text from those of its parts, found with these arguments of `generate()`."""
        if parts:
            marks = self.without_letters == "mark"
            penalty = self.search.length_penalty(options)
            return join_parts(line, parts, found=found, penalty=penalty, marks_without_letters=marks)
        n_best = self.search.setting("num_return_sequences", options) or 1
        copies = self.without_letters == "copy" and not is_constrained(line)
        text = line.removeprefix(self.language_tags.before(line)) if copies else ""
        text = "" if has_letters(text) or not text.strip() else text
        return [copied_translation(text, has_score=has_scores, has_alignment=has_alignments) for _ in range(n_best)]

    def warn(self, tally: Tally, too_long: str, has_targets: bool = False) -> None:
        """Log losses with their numbers of texts; log once that lengths are doubtful."""
        target_limit = self.max_target_length if has_targets else None
        for name, note in tally.notes(too_long, self.max_source_length, target_limit).items():
            if name == "without_letters":  # no loss
                logger.info(note)
            elif name != "doubtful" or not self._has_doubted:
                logger.warning(note)
            self._has_doubted |= name == "doubtful"

    def _target_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of target texts, without special tokens."""
        return self.encoder(is_target=True).ids(texts, add_special_tokens=False)["input_ids"] if texts else []


def windows(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """The items in lists of this size, read only as far as needed."""
    if size < 1:
        raise ValueError(f"window={size}: must be at least 1")
    items = iter(items)
    while some := list(itertools.islice(items, size)):
        yield some
