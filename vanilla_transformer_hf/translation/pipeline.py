"""transformers' "translation" pipeline, which transformers 5 removed."""

import re
from collections.abc import Iterator
from typing import Any

import torch
from transformers.pipelines.base import ChunkPipeline
from transformers.tokenization_utils_base import TruncationStrategy

from ..common.choices import SplitSentences, TooLongToTranslate
from .text.tally import Tally
from .text.texts import TARGET_LANG_TAGS, is_constrained, pad_rows
from .translator import Translator


# Arguments of transformers 4's pipeline that this one does not take, and what to give instead.
REFUSED = {
    "return_type": "return_tensors=True for token ids, else nothing",
    "stop_sequence": "stop_strings, and the tokenizer as tokenizer=",
}


def only_given(parameters: dict[str, Any]) -> dict[str, Any]:
    """Those that are not None, so that a call does not replace what the pipeline was made with."""
    return {name: value for name, value in parameters.items() if value is not None}


class TranslationPipeline(ChunkPipeline):
    """
    transformers' "translation" task, on top of a [`Translator`]. Lines and sentences are translated one by one, and
    texts that are too long for the model in parts, as in `Translator.translate`.

    A text gives `[{"translation_text": …}]`; a list, generator or `KeyDataset` gives the same for each item, and a
    list whose items have one translation each is flattened to `[{"translation_text": …}, …]`. This is what the
    pipeline of transformers 4 returned. Arguments at construction or in a call: `batch_size`, `return_tensors`
    (`translation_token_ids` in place of the text; of a text in parts, those of the parts one after the other),
    `return_scores` (adds `score`), `split_sentences` ("auto", "always" or "never"), `target_lang_tag` (the language to
    translate to, of a model for several, or its tag, which is put before each text), and those of `generate()`. For
    such a model, `pipeline("translation_en_to_de")` sets `target_lang_tag="de"`.

    Other arguments of transformers 4: `src_lang` and `tgt_lang` must be the model's languages, where its tokenizer
    has them (of a model for several, `tgt_lang` is `target_lang_tag`); `truncation=True`, or the name of a strategy,
    cuts texts that are too long instead of splitting them; `clean_up_tokenization_spaces=True` removes the spaces
    before punctuation marks; `return_text=True` beside `return_tensors=True` gives both.

    Example:

    ```python
    >>> from transformers import pipeline
    >>> from vanilla_transformer_hf import TranslationPipeline
    >>> translate = pipeline("translation", model="model_cards/multi30k_raw_en_de")
    >>> isinstance(translate, TranslationPipeline)
    True
    >>> translate("Two dogs are playing.")
    [{'translation_text': 'Zwei Hunde spielen.'}]
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
        # The task's languages, and `target_lang_tag`, must be the model's.
        named = re.fullmatch(r"translation_(\w+?)_to_(\w+)", self.task or "")
        own = [getattr(self.tokenizer, name, None) for name in ("src_lang", "tgt_lang")]
        if named and any(code not in (None, wanted) for code, wanted in zip(own, named.groups())):
            raise ValueError(f"{self.task}: the model translates from {own[0]} to {own[1]}.")
        if named and self.translator.target_lang_tags:
            self.translator.use_target_lang(named[2])
        if (language := self._preprocess_params.get("target_lang_tag")) is not None:
            self.translator.use_target_lang(language)
        self._check_own(**{name: self._preprocess_params.get(name) for name in ("src_lang", "tgt_lang")})

    def _check_own(self, **languages: str | None) -> None:
        """Raise `ValueError` where `src_lang` or `tgt_lang` is not the tokenizer's, if that has one."""
        own = {name: getattr(self.tokenizer, name, None) for name in languages}
        for name, given in languages.items():
            if given is not None and own[name] not in (None, given):
                raise ValueError(f"{name}={given!r}: the model's {name} is {own[name]!r}.")

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(inputs, list) and not inputs:
            return []  # the base class inspects the first item
        results = super().__call__(inputs, *args, **kwargs)  # type: ignore[no-untyped-call]
        if isinstance(inputs, list) and all(len(result) == 1 for result in results):
            return [result[0] for result in results]
        return results

    def _sanitize_parameters(
        self,
        return_tensors: bool | None = None,
        target_lang_tag: str | None = None,
        split_sentences: SplitSentences | None = None,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        truncation: bool | str | TruncationStrategy | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        return_text: bool | None = None,
        **generate_kwargs: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """The arguments for the three steps; `ValueError` for those that do not work here."""
        for name, instead in REFUSED.items():
            if generate_kwargs.pop(name, None) is not None:
                raise ValueError(f"{name}: not an argument of this pipeline; give {instead}")
        if tgt_lang is not None and self.tokenizer.init_kwargs.get(TARGET_LANG_TAGS):
            if target_lang_tag not in (None, tgt_lang):
                raise ValueError(f"tgt_lang={tgt_lang!r}: differs from target_lang_tag={target_lang_tag!r}; give one")
            target_lang_tag, tgt_lang = tgt_lang, None
        before: dict[str, Any] = {"src_lang": src_lang, "tgt_lang": tgt_lang}
        before |= {"target_lang_tag": target_lang_tag, "split_sentences": split_sentences}
        if truncation is not None:
            names = [strategy.value for strategy in TruncationStrategy]
            if not isinstance(truncation, bool) and truncation not in names:
                raise ValueError(f"truncation={truncation!r}: expected True, False or one of {', '.join(names)}")
            is_whole = truncation in (False, TruncationStrategy.DO_NOT_TRUNCATE)
            before["too_long"] = "split" if is_whole else "truncate"
        after: dict[str, Any] = {"return_tensors": return_tensors, "return_text": return_text}
        after |= {"cleans_up": clean_up_tokenization_spaces, "generate_kwargs": generate_kwargs or None}
        return only_given(before), generate_kwargs, only_given(after)

    def preprocess(  # type: ignore[override]
        self,
        input_: Any,
        target_lang_tag: str | None = None,
        split_sentences: SplitSentences | None = None,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        too_long: TooLongToTranslate = "split",
        **parameters: Any,
    ) -> Iterator[dict[str, Any]]:
        """
        The parts of a text as batches of one source, with `input_ids` and `attention_mask` (1, S).

        Raises:
            ValueError: The text has constraints, or a language is not the model's.
        """
        if is_constrained(input_):
            raise ValueError(f"{input_[:40]!r}: the pipeline does not support constraints; use `Translator.translate`")
        self._check_own(src_lang=src_lang, tgt_lang=tgt_lang)
        tally = Tally()
        prefix = None if target_lang_tag is None else self.translator.tag_of(target_lang_tag)
        encoder = self.translator.encoder(too_long, source_prefix=prefix, split_sentences=split_sentences)
        (parts,) = encoder([input_], tally)
        self.translator.warn(tally, too_long)
        for place, part in enumerate(parts or [None]):
            ids, mask = pad_rows([part.ids if part else []], self.tokenizer.pad_token_id)
            batch = {"input_ids": ids, "attention_mask": mask}
            yield {**batch, "part": [(input_, part)], "is_last": place + 1 >= len(parts)}

    def _forward(self, input_tensors: dict[str, Any], **generate_kwargs: Any) -> Any:
        batch = {name: input_tensors[name] for name in ("input_ids", "attention_mask")}
        rest = {name: input_tensors[name] for name in ("part", "is_last")}
        return {**self.translator.generate(**batch, **generate_kwargs), **rest}

    def postprocess(  # type: ignore[override]
        self,
        model_outputs: Any,
        return_tensors: bool = False,
        return_text: bool | None = None,
        cleans_up: bool = False,
        generate_kwargs: Any = None,
        **parameters: Any,
    ) -> list[dict[str, Any]]:
        """
        The translations of a text, best first, from those of its parts: `translation_text`, `translation_token_ids`
        and `score`, as requested.

        Raises:
            ValueError: Neither text nor tensors are requested.
        """
        if return_text is None:
            return_text = not return_tensors
        if not return_text and not return_tensors:
            raise ValueError("return_text=False: nothing is left to return; give return_tensors=True for token ids")
        found = []
        for output in model_outputs:
            # (n, T) and (n); batches and single texts come in one more dimension.
            scores = output["scores"]
            found.append(self.translator.decode(output["sequences"][0], None if scores is None else scores[0]))
        (line, _), *_ = parts = [output["part"][0] for output in model_outputs]
        has_scores = model_outputs[0]["scores"] is not None
        filled = [part for _, part in parts if part]
        texts = self.translator.join(line, filled, found=found, options=generate_kwargs or {}, has_scores=has_scores)
        records, sequences = list[dict[str, Any]](), zip(*(output["sequences"][0] for output in model_outputs))
        for text, row in zip(texts, sequences, strict=True):
            record: dict[str, Any] = {"translation_token_ids": torch.cat(row)} if return_tensors else {}
            if return_text:
                record["translation_text"] = str(self.tokenizer.clean_up_tokenization(text) if cleans_up else text)
            if has_scores:
                record["score"] = text.score
            records.append(record)
        return records
