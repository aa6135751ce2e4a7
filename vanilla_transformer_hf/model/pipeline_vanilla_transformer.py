"""
transformers' "translation" pipeline, which transformers 5 removed, for folders that are opened without this package.
With it, `translation/pipeline.py` has its place, which also splits long texts.
"""

import os
from typing import Any

from transformers import Pipeline
from transformers.dynamic_module_utils import custom_object_save


class SavedTranslationPipeline(Pipeline):
    """`pipeline("translation", folder, trust_remote_code=True)`: a text gives `[{"translation_text": …}]`."""

    # A list gives one for each. Arguments are those of `generate()`; a text is one sentence, as the model has learned
    # them.

    _load_tokenizer: Any = True
    _load_processor: Any = False
    _load_image_processor: Any = False
    _load_video_processor: Any = False
    _load_feature_extractor: Any = False

    def save_pretrained(self, save_directory: str | os.PathLike[str], **kwargs: Any) -> None:
        """Save model and tokenizer, as in every pipeline of transformers, with this file, which their config names."""
        super().save_pretrained(save_directory, **kwargs)  # type: ignore[no-untyped-call]
        custom_object_save(self, save_directory)

    def _sanitize_parameters(self, **generate_kwargs: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        return {}, generate_kwargs, {}

    def preprocess(self, input_: str) -> Any:  # type: ignore[override]
        """The ids of a text (1, S) with their mask."""
        return self.tokenizer(input_, return_tensors="pt")  # type: ignore[misc]

    def _forward(self, input_tensors: Any, **generate_kwargs: Any) -> Any:
        model: Any = self.model
        source = {name: input_tensors[name] for name in ("input_ids", "attention_mask")}
        ids = model.generate(**source, **generate_kwargs)
        return {"ids": ids.unflatten(0, (len(source["input_ids"]), -1))}  # (B, n, T)

    def postprocess(self, model_outputs: Any) -> list[dict[str, str]]:  # type: ignore[override]
        """The translations of a text, best first."""
        texts = self.tokenizer.batch_decode(model_outputs["ids"][0], skip_special_tokens=True)  # type: ignore[union-attr]
        return [{"translation_text": text} for text in texts]
