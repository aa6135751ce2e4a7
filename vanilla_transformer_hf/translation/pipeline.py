"""transformers' "translation" pipeline, which transformers 5 removed."""

import re
from collections.abc import Iterator
from typing import Any

import torch
from transformers.pipelines.base import ChunkPipeline

from ..common.split_sentences import SplitSentences
from .tally import Tally
from .texts import TARGET_LANG_TAGS, is_constrained
from .translator import Translator


class TranslationPipeline(ChunkPipeline):
    """
    transformers' "translation" task, on top of a [`Translator`]. Lines and sentences are translated one by one, and
    texts that are too long for the model in parts, as in `Translator.translate`.

    A text gives `[{"translation_text": …}]`; a list, generator or `KeyDataset` gives the same for each item, and a
    list whose items have one translation each is flattened to `[{"translation_text": …}, …]`. This is what the
    pipeline of transformers 4 returned. Arguments at construction or in a call: `batch_size`, `return_tensors`
    (`translation_token_ids` in place of the text; of a text in parts, those of the parts one after the other),
    `return_scores` (adds `score`), `split_sentences` ("auto", "always" or "never"), `target_lang_tag` (the language to
    translate to, of a model for several: its tag is put before each text), `src_lang` and `tgt_lang` of transformers 4
    (the model's languages, or one that it has a tag for), and those of `generate()`. For such a model,
    `pipeline("translation_en_to_de")` sets `target_lang_tag="de"`.

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
        self._check_languages()

    def _check_languages(self) -> None:
        """
        Raises:
            ValueError: The languages in the task's name are not those of the tokenizer, or the model does not
                translate to `target_lang_tag`.
        """
        named = re.fullmatch(r"translation_(\w+?)_to_(\w+)", self.task or "")
        own = [getattr(self.tokenizer, name, None) for name in ("src_lang", "tgt_lang")]
        if named and any(code not in (None, wanted) for code, wanted in zip(own, named.groups())):
            raise ValueError(f"{self.task}: the model translates from {own[0]} to {own[1]}.")
        if named and self.translator.target_lang_tags:
            self.translator.use_target_lang(named[2])
        if (language := self._preprocess_params.get("target_lang_tag")) is not None:
            self.translator.use_target_lang(language)

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(inputs, list) and not inputs:
            return []  # the base class inspects the first item
        results = super().__call__(inputs, *args, **kwargs)
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
        **generate_kwargs: Any,
    ):
        target_lang_tag = self._target_lang_tag(src_lang, tgt_lang) or target_lang_tag
        given = {"target_lang_tag": target_lang_tag, "split_sentences": split_sentences}
        before = {name: value for name, value in given.items() if value is not None}
        after = {"generate_kwargs": generate_kwargs} if generate_kwargs else {}
        return (
            before,
            generate_kwargs,
            after if return_tensors is None else {**after, "return_tensors": return_tensors},
        )

    def _target_lang_tag(self, src_lang: str | None, tgt_lang: str | None) -> str | None:
        """
        The language whose tag `tgt_lang` asks for; None where the model needs no tag.

        Raises:
            ValueError: A language is not the model's.
        """
        if tgt_lang is not None and self.tokenizer.init_kwargs.get(TARGET_LANG_TAGS):
            checked, tag = {"src_lang": src_lang}, tgt_lang
        else:
            checked, tag = {"src_lang": src_lang, "tgt_lang": tgt_lang}, None
        for name, language in checked.items():
            if language not in (None, own := getattr(self.tokenizer, name, None)):
                raise ValueError(f"{name}={language!r} is not a language of this model: expected {own or 'none'}.")
        return tag

    def preprocess(  # type: ignore[override]
        self,
        input_: Any,
        target_lang_tag: str | None = None,
        split_sentences: SplitSentences | None = None,
        **parameters: Any,
    ) -> Iterator[dict[str, Any]]:
        if is_constrained(input_):
            raise ValueError(f"{input_[:40]!r}: the pipeline does not support constraints; use `Translator.translate`")
        tally = Tally()
        prefix = None if target_lang_tag is None else self.translator.tag_of(target_lang_tag)
        encoder = self.translator.encoder("split", source_prefix=prefix, split_sentences=split_sentences)
        (parts,) = encoder([input_], tally)
        self.translator.warn(tally, "split")
        for place, part in enumerate(parts or [None]):
            batch = self.translator.collate([part.ids if part else []])
            yield {**batch, "part": [(input_, part)], "is_last": place + 1 >= len(parts)}

    def _forward(self, input_tensors: dict[str, Any], **generate_kwargs: Any) -> Any:
        batch = {name: input_tensors[name] for name in ("input_ids", "attention_mask")}
        rest = {name: input_tensors[name] for name in ("part", "is_last")}
        return {**self.translator.generate(**batch, **generate_kwargs), **rest}

    def postprocess(
        self, model_outputs: Any, return_tensors: Any = False, generate_kwargs: Any = None, **parameters: Any
    ) -> list[dict[str, Any]]:
        found = []
        for output in model_outputs:
            # (n, T) and (n); batches and single texts come in one more dimension.
            scores = output["scores"]
            found.append(self.translator.decode(output["sequences"][0], None if scores is None else scores[0]))
        (line, _), *_ = parts = [output["part"][0] for output in model_outputs]
        has_scores = model_outputs[0]["scores"] is not None
        filled = [part for _, part in parts if part]
        texts = self.translator.join(line, filled, found, generate_kwargs or {}, has_scores)
        records: list[dict[str, Any]]
        if return_tensors:
            rows = zip(*(output["sequences"][0] for output in model_outputs))
            records = [{"translation_token_ids": torch.cat(row)} for row in rows]
        else:
            records = [{"translation_text": str(text)} for text in texts]
        if has_scores:
            for record, text in zip(records, texts, strict=True):
                record["score"] = text.score
        return records
