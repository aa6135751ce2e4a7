"""
The copy of a model for CTranslate2, which is exported once and kept in the assets cache of the Hugging Face libraries,
and translations by it with neither torch nor transformers: with the copy lie facts about its model and tokenizer.

Beside the model it would be found by git, by uploads of the folder above, and where nobody may write.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from huggingface_hub import cached_assets_path, constants

from ..common.checksums import check_unchanged, digest, verify_folder
from ..common.choices import MULTI_SENTENCE_SHARE
from ..common.files import lock_path
from ..common.settings import read_json
from ..model.config.release import VERSION
from .search.ctranslate2_search import CTranslate2Search
from .text.texts import PART_MAX_LENGTH, TARGET_LANG_TAGS
from .text_translator import Limits, TextTranslator, limits_of


logger = logging.getLogger(__name__)

# What a model is exported from.
EXPORTED = ("*.safetensors", "*.json")
# Files of a copy: facts, what reads sources if it is another vocabulary, and what writes translations.
FACTS, SOURCE, TARGET = "facts.json", "source_reading.json", "tokenizer.json"
# Attributes of a tokenizer that a translation reads, and settings of it.
ATTRIBUTES = (
    *("pad_token_id", "model_max_length", "truncation_side", "src_lang", "tgt_lang", "split_special_tokens"),
    *("added_tokens_encoder", "special_tokens_map"),
)
SETTINGS = (MULTI_SENTENCE_SHARE, PART_MAX_LENGTH, TARGET_LANG_TAGS)


def digest_of_model(folder: Path) -> str:
    """The SHA-256 of all that an export depends on: the names and bytes of the files, and this package's version."""
    files = sorted(path for pattern in EXPORTED for path in folder.glob(pattern) if path.is_file())
    lines = [f"{digest(path)}  {path.name}\n" for path in files]
    return hashlib.sha256("".join([f"{VERSION}\n", *lines]).encode()).hexdigest()


def kept_copy(model: str | os.PathLike[str], quantization: str | None) -> Path:
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
                _export(folder, copy, quantization)
                logger.warning("%s: exported once for CTranslate2, to %s", model, copy)
    return copy


def _export(folder: Path, copy: Path, quantization: str | None) -> None:
    from transformers.utils import logging as bars

    from .. import registration
    from ..export import export

    registration.register(for_programs=False)
    check_unchanged(folder)
    had_bars = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()  # of loading weights
    try:
        export.export_for("ctranslate2", folder, copy, quantization=quantization, write_beside=write_facts)
    finally:
        if had_bars:
            bars.enable_progress_bar()


def _is_whole(copy: Path) -> bool:
    """Whether all files of a copy are as they were written: CTranslate2 computes with any numbers."""
    try:
        return not verify_folder(copy).wrong
    except (OSError, ValueError):
        return False


def write_facts(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write `FACTS` and `SOURCE`, unless only transformers reads texts as this tokenizer does."""
    from ..common.opening import check_fit
    from ..model.tokenization_vanilla_transformer import ENDING_SPACE

    check_fit(model, tokenizer)
    saved = Path(tokenizer.name_or_path, "tokenizer_config.json")
    saved_class = read_json(saved).get("tokenizer_class") if saved.is_file() else None
    has_unlisted = tokenizer.listed_pieces is not None or tokenizer.source_listed_pieces is not None
    if saved_class != type(tokenizer).__name__ or has_unlisted or tokenizer.clean_up_tokenization_spaces:
        return
    source, _ = tokenizer.reading_backends()
    kept = json.loads((folder / TARGET).read_text(encoding="utf-8"))
    if {**json.loads(source.to_str()), "decoder": kept["decoder"]} != kept:
        source.save(str(folder / SOURCE))
    settings = tokenizer.init_kwargs
    facts = {
        "limits": limits_of(model, tokenizer)._asdict(),
        "generation_config": json.loads(model.generation_config.to_json_string()),
        "tokenizer": {
            **{name: getattr(tokenizer, name) for name in ATTRIBUTES},
            "init_kwargs": {name: settings[name] for name in SETTINGS if name in settings},
            "ending_space": ENDING_SPACE if settings.get("normalize_white_space") else "",
        },
    }
    (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


class KeptTokenizer:
    """A copy's tokenizer: what a [`TextTranslator`] needs of one of transformers."""

    def __init__(self, folder: Path, facts: dict[str, Any]):
        from tokenizers import Tokenizer

        vars(self).update(facts)
        self._target = Tokenizer.from_file(str(folder / TARGET))
        source = folder / SOURCE
        self._source = Tokenizer.from_file(str(source)) if source.exists() else self._target
        self._source.encode_special_tokens = facts["split_special_tokens"]

    def __call__(self, text: Sequence[str], verbose: bool = False) -> dict[str, list[list[int]]]:
        """The ids of source texts."""
        ending: str = vars(self)["ending_space"]
        encoded = self._source.encode_batch_fast([each.rstrip(ending) if ending else each for each in text])
        return {"input_ids": [each.ids for each in encoded]}

    def batch_decode(self, sequences: Sequence[list[int]], skip_special_tokens: bool) -> list[str]:
        return self._target.decode_batch(sequences, skip_special_tokens=skip_special_tokens)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str | None]:
        return [self._target.id_to_token(each) for each in ids]


class KeptTranslator(TextTranslator):
    """Translations without scores and alignments, by a copy with facts."""

    def __init__(self, folder: Path, threads: int, quantization: str | None = None):
        facts = read_json(folder / FACTS)
        tokenizer: Any = KeptTokenizer(folder, facts["tokenizer"])
        super().__init__(tokenizer, Limits(**facts["limits"]))
        self.engine = " ".join(filter(None, ("ctranslate2", quantization)))
        model = SimpleNamespace(generation_config=SimpleNamespace(**facts["generation_config"]))
        self.search = CTranslate2Search(
            model, tokenizer.pad_token_id, self._limits.target_positions, folder, threads=threads
        )
