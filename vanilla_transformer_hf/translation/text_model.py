"""A model and its tokenizer: scores and alignments of given translations."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..common.choices import SplitSentences, TooLongToScore, check_choice
from ..common.opening import check_fit, is_own
from ..model.config.attention_kinds import ATTENTION_KINDS
from .scoring.alignment import Alignment, align_pairs, join_alignments
from .scoring.scoring import TextScore, score_pairs
from .search.token_translator import quantized
from .text.splitting import Part, pair_parts
from .text.tally import ProgressBar, Tally
from .text.texts import TextEncoder, TextError, check_texts, pad_rows, placed
from .text_translator import WINDOW, Limits, TextTranslator, windows


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


class TextModel(TextTranslator):
    """The base of [`Translator`], which says what its attributes are: with the scores and alignments of a model."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        check_fit(model, tokenizer)
        super().__init__(tokenizer, limits_of(model, tokenizer))
        self.model: Any = model.eval()
        self.matmul = "default"
        self.quantization: str | None = None

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

    def score(
        self,
        sources: str | Iterable[str],
        targets: str | Iterable[str],
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        too_long: TooLongToScore = "error",
        split_sentences: SplitSentences | None = None,
        progress_bar: bool = False,
    ) -> TextScore | list[TextScore]:
        """
        The probability of given translations under the model (forced decoding).

        Args:
            sources: A text, or several.
            targets: As many translations.
            batch_size: Maximum number of pairs that go through the model together.
            batch_tokens: Maximum number of tokens of both sides in a batch, padding included. If neither is given,
                2,048 and 128 pairs.
            too_long: "error"; or "truncate": score the beginnings of pairs that are too long for the model; or
                "whole": score them whole, if the encoder's attention costs O(n). Pairs of several lines are scored as
                they are translated, one by one, if both sides have the same number.
            split_sentences: Whether pairs of several sentences are, too, if both sides have the same number: "always",
                "never" or "auto", as in `translate`. If not given, the translator's `split_sentences`.
            progress_bar: Show a progress bar on standard error.

        Returns:
            For a pair its [`TextScore`]: log-probability, that of each token, perplexity. For several the list.

        Raises:
            TypeError: A text is not a `str`.
            ValueError: There are not as many targets as sources, or a text is too long for the model.
        """
        options: dict[str, Any] = {"batch_size": batch_size, "batch_tokens": batch_tokens, "too_long": too_long}
        options["split_sentences"] = split_sentences
        scores: TextScore | list[TextScore] = self._of_pairs(
            self.score_stream, sources, targets, progress_bar=progress_bar, options=options
        )
        return scores

    def align(
        self,
        sources: str | Iterable[str],
        targets: str | Iterable[str],
        layer: int | None = None,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        too_long: TooLongToScore = "error",
        split_sentences: SplitSentences | None = None,
        progress_bar: bool = False,
    ) -> Alignment | list[Alignment]:
        """
        Word alignments of given translations, from the decoder's attention to the source.

        Args:
            sources, targets, batch_size, batch_tokens, too_long, split_sentences, progress_bar: As in `score`.
            layer: Index of the decoder layer, negative from the end; by default the third of six (see
                `alignment.default_layer`).

        Returns:
            For a pair its [`Alignment`]: `str()` of it is "0-0 1-2" (Pharaoh format), `weights` the attention of words
            to words. For several the list.

        Raises:
            TypeError: A text is not a `str`.
            ValueError: As `score`; or the model does not return its attention, does not have the layer, or its
                tokenizer does not return offsets.
        """
        options: dict[str, Any] = {"batch_size": batch_size, "batch_tokens": batch_tokens, "too_long": too_long}
        options |= {"layer": layer, "split_sentences": split_sentences}
        alignments: Alignment | list[Alignment] = self._of_pairs(
            self.align_stream, sources, targets, progress_bar=progress_bar, options=options
        )
        return alignments

    def score_stream(
        self, pairs: Iterable[tuple[str, str]], window: int = WINDOW, **options: Any
    ) -> Iterator[TextScore]:
        """`score` for any number of pairs in constant memory; `options` as there, and `tally`."""

        def score(parts: Sequence[tuple[str, str]], **arguments: Any) -> list[TextScore]:
            model = quantized(self.model, self.quantization)
            return score_pairs(model, self.tokenizer, pairs=parts, matmul_backend=self.matmul, **arguments)

        for _, _, found in self._in_parts(score, pairs, window, **options):
            tokens = [token for each in found for token in each.tokens]
            yield TextScore(tokens, [value for each in found for value in each.token_log_probabilities])

    def align_stream(
        self, pairs: Iterable[tuple[str, str]], window: int = WINDOW, layer: int | None = None, **options: Any
    ) -> Iterator[Alignment]:
        """`align` for any number of pairs in constant memory; `options` as there, and `tally`."""

        def align(parts: Sequence[tuple[str, str]], **arguments: Any) -> list[Alignment]:
            arguments |= {"layer": layer, "matmul_backend": self.matmul}
            return align_pairs(self.model, self.tokenizer, pairs=parts, **arguments)

        for pair, parts, found in self._in_parts(align, pairs, window, **options):
            first_words = [(source.first_word, target.first_word) for source, target in parts]
            yield join_alignments(pair, found, first_words, repeated=[source.repeated for source, _ in parts])

    def _encoders(
        self, too_long: str, split_sentences: SplitSentences | None = None
    ) -> tuple[TextEncoder, TextEncoder]:
        """The encoders of both sides; `ValueError` for choices that pairs do not have."""
        check_choice("too_long", too_long, TooLongToScore)
        options: dict[str, Any] = {"too_long": too_long, "split_sentences": split_sentences}
        return self.encoder(**options), self.encoder(**options, is_target=True)

    def _in_parts(
        self,
        work: Callable[..., list[Any]],
        pairs: Iterable[tuple[str, str]],
        window: int,
        tally: Tally | None = None,
        too_long: TooLongToScore = "error",
        split_sentences: SplitSentences | None = None,
        **limits: int | None,
    ) -> Iterator[tuple[tuple[str, str], list[tuple[Part, Part]], list[Any]]]:
        """Each pair, with the pairs of its lines or sentences, and what the work finds for these."""
        tally = tally or Tally()
        encoders = source, target = self._encoders(too_long, split_sentences)
        for some in windows(pairs, window):
            for place, pair in enumerate(some):
                with placed(place):
                    check_texts(pair)
            parts = [pair_parts(pair, (source.language, target.language), source.in_sentences) for pair in some]
            for each in parts:
                source.repeat_tags([side for side, _ in each])
            owners = [place for place, each in enumerate(parts) for _ in each]
            texts = [(one.text, other.text) for each in parts for one, other in each]
            try:
                found = iter(work(texts, encoders=encoders, tally=tally, **limits))
            except TextError as error:
                raise TextError(owners[error.place], error.reason) from error
            tally.add(sentences=len(some) - len(owners))  # the work has counted the parts
            for pair, each in zip(some, parts):
                yield pair, each, [next(found) for _ in each]

    def _of_pairs(
        self,
        stream: Callable[..., Iterator[Any]],
        sources: str | Iterable[str],
        targets: str | Iterable[str],
        progress_bar: bool,
        options: dict[str, Any],
    ) -> Any:
        single = isinstance(sources, str)
        if single != isinstance(targets, str):
            raise ValueError("sources and targets: give either two texts or two lists")
        left, right = [[side] if isinstance(side, str) else list(side) for side in (sources, targets)]
        if len(left) != len(right):
            raise ValueError(f"sources and targets differ in number: {len(left)} and {len(right)}")
        with ProgressBar(len(left), disable=not progress_bar) as tally:
            results = list(stream(zip(left, right), tally=tally, **options))
        self.warn(tally, "truncate", has_targets=True)
        return results[0] if single else results

    def collate(self, sources: Sequence[Sequence[int]]) -> dict[str, Any]:
        """`input_ids` and `attention_mask` (B, S) of B sources of at most S tokens; S is at least 1."""
        input_ids, attention_mask = pad_rows(sources, self.tokenizer.pad_token_id)
        return {"input_ids": input_ids, "attention_mask": attention_mask}
