"""Translate text with a trained model: `Translator`, with scores and word alignments."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..common.choices import SplitSentences, TooLongToScore, TooLongToTranslate, check_choice
from ..common.matmul import MatmulRow, choose_matmul, describe_matmul, probe_matmul
from ..common.opening import check_fit, is_own, open_model, vocabularies
from ..common.white_space import normalize_space
from ..model.config.attention_kinds import ATTENTION_KINDS
from ..model.packing.packed import EXPECTED, MAKERS
from ..model.search.constraints import as_ids
from ..model.search.search import Search
from .results import Translation, read_translations
from .scoring.alignment import Alignment, align_pairs, join_alignments
from .scoring.scoring import TextScore, score_pairs
from .search.minimum_risk import MinimumRisk
from .search.token_translator import TokenTranslator, quantized
from .text.glossary import MOST_OF_SENTENCE, Glossary
from .text.splitting import Part, pair_parts
from .text.tally import ProgressBar, Tally
from .text.texts import TextError, check_texts, is_constrained, placed
from .text_translator import OF_EACH_SENTENCE, WINDOW, Limits, TextTranslator, limits_of, windows


logger = logging.getLogger(__name__)
Found = TypeVar("Found")

# Who searches.
ENGINES = ("ours", "ctranslate2")


class Translator(TextTranslator):
    """
    A model with its tokenizer, from text to text.

    The settings of the search (beams, penalties, limits) come from the model's generation_config.json and may be
    overridden in each call by any argument of `generate()`. If neither has a limit, a translation may have as many
    tokens as its source plus 50, as in the paper (in other models: as the longest source of its batch).

    The lines of a text are translated one by one, and so are its sentences, unless the model has learned to translate
    several at once (`split_sentences`). Line breaks, empty lines and white space at the edges come back as they are;
    white space inside a line reaches the model as single spaces. A text of only white space gives an empty
    translation.

    Args:
        model: An encoder–decoder that can `generate()`. It is put into evaluation mode and stays on its device.
        tokenizer: The tokenizer it was trained with.
        matmul_backend: Library of float32 matrix products on a CPU (`matmul.py`), except in the search of our
            models, which has its own: "auto" measures for 50 ms and takes the fastest that does not round, or
            "default", or "onednn".
        ensemble: Other models with the same vocabularies; the search uses the mean of all probabilities. Scores and
            alignments of given translations (`score`, `align`, `return_alignments`) are the first model's.
        quantization: "int8" computes linear maps with weights and inputs rounded to int8, in searches and in `score`,
            "int8_reduced" with inputs rounded to seven bits, which takes half the time on CPUs with AVX2 alone; only
            models of this package can. Alignments are computed as the model was saved.

    Attributes:
        without_letters (`str`): What is done with a text without letters, such as "-", "***", "42" or an emoji, for
            which models make up words: "copy", the default, copies it; "mark" translates it, and its
            translation `is_suspicious`; "translate" suits models that translate digits.
        shortlist (`list[int]`, *optional*): Token ids that translations may use, for example `pieces_of` a text; None:
            all.
        source_prefix (`str`): What is put before each source text, such as the tag of the language to translate to;
            `use_target_lang` sets it.
        matmul (`str`): The library that is used.
        engine (`str`): The engine that searches: "ours", or "ctranslate2" with the type of its weights.
        matmul_rows (`list`): The measurements that decided it; empty if none were needed.
        max_source_length (`int`): Tokens of the longest source line that goes through the model at once. It starts as
            the smaller of the tokenizer's `model_max_length`, in which training saves how long its sentences were, and
            the model's `max_position_embeddings`. Models drop text from sources longer than those of their training;
            if the tokenizer does not record that length, set it.
        split_sentences (`str`): Whether sentences on one line are translated one by one, unless given in a call:
            "auto", "always" or "never".
        quantization (`str`, *optional*): "int8" or "int8_reduced" where linear maps are computed so.
        glossary (`Glossary`, *optional*): Terms that translations must contain where their sources have them, which
            needs two beams; `Translation.missing_terms` are those that they do not.
        memory (`Memory`, *optional*): Translations that lines and sentences have already, and which are taken.
        near_matches (`int`): How many texts of the memory each sentence has at most in `Translation.near_matches`. It
            starts as 0.

    Raises:
        ValueError: The model does not generate from a source, the tokenizer's vocabulary does not fit it, or the
            quantization is unknown or not possible with this model.

    Example:

    ```python
    >>> from vanilla_transformer_hf import Translator
    >>> translator = Translator.from_pretrained("model_cards/multi30k_raw_en_de")
    >>> translator.translate("Two dogs are playing.")
    'Zwei Hunde spielen.'
    >>> n_best = translator.translate("Two dogs are playing.", num_beams=4, num_return_sequences=4, return_scores=True)
    >>> n_best[0], f"{n_best[0].score:.1f}"
    ('Zwei Hunde spielen.', '-0.1')
    >>> f"{translator.score('Two dogs are playing.', 'Zwei Hunde spielen.').perplexity:.1f}"
    '1.1'
    ```"""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        matmul_backend: str = "auto",
        ensemble: Sequence[PreTrainedModel] = (),
        quantization: str | None = None,
    ):
        check_fit(model, tokenizer)
        limits = [limits_of(each, tokenizer) for each in (model, *ensemble)]
        super().__init__(tokenizer, Limits(*map(min, zip(*limits))))
        self.model: Any = model.eval()
        self.matmul = "default"
        if quantization not in MAKERS.rows:
            raise ValueError(f"quantization={quantization!r}: {EXPECTED}")
        if quantization is not None and not is_own(model.config):
            raise ValueError(f"quantization: not supported by {type(model).__name__}")
        self.quantization: str | None = quantization
        self.engine = "ours"
        self.ensemble = [member.eval() for member in ensemble]
        self.shortlist: list[int] | None = None
        self.glossary: Glossary | None = None
        self.matmul_rows = list[MatmulRow]()
        if matmul_backend != "default" and model.device.type == "cpu" and model.dtype == torch.float32:
            self.matmul_rows = probe_matmul()
            self.matmul = choose_matmul(matmul_backend, self.matmul_rows)
            logger.info(describe_matmul(self.matmul, self.matmul_rows))
        self.search: TokenTranslator = TokenTranslator(
            self.model, tokenizer.pad_token_id, max_positions=self._limits.positions, matmul_backend=self.matmul
        )

    @classmethod
    def from_pretrained(
        cls,
        name: str | os.PathLike[str],
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = "auto",
        trust_remote_code: bool = False,
        revision: str | None = None,
        matmul_backend: str = "auto",
        ensemble: Sequence[str | os.PathLike[str]] = (),
        quantization: str | None = None,
        engine: str = "ours",
    ) -> "Translator":
        """
        Open a saved folder or a Hub repository.

        Args:
            name: The folder, or the repository's id.
            device: Device; if not given, an accelerator if there is one.
            dtype: Floating-point type of the weights; `"auto"` keeps the one they were saved in.
            trust_remote_code: Run model code that the repository brings.
            revision: Branch, tag or commit of the repository `name`.
            matmul_backend: As in the class.
            ensemble: Folders or repositories (main branch) of the other models; each is opened as the first.
            quantization: As in the class. With the engine CTranslate2 another type of that copy's weights, too: int16,
                float16 ….
            engine: "ours", or "ctranslate2", which searches with a copy of the model that is exported once and kept
                in the assets cache of the Hugging Face libraries; `score` and `align` stay ours.

        Raises:
            OSError: Config, weights or tokenizer are missing, damaged or of another model; one line says which.
            ValueError: The parts do not fit each other, the device cannot be used here, or the engine is unknown or
                not installed, or cannot express the model.
        """
        if engine not in ENGINES:
            raise ValueError(f"engine={engine!r}: expected one of {', '.join(map(repr, ENGINES))}")
        kept_in = None
        if engine == "ctranslate2":
            from .kept_copy import kept_copy  # which most users do without, as the next one
            from .search.ctranslate2_translator import CTranslate2Translator

            kept_in = kept_copy(name, quantization)
        model, tokenizer = open_model(
            name, device=device, dtype=dtype, trust_remote_code=trust_remote_code, revision=revision
        )
        others = []
        for other_name in ensemble:
            other, its = open_model(other_name, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
            check_fit(other, its)
            if vocabularies(its) != vocabularies(tokenizer):
                raise ValueError(f"{other_name}: its vocabulary is not that of {name}")
            others.append(other)
        of_search = None if kept_in else quantization
        translator = cls(model, tokenizer, matmul_backend=matmul_backend, ensemble=others, quantization=of_search)
        if kept_in is not None:
            translator.engine = " ".join(filter(None, (engine, quantization)))
            limits = {"max_positions": translator._limits.target_positions, "threads": torch.get_num_threads()}
            translator.search = CTranslate2Translator(model, tokenizer.pad_token_id, folder=kept_in, **limits)
        return translator

    def translate(
        self,
        texts: str | Iterable[str],
        num_beams: int | None = None,
        num_return_sequences: int = 1,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        max_new_tokens: int | None = None,
        return_scores: bool = False,
        return_alignments: bool = False,
        too_long: TooLongToTranslate = "split",
        split_sentences: SplitSentences | None = None,
        progress_bar: bool = False,
        mbr: MinimumRisk | None = None,
        **generate_kwargs: Any,
    ) -> Translation | list[Any]:
        """
        Translate one text, or a list of texts in any order of lengths.

        Args:
            texts: A text, or several; those that are a [`ConstrainedText`] have what their translations must contain.
            num_beams: Beams of the search; the model's own default if not given.
            num_return_sequences: Length of the n-best list of each text; different tokens may give equal texts.
            batch_size: Maximum number of texts that go through the model together.
            batch_tokens: Maximum number of source tokens in a batch, padding included. If neither is given, 2,048 and
                128 texts.
            max_new_tokens: Maximum number of tokens of a translation.
            return_scores: Fill `Translation.score`; greedy search, and models of other kinds, need one more pass
                through the model for this.
            return_alignments: Fill `Translation.alignment`, with one more pass.
            too_long: Treatment of a line with more than `max_source_length` tokens, or of such a sentence where they
                are translated one by one: "split" translates its sentences one by one (too long ones in parts that
                end at clauses or words), "truncate" translates only its beginning, and a warning counts such texts;
                "error" raises an error; "whole" translates it at once, with models whose encoder's attention costs
                O(n). Unless the call has a limit of length, translations may then have `max_source_length` tokens,
                and at least 50, more than their sources.
            split_sentences: Whether sentences on one line are translated one by one: "always", where the end of a
                sentence is clear; "never", unless the line is too long; "auto": unless at least a tenth of the lines
                of the model's training had several sentences (models of earlier versions and converted ones do not
                say it: one by one), or `too_long` is "whole". If not given, the translator's `split_sentences`.
            progress_bar: Show a progress bar on standard error.
            mbr: Of many candidates take the one that is most like the others ([`MinimumRisk`]), sentence by sentence,
                in place of the most likely one; batches are then the candidates of one sentence.
            generate_kwargs: Other arguments of `generate()`, save those with a value for each sentence.

        Returns:
            For a text its `Translation`; with `num_return_sequences > 1` a list of them, best first; samples in the
            order in which they were drawn; the k-th translation of a text that was split joins the k-th of each part.
            For several texts the list of these, in the order of the texts.

        Raises:
            TypeError: A text is not a `str`.
            ValueError: Arguments are out of range, or exclude each other; or a text is too long.
        """
        single = isinstance(texts, str)
        texts = [texts] if isinstance(texts, str) else list(texts)
        with ProgressBar(len(texts), disable=not progress_bar) as tally:
            stream = self.translate_stream(
                texts,
                batch_size=batch_size,
                batch_tokens=batch_tokens,
                too_long=too_long,
                split_sentences=split_sentences,
                tally=tally,
                return_scores=return_scores,
                return_alignments=return_alignments,
                num_beams=num_beams,
                num_return_sequences=num_return_sequences,
                max_new_tokens=max_new_tokens,
                mbr=mbr,
                **generate_kwargs,
            )
            results = [best if num_return_sequences > 1 else best[0] for best in stream]
        self.warn(tally, too_long)
        return results[0] if single else results

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
        return self._of_pairs(self.score_stream, sources, targets, progress_bar, **options)

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
        return self._of_pairs(self.align_stream, sources, targets, progress_bar, **options)

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

    def _search_options(
        self, too_long: TooLongToTranslate, generate_kwargs: dict[str, Any], mbr: MinimumRisk | None = None
    ) -> dict[str, Any]:
        options = super()._search_options(too_long, {**self._own_options(), **generate_kwargs})
        if self.glossary is not None:
            if mbr is not None:
                mbr.check_phrases("glossary")
            self.check_terms(**(options if mbr is None else mbr.of_candidates(options)))
        return options

    def _require(
        self, lines: Sequence[str], parts_of_lines: list[list[Part]], options: dict[str, Any], tally: Tally
    ) -> None:
        # The first part of a [`ConstrainedText`] gets the prefix, the likeliest each phrase; texts without parts for
        # them are counted.
        ends = self.search.ends(options)
        for place, (line, parts) in enumerate(zip(lines, parts_of_lines, strict=True)):
            if not is_constrained(line):
                continue
            if not parts:
                tally.add(lacking=1)
                continue
            with placed(place):
                if any(part.is_cut for part in parts):
                    raise ValueError(f"{line[:40]!r}… has constraints and is too long to be translated at once")
                texts = [normalize_space(text) for text in (line.prefix, *line.phrases)]
                check_texts(texts)
                parts[0].prefix, *phrases = required = self._target_ids(texts)
                for text, ids in zip(texts, required):
                    name = f"{line[:40]!r}: {text[:40]!r}"
                    as_ids(ids, name, vocab_size=self.model.config.vocab_size, ends=ends)
                    if text and not ids:
                        raise ValueError(f"{name} has no tokens to be required")
                places = self._likeliest(parts, phrases) if len(parts) > 1 else [0] * len(phrases)
                for part, phrase in zip(places, phrases, strict=True):
                    parts[part].phrases.append(phrase)
        if self.glossary is not None:
            self.require_terms(lines, parts_of_lines, self.glossary)

    def check_terms(self, **generate_kwargs: Any) -> None:
        """
        Check that a search with these arguments of `generate()` can require terms.

        Raises:
            ValueError: The model, the engine or the arguments do not allow that.
        """
        if not is_own(self.model.config):
            raise ValueError(f"glossary: not supported by {type(self.model).__name__}")
        if self.engine != "ours":
            raise ValueError(f"glossary: not supported by engine {self.engine}")
        if (beams := self.search.setting("num_beams", generate_kwargs) or 1) < 2:
            raise ValueError(f"glossary: needs num_beams of at least 2, not {beams}")
        if (self.search.setting("num_beam_groups", generate_kwargs) or 1) > 1:
            raise ValueError("glossary: not possible together with num_beam_groups")
        self.check_options(**{**generate_kwargs, "required_phrases": [[]]})

    def require_terms(
        self, lines: Sequence[str], parts_of_lines: Sequence[Sequence[Part]], glossary: Glossary
    ) -> None:
        """
        Give each part the terms of its sentence. Terms that cannot be required (across two parts, or with an unknown
        token) are kept without ids, so that they are reported. Sentences with a language tag of their own have none.
        """
        ends = {*self.search.ends({}), self.tokenizer.unk_token_id}
        for line, parts in zip(lines, parts_of_lines, strict=True):
            of_parts = [[] if part.tags else glossary.find(part.text) for part in parts]
            across = glossary.find(normalize_space(line)) if len(parts) > 1 and not parts[0].tags else []
            for part, terms in zip(parts, of_parts):
                ids_of = dict(zip(terms, self._target_ids([term.target for term in terms])))
                texts = self.tokenizer.batch_decode([*ids_of.values()], skip_special_tokens=True)
                for place, ((term, ids), text) in enumerate(zip(ids_of.items(), texts)):
                    is_new = all(ids != other for *_, other in part.terms)  # which a search would want twice
                    is_possible = is_new and place < MOST_OF_SENTENCE and not ends & {*ids}
                    part.terms.append((term, text.strip() or term.target, ids if is_possible else []))
            seen = {term for terms in of_parts for term in terms}
            if parts:
                parts[0].terms += [(term, "", []) for term in across if term not in seen]

    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        return_scores: bool = False,
        mbr: MinimumRisk | None = None,
        **generate_kwargs: Any,
    ) -> dict[str, Any]:
        """
        Search the translations of a batch. A row without tokens gives padding and the score 0.

        Args:
            input_ids: Source tokens (B, S).
            attention_mask: 1 for a token, 0 for padding (B, S).
            return_scores: Compute scores.
            mbr: As in `translate`, for one source.
            generate_kwargs: Arguments of the model's `generate()`; None stands for its default.

        Returns:
            `sequences` (B, n, T), decoder start token included, best first, and `scores` (B, n) or None.

        Raises:
            ValueError: The arguments exclude each other or are out of range.
        """
        options = {**self._own_options(), **generate_kwargs}
        if mbr is not None:
            own = {name: options.pop(name) for name in OF_EACH_SENTENCE if name in options}
            batch = {"sources": input_ids.tolist(), **own}
            found = next(mbr.stream([batch], self.search, self.tokenizer, return_scores, options))
            return {name: None if each is None else torch.tensor(each) for name, each in found.items()}
        return self.search.batch(input_ids, attention_mask, return_scores=return_scores, options=options)

    def begin(self, sources: Sequence[Sequence[int]], **generate_kwargs: Any) -> Search | torch.Tensor:
        """
        The search for translations of sources that all have tokens, before its first step, for callers that run the
        steps themselves and let others join it (`absorb` of `model/search/together.py`); or, if the model or the
        arguments do not allow that, the sequences (B, n, T).

        Raises:
            ValueError: The arguments exclude each other or are out of range.
        """
        batch = self.search.padded({"sources": sources})
        return self.search.begin(**batch, options={**self._own_options(), **generate_kwargs})

    def check_options(self, **generate_kwargs: Any) -> None:
        """
        Check the arguments of `generate()` for a search.

        Raises:
            ValueError: The arguments exclude each other or are out of range.
        """
        self.search.checked(0, {**self._own_options(), **generate_kwargs})

    def decode(self, sequences: torch.Tensor, scores: torch.Tensor | None) -> list[Translation]:
        """The texts of `sequences` (N, T), decoder start token included, with their `scores` (N), if any."""
        values = None if scores is None else scores.tolist()
        return read_translations(self.tokenizer, sequences.tolist(), values, ends=self.search.ends({}))

    def _check_whole(self) -> None:
        """Raise `ValueError` where long texts cannot go whole through the model, or one of the ensemble."""
        for model in (self.model, *self.ensemble):
            if not is_own(model.config):
                raise ValueError(f"too_long='whole': not supported by {type(model).__name__}; give 'split'")
            if ATTENTION_KINDS[kind := model.config.encoder_attention_type].is_quadratic:
                raise ValueError(
                    f"too_long='whole': the encoder's attention is {kind!r}, whose cost grows with the square of a "
                    "text's length; give 'split', or a model with another encoder_attention_type, such as 'window'"
                )

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
        check_choice("too_long", too_long, TooLongToScore)
        source, target = (
            self.encoder(too_long, is_target, split_sentences=split_sentences) for is_target in (False, True)
        )
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
                found = iter(work(texts, encoders=(source, target), tally=tally, **limits))
            except TextError as error:
                raise TextError(owners[error.place], error.reason) from error
            tally.add(sentences=len(some) - len(owners))  # the work has counted the parts
            for pair, each in zip(some, parts):
                yield pair, each, [next(found) for _ in each]

    def _of_pairs(
        self,
        stream: Callable[..., Iterator[Found]],
        sources: str | Iterable[str],
        targets: str | Iterable[str],
        progress_bar: bool,
        **options: Any,
    ) -> Found | list[Found]:
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

    def _align_parts(
        self, parts: list[list[Part]], found: list[list[list[Translation]]], limits: dict[str, int | None]
    ) -> None:
        """Fill `alignment` of all translations."""
        best = [
            (part.text, one) for line, lists in zip(parts, found) for part, each in zip(line, lists) for one in each
        ]
        pairs = [(text, normalize_space(translation)) for text, translation in best]
        encoders = self.encoder("truncate"), self.encoder("truncate", is_target=True)
        options: dict[str, Any] = {"encoders": encoders, "matmul_backend": self.matmul, **limits}
        aligned = align_pairs(self.model, self.tokenizer, pairs=pairs, tally=Tally(), **options)
        for (_, translation), alignment in zip(best, aligned):
            translation.alignment = alignment

    @torch.no_grad()
    def _likeliest(self, parts: Sequence[Part], phrases: Sequence[Sequence[int]]) -> list[int]:
        """The index of the part in whose translation the model gives each phrase's tokens most probability."""
        best = []
        for part in parts:
            batch = self.search.padded({"sources": [part.ids]})
            found = self.generate(**batch, num_beams=1, num_return_sequences=1)["sequences"][0]  # (1, T)
            logits = self.model(**batch, decoder_input_ids=found, use_cache=False).logits[0]  # (T, V)
            best.append(logits.float().log_softmax(dim=-1).amax(dim=0).cpu())  # (V), anywhere in the translation
        return [max(range(len(parts)), key=lambda place: float(best[place][ids].sum())) for ids in map(list, phrases)]

    def _own_options(self) -> dict[str, Any]:
        """The arguments that this translator adds to each search."""
        return {"ensemble": self.ensemble or None, "shortlist": self.shortlist, "quantization": self.quantization}
