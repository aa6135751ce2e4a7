"""What a run was, in a file beside its checkpoints: settings, checksums, earlier parts; and what has changed."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import yaml

from ...common.checksums import digest_of_all
from ...common.files import open_output
from ...common.settings import read_yaml
from ..arguments import DataArguments
from ..data.parts import ROLES, corpus_parts


RECORD_FILE = "recipe.yaml"
# Keys of a run's record beside its settings: the resolved value of "auto"; the checksums of its data; and the settings
# of earlier parts of the run, each with its last step.
CHOSEN_MATMUL, DATA, EARLIER = "chosen_matmul", "data_sha256", "earlier_settings"
# Settings that do not affect the result: where to begin, where to publish, the card's contents, and threads, which
# another machine has others of.
NO_MATTER = (
    *("resume_from_checkpoint", "push_to_hub", "hub_", "license", "card_example", "project_url", "corpus_name"),
    "threads",
)
DATA_FIELDS = tuple(f"{role}_{side}" for role in ROLES for side in ("source", "target"))
TEXT_FIELDS = tuple(f"{role}_text" for role in ROLES)  # of several files each


@dataclass(frozen=True)
class Changes:
    """Settings that are not those of an earlier run, with their earlier values, and fields whose data are not its."""

    settings: dict[str, Any] = field(default_factory=dict)
    data: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.settings or self.data)

    def __str__(self) -> str:
        parts = {"settings": list(self.settings), "data": [f"{name} has other content" for name in self.data]}
        return " and ".join(f"{what} ({', '.join(names)})" for what, names in parts.items() if names)


@dataclass(frozen=True)
class RunRecord:
    """What is known of a run."""

    # `settings` are those that differ from the defaults, `matmul` is its library of matrix products, `data` are the
    # checksums of its texts, and `earlier` are its earlier parts: their last steps and different settings.

    settings: dict[str, Any] = field(default_factory=dict)
    matmul: str | None = None
    data: dict[str, str] = field(default_factory=dict)
    earlier: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> "RunRecord":
        """The record in a folder of checkpoints; an empty one if there is none."""
        path = folder / RECORD_FILE
        try:
            known = read_yaml(path) if path.is_file() else {}
            if not isinstance(known, dict):
                got = "nothing" if known is None else repr(known)[:40]
                raise ValueError(f"expected a mapping of settings, got {got}")
            matmul, data = known.pop(CHOSEN_MATMUL, None), known.pop(DATA, {})
            earlier = [(int(part["last_step"]), dict(part["settings"])) for part in known.pop(EARLIER, [])]
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            raise ValueError(
                f"{path} is damaged ({' '.join(str(error).split())}): delete it and continue with "
                "--resume_from_checkpoint last, or choose another output_dir."
            ) from error
        return cls(known, matmul, data, earlier)

    def write(self, folder: Path) -> None:
        """Write the record, without settings that do not affect the result of a run."""
        record = kept_settings(self.settings) | {CHOSEN_MATMUL: self.matmul, DATA: self.data}
        if self.earlier:
            record[EARLIER] = [{"last_step": step, "settings": values} for step, values in self.earlier]
        with open_output(folder / RECORD_FILE) as file:
            file.write(yaml.safe_dump(record, sort_keys=False, allow_unicode=True).encode())

    def changes(self, settings: dict[str, Any], data: dict[str, str]) -> Changes:
        """What a run with these settings, and with data of these checksums, has changed."""
        before, now = self.settings, kept_settings(settings)
        changed = {name: before.get(name) for name in changed_names(before, now)}
        # Changed paths are already among the changed settings; what a run had not before, such as a teacher, too.
        names = (name for name in data if name not in changed and self.data.get(name, data[name]) != data[name])
        return Changes(changed, tuple(names))


def find_data_sums(arguments: DataArguments, corpora: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Field -> SHA-256 of the file or folder that it names, or of the loaded rows of a dataset of the Hub."""
    if arguments.corpora:
        sums = dict[str, str]()
        for name, part in corpus_parts(arguments).items():
            own = {role: corpus for role in ROLES if (corpus := (corpora or {}).get(f"{role}.{name}")) is not None}
            sums |= {f"{name}.{field}": value for field, value in find_data_sums(part, own).items()}
        return sums
    paths = {name: Path(value) for name in DATA_FIELDS if (value := getattr(arguments, name)) is not None}
    found = {name: digest_of_all(path) for name, path in paths.items() if path.exists()}
    for name in TEXT_FIELDS:
        if files := getattr(arguments, name):
            digests = [digest_of_all(Path(file)) for file in files if Path(file).exists()]
            found[name] = hashlib.sha256(" ".join(digests).encode()).hexdigest()
    for role, corpus in (corpora or {}).items():
        if f"{role}_source" in paths and f"{role}_source" not in found and isinstance(corpus, datasets.Dataset):
            # Of the texts: a dataset's fingerprint identifies the requested version, not the received texts.
            digest = hashlib.sha256()
            for batch in corpus.select_columns(["source", "target"]).iter(10_000):
                digest.update(json.dumps([batch["source"], batch["target"]]).encode())
            found[f"{role}_source"] = digest.hexdigest()
    return found


def changed_names(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The names whose values differ, in their order."""
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


def kept_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that affect the result of a run."""
    return {name: value for name, value in settings.items() if not name.startswith(NO_MATTER)}


def settings_of_all_parts(settings: dict[str, Any], earlier: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """The settings of a run for its card; a changed one lists its values with their last steps."""
    told = dict(settings)
    for step, values in earlier:
        if names := values.get(DATA):
            told["data"] = f"{', '.join(names)}: other content after step {step}"
    for name in dict.fromkeys(name for _, values in earlier for name in values if name != DATA):
        parts = [f"{value_in_words(values[name])} to step {step}" for step, values in earlier if name in values]
        told[name] = f"{', '.join(parts)}, then {value_in_words(settings.get(name))}"
    return told


def value_in_words(value: Any) -> str:
    """A setting's value; None stands for the default."""
    return "the default" if value is None else str(value)
