"""
Minimum Bayes risk: of many candidates, the translation that is most like all others (Kumar and Byrne 2004,
aclanthology.org/N04-1022; with samples of a neural model: Eikema and Aziz 2022, aclanthology.org/2022.emnlp-main.754).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import torch

from ...common.choices import check_choice
from ..results import read_translations
from ..text.texts import pad_rows
from .sampling import SampledToken
from .token_translator import TokenTranslator


Utility = Literal["chrf", "bleu"]
Candidates = Literal["epsilon", "top_k", "beam"]
# What each kind of candidates reads, and its default (epsilon: Freitag et al. 2023,
# aclanthology.org/2023.findings-emnlp.617).
OF_CANDIDATES: dict[str, dict[str, Any]] = {
    "epsilon": {"epsilon": 0.02, "temperature": 1.0, "seed": 1},
    "top_k": {"top_k": 10, "temperature": 1.0, "seed": 1},
    "beam": {},
}
# Samples of a sentence that are drawn together. A constant: draws depend on it.
ROWS = 128


@dataclass(frozen=True)
class MinimumRisk:
    """
    The search for the candidate with the greatest mean utility, where every candidate counts as a reference as often
    as it was found. Each sentence is searched alone, with random numbers of the seed and its own tokens: its
    translation depends neither on other sentences nor on batches, and equal sentences have equal translations.

    Args:
        samples: Number of candidates.
        utility: "chrf", by fastchrf; or "bleu" of sentences, by sacrebleu (effective order), which takes some four
            times as long.
        candidates: "epsilon": samples without tokens of less than this probability; "top_k": samples of the k most
            likely tokens; "beam": the best hypotheses of a beam search with as many beams.
        epsilon, top_k, temperature, seed: Of samples; by default 0.02, 10, 1.0 and 1.

    Raises:
        ValueError: A value is out of range, or the candidates do not read it, or fastchrf is not installed.

    Example:

    ```python
    >>> from vanilla_transformer_hf import MinimumRisk, Translator
    >>> translator = Translator.from_pretrained("model_cards/multi30k_raw_en_de")
    >>> str(translator.translate("Two dogs are playing.", mbr=MinimumRisk(samples=8)))
    'Zwei Hunde spielen.'
    ```
    """

    samples: int = 64
    utility: Utility = "chrf"
    candidates: Candidates = "epsilon"
    epsilon: float | None = None
    top_k: int | None = None
    temperature: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        check_choice("utility", self.utility, Utility)
        read = OF_CANDIDATES[check_choice("candidates", self.candidates, Candidates)]
        for name in ("epsilon", "top_k", "temperature", "seed"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, read.get(name))
            elif name not in read:
                raise ValueError(f"{name}={getattr(self, name)}: has no effect on candidates {self.candidates!r}")
        if self.samples < 2:
            raise ValueError(f"samples={self.samples}: must be at least 2")
        self.of_candidates({})  # or raises
        UTILITIES[self.utility](["a"], ["a"])

    def stream(
        self,
        batches: Iterable[dict[str, Any]],
        search: TokenTranslator,
        tokenizer: Any,
        return_scores: bool,
        options: dict[str, Any],
    ) -> Iterator[dict[str, Any]]:
        """What `TokenTranslator.stream` gives for each batch, a sentence alone, with n translations."""
        n_best = search.setting("num_return_sequences", options) or 1
        self.of_candidates({**options, "num_return_sequences": n_best})  # or raises
        ends = search.ends({})
        for batch in map(search.padded, batches):
            if "required_phrases" in batch:
                self.check_phrases("required_phrases")
            found = self._candidates(batch, search, return_scores, options)
            texts = [str(one) for one in read_translations(tokenizer, found["sequences"][0].tolist(), None, ends)]
            best = self.ranked(texts)[:n_best]
            sequences, scores = found["sequences"][:, best], found["scores"]
            if scores is not None:
                scores = scores[:, best]
            elif return_scores:  # of samples those that are taken alone, because it costs another pass
                scores = search.score(batch, sequences, options)
            yield search.as_lists(sequences, scores)

    def of_candidates(self, options: dict[str, Any], generator: torch.Generator | None = None) -> dict[str, Any]:
        """The arguments of `generate()` that search candidates; `ValueError` if these are minimum risk's to decide."""
        for name in ("num_beams", "num_beam_groups", "do_sample", "temperature", "top_k", "top_p"):
            if (value := options.get(name)) is not None:
                raise ValueError(f"{name}={value}: minimum risk decides it, from its own arguments; leave it out")
        if (n_best := options.get("num_return_sequences") or 1) > self.samples:
            raise ValueError(f"num_return_sequences={n_best}: minimum risk has {self.samples} candidates (samples)")
        if self.candidates == "beam":
            return {**options, "num_beams": self.samples, "num_return_sequences": self.samples}
        sampler = SampledToken(self.temperature, self.top_k or 0, self.epsilon or 0.0, generator)
        processors = [*options.get("logits_processor", ()), sampler]
        own = {"num_beams": 1, "num_return_sequences": 1, "do_sample": False, "logits_processor": processors}
        return options | own

    def of_beams(self) -> "MinimumRisk":
        """Minimum risk of as many candidates of a beam search, which can contain phrases that are required."""
        return MinimumRisk(self.samples, self.utility, "beam")

    def check_phrases(self, what: str) -> None:
        """Check that translations of these candidates can contain phrases that are required."""
        if self.candidates != "beam":
            raise ValueError(
                f"{what}: samples are not made to contain phrases; choose candidates 'beam', not {self.candidates!r}"
            )

    def ranked(self, texts: Sequence[str]) -> list[int]:
        """The indices of the texts, the greatest mean utility first; those that repeat another stand at the end."""
        counts = Counter(texts)
        different = list(counts)
        utilities = torch.tensor(UTILITIES[self.utility](different, different), dtype=torch.float64)  # (N, N)
        means = utilities @ torch.tensor(list(counts.values()), dtype=torch.float64)
        firsts = [texts.index(different[place]) for place in means.argsort(descending=True, stable=True)]
        return [*firsts, *(place for place in range(len(texts)) if place not in firsts)]

    def _candidates(
        self, batch: dict[str, Any], search: TokenTranslator, return_scores: bool, options: dict[str, Any]
    ) -> dict[str, Any]:
        """The `sequences` (1, N, T) of a sentence, and the `scores` (1, N) of beams; None of samples."""
        batch = {**batch}
        source = {name: batch.pop(name) for name in ("input_ids", "attention_mask")}
        if self.candidates == "beam":
            return search.batch(**source, return_scores=return_scores, options=self.of_candidates(options) | batch)
        content = f"{self.seed} {source['input_ids'][0].tolist()}".encode()
        generator = torch.Generator(search.model.device)
        generator.manual_seed(int.from_bytes(blake2b(content, digest_size=7).digest(), "little"))
        own = self.of_candidates(options, generator)
        sequences = list[list[int]]()
        for first in range(0, self.samples, ROWS):
            rows = min(ROWS, self.samples - first)
            of_rows = {name: value * rows for name, value in batch.items()}
            repeated = {name: tensor.repeat(rows, 1) for name, tensor in source.items()}
            found = search.batch(**repeated, return_scores=False, options=own | of_rows)
            sequences += found["sequences"][:, 0].tolist()
        padded, _ = pad_rows(sequences, search.pad_token_id)
        return {"sequences": padded[None].to(search.model.device), "scores": None}


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[list[float]]:
    """chrF2 of sentences, of each hypothesis with each reference."""
    try:
        from fastchrf import pairwise_chrf
    except ModuleNotFoundError as error:
        raise ValueError("utility 'chrf' needs fastchrf: pip install 'vanilla_transformer_hf[mbr]'") from error
    scores: list[list[list[float]]] = pairwise_chrf([list(hypotheses)], [list(references)])
    return scores[0]


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> list[list[float]]:
    """BLEU of sentences, of each hypothesis with each reference."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(effective_order=True)
    return [[metric.sentence_score(one, [other]).score for other in references] for one in hypotheses]


UTILITIES: dict[str, Callable[[Sequence[str], Sequence[str]], list[list[float]]]] = {"chrf": chrf, "bleu": bleu}
