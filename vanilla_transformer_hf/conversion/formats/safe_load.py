"""
Checkpoint files, read without running what they contain.

A pickle can name any function and have it called. torch's `weights_only` unpickler calls none but its own; what a
toolkit's checkpoint needs besides is on the list below, and each name on it is replaced by a stand-in that keeps what
it is given and does nothing. No toolkit is imported.
"""

import argparse
import io
import pickletools
import re
import zipfile
import zlib
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..key_table import ConversionError
from .files import checked


class Inert:
    """Stands for an object of a class that is not imported: keeps the arguments and the state, and does nothing."""

    name = ""

    def __init__(self, *args: Any):
        self.args = args
        self.state: Any = {}

    def __setstate__(self, state: Any):
        self.args, self.state = getattr(self, "args", ()), state

    def __hash__(self) -> int:
        return id(self)


def _plain_dict(*args: Any) -> dict:
    return {}


# Name -> what stands for it, where that is no `Inert`.
STAND_INS: dict[str, Any] = {"argparse.Namespace": argparse.Namespace, "collections.defaultdict": _plain_dict}

# Names that checkpoints of the toolkits hold beside tensors. What ends with a dot is a package of a toolkit, whose
# classes (meters, settings, vocabularies) may all appear.
INERT_NAMES = (
    "fairseq.",
    "omegaconf.",
    "joeynmt.",
    "onmt.",
    "torchtext.",
    "eole.",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
    "numpy.ndarray",
    "numpy.dtype",
    "numpy.float64",
    "numpy.float32",
    "numpy.int64",
    "typing.Any",
    "pathlib.Path",
    "pathlib.PosixPath",
    "pathlib.WindowsPath",
    "pathlib.PurePosixPath",
    "builtins.dict",
    "builtins.list",
    "builtins.tuple",
    "builtins.str",
    "builtins.int",
    "builtins.float",
    "builtins.bool",
)


def _is_inert(name: str) -> bool:
    return name in STAND_INS or any(
        name.startswith(inert) if inert.endswith(".") else name == inert for inert in INERT_NAMES
    )


def _stand_in(name: str) -> Any:
    return STAND_INS.get(name) or type("Inert", (Inert,), {"name": name})


def _names_in_pickle(file: Any) -> Iterator[str]:
    """The global names in one pickle, whose end `file` is left at."""
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name == "GLOBAL":
            module, name = str(argument).split(" ", 1)
            module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
            yield f"{module}.{name}"


def _names_in_checkpoint(path: Path) -> set[str]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise ConversionError(f"{path} is a zip file, but not one that torch.save wrote")
            return set(_names_in_pickle(io.BytesIO(archive.read(pickles[0]))))
    with path.open("rb") as file:  # before torch 1.6: magic number, version, system, the object; then storages
        return {name for _ in range(4) for name in _names_in_pickle(file)}


def check_archive(path: Path):
    """
    Compare every file inside a zip archive (torch's `.pt`, numpy's `.npz`) with its checksum.

    Raises:
        ConversionError: The archive is damaged; torch itself would not notice changed weights.
    """
    try:
        with zipfile.ZipFile(checked(path)) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        raise ConversionError(f"{path} is damaged ({error}); copy it again") from error
    if damaged is not None:
        raise ConversionError(f"{path} is damaged: the checksum of {damaged} is wrong; copy it again")


def load_torch(path: Path, trust: bool = False) -> Any:
    """
    The object in a file that torch.save wrote; tensors stay in the file until they are used.

    `trust` unpickles with Python's own unpickler, which runs whatever the file asks for.

    Raises:
        FileNotFoundError: There is no such file.
        ConversionError: The file is damaged, or names classes or functions that are not on the list; all are listed.
    """
    is_zip = zipfile.is_zipfile(checked(path))
    if is_zip:
        check_archive(path)
    try:
        if trust:
            return torch.load(path, map_location="cpu", weights_only=False, mmap=is_zip)
        stand_ins: list[Any] = []
        refused = []
        allowed = set(torch._weights_only_unpickler._get_allowed_globals())
        for name in sorted(_names_in_checkpoint(path) - allowed):
            if _is_inert(name):
                stand_ins.append((_stand_in(name), name))
            else:
                refused.append(name)
        if refused:
            raise ConversionError(
                f"{path} asks for {', '.join(refused)}, which is not on the list of what a checkpoint may hold; "
                "nothing was run. If you know who made the file, --i-trust-this-file unpickles it all the same and "
                "runs what it contains."
            )
        with torch.serialization.safe_globals(stand_ins):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except (ConversionError, OSError):
        raise
    except Exception as error:  # a damaged file makes torch raise anything, from AssertionError to struct.error
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ConversionError(f"{path} cannot be read as a checkpoint of torch: {reason[0]}") from error


def plain(value: Any) -> Any:
    """
    Settings as dicts, lists and simple values: namespaces, omegaconf's containers and enumerations are unpacked, and
    an interpolation "${a.b}" takes the value at that path of the whole; what omegaconf calls missing ("???") is left
    out.
    """
    unpacked = _unpack(value)
    return _resolve(unpacked, unpacked)


def _unpack(value: Any) -> Any:
    if isinstance(value, argparse.Namespace):
        return _unpack(vars(value))
    if isinstance(value, Mapping):
        return {key: _unpack(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_unpack(item) for item in value]
    if isinstance(value, Inert):
        state = value.state if isinstance(value.state, dict) else {}
        if "_content" in state:  # omegaconf.DictConfig and ListConfig, or an older omegaconf's
            return _unpack(state["_content"])
        if "_val" in state:  # omegaconf's nodes
            return _unpack(state["_val"])
        if len(value.args) == 1:  # an enumeration's member, by its value
            return _unpack(value.args[0])
    return value


def _resolve(value: Any, root: Any) -> Any:
    if isinstance(value, dict):
        return {key: _resolve(item, root) for key, item in value.items() if item != "???"}
    if isinstance(value, list):
        return [_resolve(item, root) for item in value]
    if isinstance(value, str) and (match := re.fullmatch(r"\$\{([\w.]+)\}", value)):
        found = root
        for step in match[1].split("."):
            found = found.get(step) if isinstance(found, dict) else None
        return None if found == value else _resolve(found, root)
    return value


class SafetensorsFiles(Mapping):
    """The tensors of one or several safetensors files, each read when it is asked for."""

    def __init__(self, paths: list[Path]):
        self.files = []
        for path in paths:
            try:
                self.files.append(safe_open(checked(path), framework="pt"))
            except SafetensorError as error:
                raise ConversionError(f"{path} is no whole safetensors file ({error}); copy it again") from error
        self.places = {name: file for file in self.files for name in file.keys()}  # noqa: SIM118  # no mapping

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.places[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)
