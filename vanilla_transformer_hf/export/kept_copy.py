"""
The copy of a model for CTranslate2, which is exported once and kept in the assets cache of the Hugging Face libraries.

Beside the model it would be found by git, by uploads of the folder above, and where nobody may write.
"""

import hashlib
import logging
import os
import shutil
from pathlib import Path

from huggingface_hub import cached_assets_path, constants

from ..common.checksums import digest, verify_folder
from ..common.files import lock_path
from ..model.config.release import VERSION
from .export import export_for


logger = logging.getLogger(__name__)

# What a model is exported from.
EXPORTED = ("*.safetensors", "*.json")


def digest_of_model(folder: Path) -> str:
    """The SHA-256 of all that an export depends on: the names and bytes of the files, and this package's version."""
    files = sorted(path for pattern in EXPORTED for path in folder.glob(pattern) if path.is_file())
    lines = [f"{digest(path)}  {path.name}\n" for path in files]
    return hashlib.sha256("".join([f"{VERSION}\n", *lines]).encode()).hexdigest()


def kept_copy(model: str | os.PathLike, quantization: str | None) -> Path:
    """The copy of a model for CTranslate2, exported if none fits its `SHA256SUMS`; processes wait for it."""
    # It is `vanilla_transformer_hf/ctranslate2/models/NAME-QUANTIZATION-DIGEST` in `HF_ASSETS_CACHE`, by default
    # `~/.cache/huggingface/assets`; nothing else refers to it, so that it may be deleted at any time.
    folder = Path(model)
    if not folder.is_dir():
        raise ValueError(f"{model} is not a folder: engine ctranslate2 needs the folder of a model")
    cache = cached_assets_path("vanilla_transformer_hf", "ctranslate2", "models", assets_dir=constants.HF_ASSETS_CACHE)
    kind = Path(quantization or "as_saved").name  # an unknown one is refused by the export
    copy = cache / f"{folder.resolve().name[:100]}-{kind}-{digest_of_model(folder)[:16]}"
    if not _is_whole(copy):
        with lock_path(cache / ".lock", wait=True):
            if os.path.lexists(copy) and not _is_whole(copy):
                logger.warning("%s is damaged, and made again", copy)
                shutil.rmtree(copy) if copy.is_dir() and not copy.is_symlink() else copy.unlink()
            if not copy.exists():
                export_for("ctranslate2", folder, copy, quantization=quantization)
                logger.warning("%s: exported once for CTranslate2, to %s", model, copy)
    return copy


def _is_whole(copy: Path) -> bool:
    """Whether all files of a copy are as they were written: CTranslate2 computes with any numbers."""
    try:
        return not verify_folder(copy).wrong
    except (OSError, ValueError):
        return False
