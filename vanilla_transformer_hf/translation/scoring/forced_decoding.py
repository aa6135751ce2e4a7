"""Translations that are given, scored and aligned word by word by a model."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ...common.choices import SplitSentences, TooLongToScore, check_choice
from ..search.token_translator import quantized
from ..text.splitting import Segment, pair_segments
from ..text.tally import ProgressBar, Tally
from ..text.texts import TextEncoder, TextError, check_texts, placed
from .alignment import Alignment, align_pairs, join_alignments
from .scoring import TextScore, join_scores, score_pairs
from .text_model import WINDOW, TextModel, windows


class ForcedDecoding(TextModel):
    """Scores and alignments of given translations, for lists of pairs and for streams."""

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
            self._score_pairs, sources, targets=targets, progress_bar=progress_bar, options=options
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
            self._align_pairs, sources, targets=targets, progress_bar=progress_bar, options=options
        )
        return alignments

    def score_stream(
        self, pairs: Iterable[tuple[str, str]], window: int = WINDOW, **options: Any
    ) -> Iterator[TextScore]:
        """`score` for any number of pairs in constant memory; `options` as there, and `tally`."""
        return self._pair_stream(self._score_pairs, pairs, window=window, options=options)

    def align_stream(
        self, pairs: Iterable[tuple[str, str]], window: int = WINDOW, **options: Any
    ) -> Iterator[Alignment]:
        """`align` for any number of pairs in constant memory; `options` as there, and `tally`."""
        return self._pair_stream(self._align_pairs, pairs, window=window, options=options)

    def _encoders(
        self, too_long: str, split_sentences: SplitSentences | None = None
    ) -> tuple[TextEncoder, TextEncoder]:
        """The encoders of both sides; `ValueError` for choices that pairs do not have."""
        check_choice("too_long", too_long, TooLongToScore)
        options: dict[str, Any] = {"too_long": too_long, "split_sentences": split_sentences}
        return self.encoder(**options), self.encoder(**options, is_target=True)

    def _score_pairs(
        self,
        pairs: Sequence[tuple[str, str]],
        tally: Tally,
        too_long: TooLongToScore = "error",
        split_sentences: SplitSentences | None = None,
        **limits: int | None,
    ) -> list[TextScore]:
        encoders = self._encoders(too_long, split_sentences)

        def score(parts: Sequence[tuple[str, str]]) -> list[TextScore]:
            return score_pairs(
                quantized(self.model, self.quantization),
                self.tokenizer,
                encoders=encoders,
                pairs=parts,
                tally=tally,
                matmul_backend=self.matmul,
                **limits,
            )

        return [join_scores(found) for _, _, found in self._in_parts(score, pairs, encoders=encoders, tally=tally)]

    def _align_pairs(
        self,
        pairs: Sequence[tuple[str, str]],
        tally: Tally,
        too_long: TooLongToScore = "error",
        layer: int | None = None,
        split_sentences: SplitSentences | None = None,
        **limits: int | None,
    ) -> list[Alignment]:
        encoders = self._encoders(too_long, split_sentences)

        def align(parts: Sequence[tuple[str, str]]) -> list[Alignment]:
            return align_pairs(
                self.model,
                self.tokenizer,
                encoders=encoders,
                pairs=parts,
                tally=tally,
                layer=layer,
                matmul_backend=self.matmul,
                **limits,
            )

        return [
            join_alignments(
                pair,
                found,
                first_words=[(source.first_word, target.first_word) for source, target in parts],
                repeated=[source.repeated for source, _ in parts],
            )
            for pair, parts, found in self._in_parts(align, pairs, encoders=encoders, tally=tally)
        ]

    @staticmethod
    def _in_parts(
        work: Callable[[Sequence[tuple[str, str]]], list[Any]],
        pairs: Sequence[tuple[str, str]],
        encoders: tuple[TextEncoder, TextEncoder],
        tally: Tally,
    ) -> Iterator[tuple[tuple[str, str], list[tuple[Segment, Segment]], list[Any]]]:
        """Each pair, with the pairs of its lines or sentences, and what the work finds for these."""
        for place, pair in enumerate(pairs):
            with placed(place):
                check_texts(pair)
        languages, in_sentences = (encoders[0].language, encoders[1].language), encoders[0].in_sentences
        parts = [pair_segments(pair, languages, in_sentences=in_sentences) for pair in pairs]
        for each in parts:
            encoders[0].repeat_tags([source for source, _ in each])
        owners = [place for place, each in enumerate(parts) for _ in each]
        try:
            found = iter(work([(source.text, target.text) for each in parts for source, target in each]))
        except TextError as error:
            raise TextError(owners[error.place], error.reason) from error
        tally.add(sentences=len(pairs) - len(owners))  # the work has counted the parts
        for pair, each in zip(pairs, parts):
            yield pair, each, [next(found) for _ in each]

    def _of_pairs(
        self,
        work: Callable[..., list[Any]],
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
            results = list(
                self._pair_stream(work, zip(left, right), window=WINDOW, options={**options, "tally": tally})
            )
        self.warn(tally, "truncate", has_targets=True)
        return results[0] if single else results

    @staticmethod
    def _pair_stream(
        work: Callable[..., list[Any]], pairs: Iterable[tuple[str, str]], window: int, options: dict[str, Any]
    ) -> Iterator[Any]:
        tally = options.pop("tally", None) or Tally()
        for some in windows(pairs, window):
            yield from work(some, tally=tally, **options)
