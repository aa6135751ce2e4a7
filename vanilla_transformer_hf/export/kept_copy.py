"""The copy of a model for CTranslate2 that is exported once and kept beside the model's folder."""

import json
import os
from pathlib import Path

from ..common.checksums import digest
from ..common.files import open_output
from ..common.settings import read_object
from .export import export_for


# In the copy: of which files it was exported.
ORIGIN_FILE = "exported_from.json"


def kept_copy(model: str | os.PathLike, quantization: str | None) -> Path:
    """
    The copy of a model for CTranslate2, `MODEL-ctranslate2` or `MODEL-ctranslate2-QUANTIZATION`; exported if it is not
    there yet.

    Raises:
        ValueError: The model is not in a folder, or the copy that is there was exported from other files.
        ExportError: The engine cannot express the model, or is not installed.
    """
    folder = Path(model)
    if not folder.is_dir():
        raise ValueError(f"{model} is not a folder: engine ctranslate2 needs the folder of a model")
    files = [*folder.glob("*.safetensors"), *(folder / name for name in ("config.json", "tokenizer.json"))]
    origin = {path.name: digest(path) for path in sorted(files) if path.is_file()}
    suffix = "-ctranslate2" if quantization is None else f"-ctranslate2-{quantization}"
    copy = folder.with_name(folder.resolve().name + suffix)
    if not copy.exists():
        export_for("ctranslate2", folder, copy, quantization=quantization)
        with open_output(copy / ORIGIN_FILE) as file:
            file.write((json.dumps(origin, indent=2) + "\n").encode())
    elif not (copy / ORIGIN_FILE).is_file() or read_object(copy / ORIGIN_FILE, {}) != origin:
        raise ValueError(f"{copy} was not exported from the files that {model} has now: remove it")
    return copy
