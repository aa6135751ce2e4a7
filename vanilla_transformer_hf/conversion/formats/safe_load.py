"""
Checkpoint files, read without running code in them.

A pickle can name any function and call it. torch's `weights_only` unpickler calls only its own; the other names that a
toolkit's checkpoint needs are on the list below, and each is replaced by an inert object that only stores its
arguments. No toolkit is imported.
"""

import argparse
import io
import itertools
import pickletools
import re
import zipfile
import zlib
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..source import ConversionError, Tensors
from .files import checked


MOST_OPCODES = 3_000_000
LARGEST_PICKLE = 64 * 2**20  # bytes, without the tensors
DEEPEST = 100
MOST_SETTINGS = 200_000


class Inert:
    """Replaces an object of a class that is not imported: stores the arguments and the state, and does nothing."""

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


# Name -> its replacement, if that is not an `Inert`.
STAND_INS: dict[str, Any] = {"argparse.Namespace": argparse.Namespace, "collections.defaultdict": _plain_dict}

# Names in the toolkits' checkpoints beside tensors. An entry that ends with a dot is a package of a toolkit, all of
# whose classes (meters, settings, vocabularies) are allowed.
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


def _stand_in(name: str) -> Any:
    """What stands for a name, None for one that is not on the list."""
    if name in STAND_INS:
        return STAND_INS[name]
    is_inert = any(name.startswith(inert) if inert.endswith(".") else name == inert for inert in INERT_NAMES)
    return type("Inert", (Inert,), {"name": name}) if is_inert else None


def _names_in_pickle(file: Any) -> Iterator[str]:
    """The global names in one pickle, whose end `file` is left at."""
    costs = Costs()
    for number, (opcode, argument, _) in enumerate(pickletools.genops(file)):
        if number > MOST_OPCODES:
            raise ValueError(f"its pickle has more than {MOST_OPCODES:,} instructions")
        costs.follow(opcode.name, argument)
        if opcode.name == "GLOBAL":
            module, name = str(argument).split(" ", 1)
            module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
            yield f"{module}.{name}"


# Instruction -> how many things it takes from the stack, to make one of them or to add them to one; None: those behind
# the mark.
_MAKES: dict[str, int | None] = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "REDUCE": 2, "NEWOBJ": 2, "NEWOBJ_EX": 3}
_MAKES |= {"BINPERSID": 1, **dict.fromkeys(("TUPLE", "FROZENSET", "LIST", "DICT", "OBJ", "INST"))}
_ADDS: dict[str, int | None] = {"APPEND": 1, "SETITEM": 2, "BUILD": 1, "POP": 1}
_ADDS |= dict.fromkeys(("APPENDS", "ADDITEMS", "SETITEMS", "POP_MARK"))
_CALLS = ("REDUCE", "NEWOBJ", "NEWOBJ_EX", "OBJ", "INST", "BUILD")
# What a tuple counts for beside the things in it; how much may be in one, and in all that are taken from the memo.
TUPLE = 100
LARGEST_TUPLE = 100 * TUPLE
MOST_HASHED = 10 * MOST_OPCODES
# What all calls together may read of their arguments, and of the allowed names, through which torch looks for each
# call; what a name counts for, and how many characters count as one thing.
MOST_READ = 10 * MOST_OPCODES
NAME, CHARACTERS = 4, 10


class Thing:
    """What a pickle makes: how much its hash reads, and a call that has it as an argument; whether it stands twice."""

    __slots__ = ("hashed", "is_shared", "read")

    def __init__(self, hashed: int = 1, read: int = 1):
        self.hashed, self.read, self.is_shared = hashed, read, False


class Costs:
    """What a pickle costs, by its instructions, in linear time: `torch.load(weights_only=True)` does not count it."""

    # A tuple that is the key of a dict is hashed, level by level in C: 300,000 in each other overflow the C stack, and
    # the process ends by a segmentation fault, which no `except` sees; 60 that each hold the one before twice take
    # years. Only tuples and what is made of them are hashed. A call reads all of its arguments, which may be one list
    # or text from the memo many times, and torch reads the list of allowed names for each call.
    # `test_hostile_costs.py` has each of these. Lists and dicts load, however deep they are in each other.

    def __init__(self):
        self.stack: list[Thing] = []
        self.marks = array("Q")  # places in the stack
        self.memo: dict[Any, Thing] = {}
        self.names: set[str] = set()
        self.hashed, self.read = 0, 0

    def _take(self, count: int | None) -> list[Thing]:
        least = self.marks[-1] if self.marks else 0
        if len(self.stack) - least < (count or 0) or (count is None and not self.marks):
            raise ValueError("invalid pickle: it takes more than there is")
        place = self.marks.pop() if count is None else len(self.stack) - count
        taken = self.stack[place:]
        del self.stack[place:]
        return taken

    def follow(self, name: str, argument: Any):
        """One instruction."""
        if name == "MARK":
            self.marks.append(len(self.stack))
            return
        if name in ("PROTO", "FRAME", "STOP"):
            return
        thing = PLAIN
        if name == "GLOBAL":
            self.names.add(argument)
        if name in ("GET", "BINGET", "LONG_BINGET"):
            thing = self.memo.get(argument, PLAIN)
            self.hashed += thing.hashed
            thing.is_shared = True
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            (thing,) = self._take(1)
            self.memo[len(self.memo) if name == "MEMOIZE" else argument] = thing
        elif name in _MAKES or name in _ADDS:
            parts = self._take(_MAKES[name] if name in _MAKES else _ADDS[name])
            read = min(MOST_READ, 1 + sum(part.read for part in parts))
            self.read += (read + NAME * len(self.names)) * (name in _CALLS)
            if self.read > MOST_READ:
                raise ValueError("its pickle has calls that read too much, or too many names")
            if name in _MAKES:
                thing = Thing(1 if name in ("LIST", "DICT") else TUPLE + sum(part.hashed for part in parts), read)
            elif name in ("BUILD", "POP", "POP_MARK") or not self.stack:
                return
            elif self.stack[-1].is_shared:
                raise ValueError("its pickle adds to a list or dict that is nested elsewhere already, maybe in itself")
            else:
                self.stack[-1].read = min(MOST_READ, self.stack[-1].read + read)
                return
        elif name in ("EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET"):
            thing = Thing()
        elif isinstance(argument, (str, bytes)) and len(argument) > CHARACTERS:
            thing = Thing(read=1 + len(argument) // CHARACTERS)
        if thing.hashed > LARGEST_TUPLE or self.hashed > MOST_HASHED:
            raise ValueError("its pickle has tuples nested more than 100 deep, or of too many things")
        self.stack.append(thing)


PLAIN = Thing()  # all things whose size does not matter


def _names_in_checkpoint(path: Path) -> set[str]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise ConversionError(f"{path} is a zip file, but not one that torch.save wrote")
            if archive.getinfo(pickles[0]).file_size > LARGEST_PICKLE:
                raise ConversionError(f"{path}: its pickle has more than {LARGEST_PICKLE:,} bytes")
            return set(_names_in_pickle(io.BytesIO(archive.read(pickles[0]))))
    with path.open("rb") as file:  # before torch 1.6: magic number, version, system, the object; then storages
        return {name for _ in range(4) for name in _names_in_pickle(file)}


def check_archive(path: Path, growth: int = 1):
    """Compare the files of a zip archive (torch's `.pt`, numpy's `.npz`) with their checksums: torch does not."""
    # It may inflate to `growth` times its size.
    size = checked(path).stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            inflated = sum(info.file_size for info in archive.infolist())
            if inflated > growth * size:
                raise ConversionError(f"{path} has {size:,} bytes and inflates to {inflated:,}; save it uncompressed")
            damaged = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        raise ConversionError(f"{path} is damaged ({error}); copy it again") from error
    if damaged is not None:
        raise ConversionError(f"{path} is damaged: the checksum of {damaged} is wrong; copy it again")


def load_torch(path: Path, trust: bool = False) -> Any:
    """The object in a file that torch.save wrote; tensors stay in the file until they are used."""
    # `trust` unpickles with Python's own unpickler, which runs any code in the file.
    is_zip = zipfile.is_zipfile(checked(path))
    if is_zip:
        check_archive(path)
    try:
        if trust:
            return torch.load(path, map_location="cpu", weights_only=False, mmap=is_zip)
        stand_ins: list[Any] = []
        refused = []
        # A bytearray is made of its size, which may be any number.
        allowed = set(torch._weights_only_unpickler._get_allowed_globals()) - {"builtins.bytearray"}
        for name in sorted(_names_in_checkpoint(path) - allowed):
            if stand_in := _stand_in(name):
                stand_ins.append((stand_in, name))
            else:
                refused.append(name)
        if refused:
            raise ConversionError(
                f"{path} refers to {', '.join(refused)}, which is not on the list of what a checkpoint may hold; "
                "nothing was run. If you know who made the file, --i-trust-this-file unpickles it all the same and "
                "runs what it contains."
            )
        with torch.serialization.safe_globals(stand_ins):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except (ConversionError, OSError):
        raise
    except Exception as error:  # for a damaged file torch raises any error, from AssertionError to struct.error
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ConversionError(f"{path} cannot be read as a checkpoint of torch: {reason[0]}") from error


def plain(value: Any) -> Any:
    """Settings as dicts, lists and simple values, unpacked from namespaces, omegaconf's containers, enumerations."""
    # An interpolation "${a.b}" takes the value at that path of the whole; what is missing for omegaconf ("???") is
    # left out.
    unpacked = _unpack(value, itertools.count())
    return _resolve(unpacked, unpacked, itertools.count())


def _unpack(value: Any, counter: Iterator[int]) -> Any:
    if next(counter) > MOST_SETTINGS:  # one list may stand in another many times, in which it stands many times, ...
        raise ConversionError(f"the settings have more than {MOST_SETTINGS:,} values")
    if isinstance(value, argparse.Namespace):
        return _unpack(vars(value), counter)
    if isinstance(value, Mapping):
        return {key: _unpack(item, counter) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_unpack(item, counter) for item in value]
    if isinstance(value, Inert):
        state = value.state if isinstance(value.state, dict) else {}
        if "_content" in state:  # omegaconf.DictConfig and ListConfig, or an older omegaconf's
            return _unpack(state["_content"], counter)
        if "_val" in state:  # omegaconf's nodes
            return _unpack(state["_val"], counter)
        if len(value.args) == 1:  # an enumeration's member, by its value
            return _unpack(value.args[0], counter)
    return value


def _resolve(value: Any, root: Any, counter: Iterator[int], depth: int = 0) -> Any:
    if depth > DEEPEST or next(counter) > MOST_SETTINGS:  # each of which may be taken twice by the one before
        raise ConversionError("the settings have values that are taken from each other")
    if isinstance(value, dict):
        return {key: _resolve(item, root, counter, depth + 1) for key, item in value.items() if item != "???"}
    if isinstance(value, list):
        return [_resolve(item, root, counter, depth + 1) for item in value]
    if isinstance(value, str) and (match := re.fullmatch(r"\$\{([\w.]{1,1000})\}", value)):
        found = root
        for step in match[1].split("."):
            found = found.get(step) if isinstance(found, dict) else None
        return None if found == value else _resolve(found, root, counter, depth + 1)
    return value


class SafetensorsFiles(Tensors):
    """The tensors of one or several safetensors files, read lazily."""

    def __init__(self, paths: list[Path]):
        self.files = []
        for path in paths:
            try:
                self.files.append(safe_open(checked(path), framework="pt"))
            except SafetensorError as error:
                raise ConversionError(f"{path} is not a complete safetensors file ({error}); copy it again") from error
        self.entries = {name: file for file in self.files for name in file.keys()}  # noqa: SIM118  # no mapping

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.entries[name].get_slice(name).get_shape())

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.entries[name].get_tensor(name)
