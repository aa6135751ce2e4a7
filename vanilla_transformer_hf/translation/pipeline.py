"""transformers' "translation" pipeline, which transformers 5 removed."""

from typing import Any

from transformers.pipelines import Pipeline

from .texts import Tally, is_constrained
from .translator import Translator


class TranslationPipeline(Pipeline):
    """
    transformers' "translation" task, on top of a [`Translator`]. A text that is too long for the model is cut.

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
        if is_constrained(input_):
            raise ValueError(f"{input_[:40]!r}: this pipeline takes no constraints, `Translator.translate` does")
        tally = Tally()
        (parts,) = self.translator.encoder("cut")([input_], tally)
        self.translator.warn(tally, "cut")
        return self.translator.collate([part.ids for part in parts] or [[]])

    def _forward(self, input_tensors: dict[str, Any], **generate_kwargs: Any) -> Any:
        return self.translator.generate(**input_tensors, **generate_kwargs)

    def postprocess(self, model_outputs: Any, return_tensors: Any = False, **parameters: Any) -> list[dict[str, Any]]:
        sequences, scores = model_outputs["sequences"][0], model_outputs["scores"]  # (n, T), (1, n) or None
        if return_tensors:
            records = [{"translation_token_ids": ids} for ids in sequences]
        else:
            texts = self.translator.decode(sequences, None)
            records = [{"translation_text": str(text)} for text in texts]
        if scores is not None:
            for record, score in zip(records, scores[0].tolist(), strict=True):
                record["score"] = score
        return records
