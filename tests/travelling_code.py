"""The files of code that travel with a translation model: those that its classes import, as transformers finds."""

from pathlib import Path

from transformers.dynamic_module_utils import get_relative_import_files

from vanilla_transformer_hf.publishing.remote_code import TRAVELLING


CLASSES = [TRAVELLING / f"{name}_vanilla_transformer.py" for name in ("configuration", "modeling", "tokenization")]
CODE = {Path(file).name for path in CLASSES for file in (path, *get_relative_import_files(path))}
