"""Translate text with a trained model: `Translator`, transformers' "translation" pipeline, and streams of lines."""

import itertools
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from tqdm.auto import tqdm
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.pipelines import Pipeline

from .matmul import MatmulRow, choose_matmul, describe_matmul, matmul, probe_matmul
from .text_files import decode_lines


logger = logging.getLogger(__name__)

# "We set the maximum output length during inference to input length + 50" (section 6.1).
EXTRA_TARGET_TOKENS = 50
# Lines of a stream that are sorted by length together, in batches: more waste less padding and answer later.
WINDOW_BATCHES = 32
# Models often carry some rows more than their tokenizer has pieces, up to a multiple of this.
VOCABULARY_PADDING = 128
# Logits held at once while scores are computed: 256 MiB in float32.
SCORED_LOGITS = 2**26
REPO_ID = re.compile(r"([\w-][\w.-]*/)?[\w-][\w.-]*")
LENGTH_LIMITS = ("max_length", "max_new_tokens")
# Arguments that `generate()` does not check itself.
COUNTS = ("num_beams", "num_return_sequences", *LENGTH_LIMITS)


class Translation(str):
    """
    A translated line. It is a `str`; `score` is None unless scores were asked for.

    The score is what beam search ranks by: the sum of the natural log-probabilities of the tokens, `</s>` included,
    divided by their number to the power of `length_penalty`. An empty line has the score 0.
    """

    score: float | None

    def __new__(cls, text: str, score: float | None = None) -> "Translation":
        translation = super().__new__(cls, text)
        translation.score = score
        return translation


class Translator:
    """
    A model and its tokenizer, as one thing that turns text into text.

    How to search (beams, penalties, limits) comes from the model's generation_config.json and may be overridden in
    each call by any argument of `generate()`. Where neither gives a limit, a batch may produce as many tokens as its
    longest source plus 50, as in the paper. A line of white space alone gives an empty translation and does not
    reach the model. A line of more than `max_source_length` tokens is cut to that number, and a warning counts such
    lines.

    Args:
        model: An encoder–decoder that can `generate()`. It is put into evaluation mode and stays on its device.
        tokenizer: The tokenizer it was trained with.
        matmul_backend: Library of float32 matrix products on a processor while translating (`matmul.py`): "auto"
            measures for 50 ms and takes the fastest that does not round, or "default", or "onednn".

    Attributes:
        matmul (`str`): The library that is used.
        matmul_rows (`list`): What was measured to choose it; empty if nothing had to be.
        max_source_length (`int`): Tokens of the longest source line that is not cut. It starts as the smaller of the
            tokenizer's `model_max_length` and the model's `max_position_embeddings`; sinusoids allow a larger one.

    Raises:
        ValueError: The model does not generate from a source, or the tokenizer's vocabulary does not fit it.

    Example:

    ```python
    >>> translator = Translator.from_pretrained("outputs/quickstart")
    >>> translator.translate("twenty-one")
    'einundzwanzig'
    >>> best = translator.translate("twenty-one", num_beams=4, num_return_sequences=4, return_scores=True)[0]
    >>> best, best.score
    ```"""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, matmul_backend: str = "auto"):
        if not model.config.is_encoder_decoder or not model.can_generate():
            raise ValueError(f"{type(model).__name__} is no encoder–decoder that can generate text")
        _check_vocabulary(model, tokenizer)
        self.model = model.eval()
        self.tokenizer = tokenizer
        self._max_positions = getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length
        self.max_source_length = min(tokenizer.model_max_length, self._max_positions)
        self.matmul, self.matmul_rows = "default", list[MatmulRow]()
        if matmul_backend != "default" and model.device.type == "cpu" and model.dtype == torch.float32:
            self.matmul_rows = probe_matmul()
            self.matmul = choose_matmul(matmul_backend, self.matmul_rows)
            logger.info(describe_matmul(self.matmul, self.matmul_rows))

    @classmethod
    def from_pretrained(
        cls,
        name: str | os.PathLike,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = "auto",
        trust_remote_code: bool = False,
        revision: str | None = None,
        matmul_backend: str = "auto",
    ) -> "Translator":
        """
        Open a saved folder or a Hub repository.

        Args:
            name: The folder, or the repository's id.
            device: Where to compute; an accelerator if there is one, if not given.
            dtype: Floating-point type of the weights; `"auto"` keeps the one they were saved in.
            trust_remote_code: Run model code that the repository brings.
            revision: Branch, tag or commit of the repository.
            matmul_backend: As in the class.

        Raises:
            OSError: Config, weights or tokenizer are missing, damaged or of another model; one line says which.
            ValueError: The parts do not fit each other, or the device cannot be used here.
        """
        if Path(name).is_file() or not (Path(name).is_dir() or REPO_ID.fullmatch(str(name))):
            raise FileNotFoundError(f"{name}: no such folder")
        hub = {"trust_remote_code": trust_remote_code, "revision": revision}
        with _naming("config", name):
            config = AutoConfig.from_pretrained(name, **hub)
        if not config.is_encoder_decoder:
            raise ValueError(f"{name}: model type {config.model_type!r} is no encoder–decoder and cannot translate")
        with _naming("tokenizer", name):
            tokenizer = AutoTokenizer.from_pretrained(name, **hub)
        with _naming("weights", name):
            # Missing tensors would be filled with random numbers and only logged; so would those of other shapes.
            model, report = AutoModelForSeq2SeqLM.from_pretrained(
                name, config=config, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **hub
            )
            lacking = sorted(report["missing_keys"]) + sorted(key for key, *_ in report["mismatched_keys"])
            if lacking:
                raise ValueError(f"{len(lacking)} tensors are missing or of another shape, the first is {lacking[0]}")
        return cls(_to_device(model, device), tokenizer, matmul_backend)

    def translate(
        self,
        texts: str | Iterable[str],
        num_beams: int | None = None,
        num_return_sequences: int = 1,
        batch_size: int = 32,
        max_new_tokens: int | None = None,
        return_scores: bool = False,
        progress_bar: bool = False,
        **generate_kwargs: Any,
    ) -> Translation | list[Any]:
        """
        Translate one text, or a list of texts in any order of lengths.

        Args:
            texts: A text, or several.
            num_beams: Beams of the search; the model's own default if not given.
            num_return_sequences: Length of the n-best list of each text.
            batch_size: Texts that go through the model together.
            max_new_tokens: Most tokens of a translation.
            return_scores: Fill `Translation.score`; this costs one more pass through the model.
            progress_bar: Show a progress bar on standard error.
            generate_kwargs: Other arguments of `generate()`.

        Returns:
            For a text its `Translation`; with `num_return_sequences > 1` a list of them, best first. For several
            texts the list of these, in the order of the texts.

        Raises:
            TypeError: A text is not a `str`.
        """
        single = isinstance(texts, str)
        texts = [texts] if isinstance(texts, str) else list(texts)
        with tqdm(total=len(texts), unit=" sentences", disable=not progress_bar) as progress:
            stream = self.translate_stream(
                texts,
                batch_size=batch_size,
                progress=progress,
                num_beams=num_beams,
                num_return_sequences=num_return_sequences,
                max_new_tokens=max_new_tokens,
                return_scores=return_scores,
                **generate_kwargs,
            )
            results = [best if num_return_sequences > 1 else best[0] for best in stream]
        return results[0] if single else results

    def translate_stream(
        self,
        texts: Iterable[str],
        batch_size: int = 32,
        window: int | None = None,
        progress: tqdm | None = None,
        **generate_kwargs: Any,
    ) -> Iterator[list[Translation]]:
        """
        Translate any number of texts in constant memory.

        Args:
            texts: An iterable, read only as far as needed.
            batch_size: Texts that go through the model together.
            window: Texts that are read and sorted by length before the first of them is translated; 32 batches if
                not given. 1 answers each text before the next is read.
            progress: A bar that is moved on after every batch.
            generate_kwargs: `return_scores` of `translate` and any argument of `generate()`.

        Yields:
            For each text, in order, its n-best list: `num_return_sequences` translations, best first.

        Raises:
            TypeError: A text is not a `str`.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: must be at least 1")
        texts, cut = iter(texts), 0
        try:
            while lines := list(itertools.islice(texts, window or WINDOW_BATCHES * batch_size)):
                sources, cut_here = self.encode(lines)
                cut += cut_here
                yield from self._translate_sorted(sources, batch_size, progress, generate_kwargs)
        finally:
            self.warn_of_cut(cut)

    def encode(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """
        The token ids of each text, none for a text of white space, and how many texts were cut.

        Raises:
            TypeError: A text is not a `str`.
        """
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"cannot translate {type(text).__name__} {str(text)[:40]!r}: each text must be a str")
        filled = [place for place, text in enumerate(texts) if text.strip()]
        sources: list[list[int]] = [[] for _ in texts]
        cut = 0
        if filled:
            # Not verbose: the tokenizer would log the length of the first over-long text, and that it is an error.
            encoded = self.tokenizer([texts[place] for place in filled], verbose=False)["input_ids"]
            for place, ids in zip(filled, encoded, strict=True):
                if len(ids) > self.max_source_length:
                    # Again, because the tokenizer knows what has to follow the last token that is kept.
                    ids = self.tokenizer(texts[place], truncation=True, max_length=self.max_source_length)["input_ids"]
                    cut += 1
                sources[place] = ids
        return sources, cut

    def warn_of_cut(self, cut: int) -> None:
        """Log that `cut` texts were shortened, if there are any."""
        if cut:
            logger.warning(
                "%d over-long line%s cut to the first %d tokens", cut, "" if cut == 1 else "s", self.max_source_length
            )

    def collate(self, sources: Sequence[list[int]]) -> dict[str, Any]:
        """`input_ids` and `attention_mask` (B, S) of B sources of at most S tokens; S is at least 1."""
        width = max(1, *map(len, sources))
        input_ids = torch.full((len(sources), width), self.tokenizer.pad_token_id)  # (B, S)
        attention_mask = torch.zeros_like(input_ids)  # (B, S)
        for row, ids in enumerate(sources):
            input_ids[row, : len(ids)] = torch.tensor(ids, dtype=torch.long)
            attention_mask[row, : len(ids)] = 1
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    @torch.no_grad()
    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        return_scores: bool = False,
        **generate_kwargs: Any,
    ) -> dict[str, Any]:
        """
        Search the translations of a batch. A row without any token is answered with padding and the score 0.

        Args:
            input_ids: Source tokens (B, S).
            attention_mask: 1 for a token, 0 for padding (B, S).
            return_scores: Compute scores.
            generate_kwargs: Arguments of the model's `generate()`; None stands for its default.

        Returns:
            `sequences` (B, n, T), decoder start token included, best first, and `scores` (B, n) or None.

        Raises:
            ValueError: The arguments exclude each other or are out of range.
        """
        options = self._search_options(input_ids.shape[1], generate_kwargs)
        n_best = self._setting("num_return_sequences", options) or 1
        filled = attention_mask.any(dim=1)  # (B)
        sequences = torch.full((len(filled), n_best, 1), self.tokenizer.pad_token_id, device=input_ids.device)
        scores = torch.zeros(len(filled), n_best, device=input_ids.device) if return_scores else None
        if filled.any():
            source = {"input_ids": input_ids[filled], "attention_mask": attention_mask[filled]}
            with matmul(self.matmul):
                found = self.model.generate(**source, **options, return_dict_in_generate=False)
                found = found.view(-1, n_best, found.shape[-1])  # (filled, n, T)
                if scores is not None:
                    scores[filled] = self._score(**source, sequences=found, options=options)
            sequences = sequences.repeat(1, 1, found.shape[-1])  # (B, n, T)
            sequences[filled] = found
        return {"sequences": sequences, "scores": scores}

    def decode(self, sequences: torch.Tensor, scores: torch.Tensor | None) -> list[Translation]:
        """The texts of `sequences` (N, T) with their `scores` (N), if any."""
        texts = self.tokenizer.batch_decode(sequences, skip_special_tokens=True)
        values = [None] * len(texts) if scores is None else scores.tolist()
        return [Translation(text, score) for text, score in zip(texts, values, strict=True)]

    def _translate_sorted(
        self, sources: list[list[int]], batch_size: int, progress: tqdm | None, generate_kwargs: dict[str, Any]
    ) -> list[list[Translation]]:
        # Longest first: what does not fit in memory shows at once, and the time left is not underestimated.
        order = sorted(range(len(sources)), key=lambda place: -len(sources[place]))
        results: list[list[Translation]] = [[] for _ in sources]
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            batch = self.collate([sources[place] for place in places])
            batch = {name: tensor.to(self.model.device) for name, tensor in batch.items()}
            found = self.generate(**batch, **generate_kwargs)
            for row, place in enumerate(places):
                scores = None if found["scores"] is None else found["scores"][row]
                results[place] = self.decode(found["sequences"][row], scores)
            if progress is not None:
                progress.update(len(places))
        return results

    def _search_options(self, source_length: int, generate_kwargs: dict[str, Any]) -> dict[str, Any]:
        """What to pass to `generate()`: the caller's arguments, and a limit where nobody gives one."""
        options = {name: value for name, value in generate_kwargs.items() if value is not None}
        for name in COUNTS:
            if options.get(name, 1) < 1:
                raise ValueError(f"{name}={options[name]}: must be at least 1")
        beams, n_best = (self._setting(name, options) or 1 for name in ("num_beams", "num_return_sequences"))
        if n_best > beams and not self._setting("do_sample", options):
            raise ValueError(f"num_return_sequences={n_best}: needs num_beams of at least {n_best}, not {beams}")
        if not any(self._setting(name, options) for name in LENGTH_LIMITS):
            options["max_new_tokens"] = min(source_length + EXTRA_TARGET_TOKENS, self._max_positions)
        return options

    def _setting(self, name: str, options: dict[str, Any]) -> Any:
        """The value that `generate()` will use, None where it has only its own default."""
        configs = (options.get("generation_config"), self.model.generation_config)
        values = (options.get(name), *(getattr(config, name, None) for config in configs))
        return next((value for value in values if value is not None), None)

    def _score(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, sequences: torch.Tensor, options: dict[str, Any]
    ) -> torch.Tensor:
        """Scores (B, n) of `sequences` (B, n, T). `output_scores` would keep every step's logits of every beam."""
        penalty, eos = self._setting("length_penalty", options), self._setting("eos_token_id", options)
        eos = torch.tensor([] if eos is None else eos, dtype=torch.long, device=sequences.device)
        n_best, length = sequences.shape[1:]
        rows = max(1, SCORED_LOGITS // (n_best * length * self.model.get_output_embeddings().weight.shape[0]))
        scores = []
        for part in range(0, len(sequences), rows):
            tokens = sequences[part : part + rows].flatten(0, 1)  # (B n, T)
            source = [
                tensor[part : part + rows].repeat_interleave(n_best, 0) for tensor in (input_ids, attention_mask)
            ]
            logits = self.model(*source, decoder_input_ids=tokens[:, :-1], use_cache=False).logits.float()
            targets = tokens[:, 1:]  # (B n, T - 1)
            ended = torch.isin(targets, eos).long()
            counted = ended.cumsum(dim=1) - ended == 0  # up to the first end-of-sentence token, that one included
            found = logits.gather(-1, targets[..., None])[..., 0] - logits.logsumexp(dim=-1)  # (B n, T - 1)
            total = found.where(counted, 0).sum(dim=1)  # (B n)
            scores.append(total / counted.sum(dim=1) ** (1.0 if penalty is None else penalty))
        return torch.cat(scores).view(-1, n_best)


class TranslationPipeline(Pipeline):
    """
    transformers' "translation" task, on top of a [`Translator`].

    A text gives `[{"translation_text": …}]`; a list, generator or `KeyDataset` gives the same for each item, and a
    list whose items have one translation each is flattened to `[{"translation_text": …}, …]`. This is what the
    pipeline of transformers 4 returned. Arguments at construction or in a call: `batch_size`, `return_tensors`
    (`translation_token_ids` in place of the text), `return_scores` (adds `score`), and those of `generate()`.

    Example:

    ```python
    >>> import vanilla_transformer_hf
    >>> from transformers import pipeline
    >>> translate = pipeline("translation", model="outputs/quickstart")
    >>> translate("twenty-one")
    [{'translation_text': 'einundzwanzig'}]
    ```"""

    _load_tokenizer: Any = True
    _load_processor: Any = False
    _load_image_processor: Any = False
    _load_video_processor: Any = False
    _load_feature_extractor: Any = False
    tokenizer: Any

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.translator = Translator(self.model, self.tokenizer)

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(inputs, list) and not inputs:
            return []  # the base class looks at the first item
        results = super().__call__(inputs, *args, **kwargs)
        if isinstance(inputs, list) and all(len(result) == 1 for result in results):
            return [result[0] for result in results]
        return results

    def _sanitize_parameters(self, return_tensors: bool | None = None, **generate_kwargs: Any):
        return {}, generate_kwargs, {} if return_tensors is None else {"return_tensors": return_tensors}

    def preprocess(self, input_: Any, **parameters: Any) -> dict[str, Any]:
        sources, cut = self.translator.encode([input_])
        self.translator.warn_of_cut(cut)
        return self.translator.collate(sources)

    def _forward(self, input_tensors: dict[str, Any], **generate_kwargs: Any) -> Any:
        return self.translator.generate(**input_tensors, **generate_kwargs)

    def postprocess(self, model_outputs: Any, return_tensors: Any = False, **parameters: Any) -> list[dict[str, Any]]:
        sequences, scores = model_outputs["sequences"][0], model_outputs["scores"]  # (n, T), (1, n)
        if return_tensors:
            records = [{"translation_token_ids": ids} for ids in sequences]
        else:
            texts = self.translator.decode(sequences, None)
            records = [{"translation_text": str(text)} for text in texts]
        if scores is not None:
            for record, score in zip(records, scores[0].tolist(), strict=True):
                record["score"] = score
        return records


def translate_lines(
    translator: Translator, source: BinaryIO, target: BinaryIO, n_best: int | None = None, **options: Any
) -> None:
    """
    Translate a stream of lines into another, in constant memory, with a progress bar on standard error.

    Args:
        translator: What translates.
        source: UTF-8 text; only a line feed ends a line. A terminal is answered line by line. A file is read once
            before the first line is translated, to check it and to know the time left.
        target: Receives one line for each line of `source`. A line feed within a translation becomes a space.
        n_best: Write this many lines per source line instead: its number from 1, score and text, with tabs between.
        options: Arguments of `Translator.translate_stream`.

    Raises:
        ValueError: A line is not valid UTF-8; the message names file and line.
    """
    total, name = None, getattr(source, "name", "input")
    if source.seekable():
        start = source.tell()
        total = sum(1 for _ in decode_lines(source, name))
        source.seek(start)
    if n_best is not None:
        options.update(num_return_sequences=n_best, return_scores=True)
    if source.isatty():
        options["window"] = 1
    with tqdm(total=total, unit=" sentences", dynamic_ncols=True, delay=1) as progress:
        results = translator.translate_stream(decode_lines(source, name), progress=progress, **options)
        for number, translations in enumerate(results, start=1):
            for translation in translations:
                prefix = "" if n_best is None else f"{number}\t{translation.score:.6f}\t"
                target.write((prefix + translation.replace("\n", " ") + "\n").encode("utf-8"))
            target.flush()


def _check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    if tokenizer.pad_token_id is None:
        raise ValueError(f"{type(tokenizer).__name__} has no pad token")
    # `len` counts the target vocabulary where there are two; MarianMT's tokenizer has it count the source.
    pieces = {"source": getattr(tokenizer, "source_vocab_size", None) or len(tokenizer), "target": len(tokenizer)}
    stacks = {"source": model.get_encoder(), "target": model.get_decoder()}
    if getattr(tokenizer, "separate_vocabs", False):
        del stacks["target"]
    for side, stack in stacks.items():
        rows = stack.get_input_embeddings().weight.shape[0]
        if not pieces[side] <= rows < pieces[side] + VOCABULARY_PADDING:
            raise ValueError(
                f"the tokenizer has {pieces[side]} {side} pieces and the model {rows} {side} embeddings: "
                "they do not belong together"
            )


def _to_device(model: Any, device: str | torch.device | None) -> PreTrainedModel:
    if device is None:
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    try:
        return model.to(device)
    except (AssertionError, RuntimeError) as error:  # torch built without it, or none there, or no such name
        raise ValueError(f"device {str(device)!r} cannot be used here: {_first_line(error)}") from error


@contextmanager
def _naming(part: str, name: str | os.PathLike) -> Iterator[None]:
    """Say in one line which part of which model could not be opened, whatever the reader of its format raises."""
    try:
        yield
    except Exception as error:
        where = f"{name}" if Path(name).exists() else f"{name} (no such folder, so taken as a Hub id)"
        raise OSError(f"cannot open the {part} of {where}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
