"""
Files that want to run something, and files that are damaged.

What carries a checksum (torch's `.pt` since 1.6, `.npz`, TensorFlow's checkpoints) either is read as it was written or
is refused. safetensors and older `.pt` files have none: there a changed number is found only where it is no number any
more, and what is shown is that damage to the structure is refused.
"""

import contextlib
import hashlib
import io
import pickle
import random
import shutil
import struct
import zipfile

import numpy as np
import pytest
import test_fairseq
import test_marian
import torch
from checkpoints import write

from vanilla_transformer_hf.conversion import CONVERTERS, ConversionError, convert
from vanilla_transformer_hf.conversion.formats.safe_load import load_torch
from vanilla_transformer_hf.conversion.key_table import convert_tensors, empty_model


# --------------------------------------------------------------------------------------------------- malicious pickles

# Source -> the file that is unpickled, and what has to lie beside it to get so far.
PICKLED = {
    "fairseq": ("checkpoint_best.pt", {"dict.en.txt": "a 1\n", "dict.de.txt": "a 1\n"}),
    "marianmt": ("pytorch_model.bin", {"config.json": '{"model_type": "marian"}'}),
    "fsmt": ("pytorch_model.bin", {"config.json": '{"model_type": "fsmt"}'}),
    "bert": ("pytorch_model.bin", {"config.json": '{"model_type": "bert"}'}),
    "gpt2": ("pytorch_model.bin", {"config.json": '{"model_type": "gpt2"}'}),
    "whisper": ("pytorch_model.bin", {"config.json": '{"model_type": "whisper"}'}),
    "speech_to_text": ("pytorch_model.bin", {"config.json": '{"model_type": "speech_to_text"}'}),
    "joeynmt": ("best.ckpt", {"config.yaml": "data: {}\nmodel: {}\n"}),
    "opennmt_py": ("model_step_1.pt", {}),
    "torch_nn": ("model.pt", {}),
    "annotated": ("model.pt", {}),
}
NOT_PICKLED = {"eole", "marian", "tensor2tensor"}


def text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def name_of(module: str, name: str) -> bytes:
    return b"c" + f"{module}\n{name}\n".encode()


def call(module: str, name: str, *arguments: bytes) -> bytes:
    """Opcodes of a pickle that call a function, as `__reduce__` would have them written."""
    return name_of(module, name) + b"(" + b"".join(arguments) + b"tR"


def with_state(thing: bytes, state: bytes) -> bytes:
    """Opcodes that give an object a state, as `__setstate__` takes it."""
    return thing + b"}(" + text("x") + state + b"ub"


def legacy(thing: bytes) -> bytes:
    """A file of torch before 1.6: magic number, version, system, object, storages; each a pickle."""
    head = (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}})
    return b"".join(pickle.dumps(part, 2) for part in head) + b"\x80\x02" + thing + b"." + pickle.dumps([], 2)


def payloads(marker) -> dict[str, bytes]:
    """Opcodes that create the file `marker` when they are run, by many ways."""
    shell, code = text(f"touch {marker}"), text(f"open({str(marker)!r}, 'w')")
    system = call("posix", "system", shell)
    return {
        "os.system": call("os", "system", shell),
        "posix.system": system,
        "builtins.eval": call("builtins", "eval", code),
        "builtins.exec": call("builtins", "exec", code),
        "of python 2": call("__builtin__", "eval", code),
        "subprocess": call("subprocess", "getoutput", shell),
        "behind another module": call("torch.serialization", "os.system", shell),
        "behind an allowed module": call("argparse", "_os.system", shell),
        "behind an allowed class": call("argparse", "Namespace.__init__.__globals__", shell),
        "under a toolkit's name": call("fairseq.os", "system", shell),
        "getattr": call("builtins", "getattr", name_of("os", "path"), text("os")),
        "torch.load within": call("torch.storage", "_load_from_bytes", b"B" + struct.pack("<I", 0)),
        "torch.load by path": call("torch", "load", text(str(marker))),
        "of numpy": call("numpy.core.multiarray", "_reconstruct", system),
        "as a state": with_state(call("argparse", "Namespace"), system),
        "as an argument": call("collections", "OrderedDict", system),
        "in a list": b"](" + system + b"e",
        "in dictionaries": b"}(" + text("model") + b"}(" + text("w") + system + b"u" + text("args") + b"Nu",
        "as a key": b"}(" + system + b"Nu",
        "by INST": b"(" + shell + b"iposix\nsystem\n",
        "by OBJ": b"(" + name_of("posix", "system") + shell + b"o",
        "by NEWOBJ": name_of("posix", "system") + b"(" + shell + b"t\x81",
        "by STACK_GLOBAL": text("posix") + text("system") + b"\x93(" + shell + b"tR",
        "dropped again": system + b"0}",
    }


def in_zip(thing: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + thing + b".")
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/version", "3\n")
    return file.getvalue()


CONTAINERS = {"zip": in_zip, "legacy": legacy, "plain": lambda thing: b"\x80\x02" + thing + b"."}


def test_every_source_is_in_one_of_the_lists():
    assert PICKLED.keys() | NOT_PICKLED == CONVERTERS.keys()


@pytest.mark.parametrize("source", PICKLED)
def test_no_source_runs_what_a_pickle_asks_for(source, tmp_path):
    marker = tmp_path / "it was run"
    name, beside = PICKLED[source]
    for file, content in beside.items():
        (tmp_path / file).write_text(content)
    for way, thing in payloads(marker).items():
        for container, wrap in CONTAINERS.items():
            (tmp_path / name).write_bytes(wrap(thing))
            with pytest.raises(ConversionError) as refusal:
                convert(source, tmp_path, tmp_path / "out")
            assert not marker.exists(), f"{way} in {container}"
            assert not (tmp_path / "out").exists()
            if container != "plain" and way in ("os.system", "posix.system", "builtins.eval", "builtins.exec"):
                assert way in str(refusal.value) and "nothing was run" in str(refusal.value), "the name is told"


def test_names_that_are_refused_are_listed_all(tmp_path):
    both = b"](" + call("os", "system", text("true")) + call("builtins", "eval", text("1")) + b"e"
    (tmp_path / "x.pt").write_bytes(in_zip(both))
    with pytest.raises(ConversionError, match=r"refers to builtins\.eval, os\.system"):
        load_torch(tmp_path / "x.pt")


def test_trust_runs_it_which_shows_that_these_pickles_work(tmp_path):
    """Without `trust` the same files do nothing; see above."""
    for way in ("os.system", "builtins.eval", "as a state", "in dictionaries", "by STACK_GLOBAL"):
        for container in ("zip", "legacy"):
            marker = tmp_path / f"{way.replace(' ', '')}-{container}"
            (tmp_path / "x.pt").write_bytes(CONTAINERS[container](payloads(marker)[way]))
            with contextlib.suppress(ConversionError):  # what comes back may be no checkpoint
                load_torch(tmp_path / "x.pt", trust=True)
            assert marker.exists(), marker.name


def test_arrays_of_objects_are_not_unpickled(tmp_path):
    marker = tmp_path / "it was run"

    class Evil:
        def __reduce__(self):
            return open, (str(marker), "w")

    test_marian.make(tmp_path)
    with np.load(tmp_path / "model.npz") as file:
        arrays = dict(file)
    arrays["Wemb"] = np.array([Evil()], dtype=object)
    np.savez(tmp_path / "model.npz", **arrays)
    with pytest.raises(ConversionError):
        convert("marian", tmp_path, tmp_path / "out")
    test_marian.make(tmp_path)
    np.savez(tmp_path / "ref.npz", src_ids=np.array([Evil()], dtype=object))
    with pytest.raises(ConversionError):
        convert("marian", tmp_path, tmp_path / "out", reference=tmp_path / "ref.npz")
    assert not marker.exists()


def test_yaml_makes_no_objects(tmp_path):
    marker = tmp_path / "it was run"
    evil = f"!!python/object/apply:os.system ['touch {marker}']"
    test_marian.make(tmp_path)
    (tmp_path / "decoder.yml").write_text(f"vocabs: {evil}\n")
    with pytest.raises(ConversionError, match="not YAML"):
        convert("marian", tmp_path, tmp_path / "out")
    (tmp_path / "decoder.yml").unlink()
    (tmp_path / "target.vocab.yml").write_text(f"a: {evil}\n")
    with pytest.raises(ConversionError):
        convert("marian", tmp_path, tmp_path / "out")
    torch.save({"model_state": {}}, tmp_path / "best.ckpt")
    (tmp_path / "config.yaml").write_text(f"data: {evil}\n")
    with pytest.raises(ConversionError):
        convert("joeynmt", tmp_path, tmp_path / "out")
    assert not marker.exists()


# ------------------------------------------------------------------------------------------------------- damaged files


# Source -> the files of its small checkpoint.
WITH_CHECKSUMS = {
    "fairseq": ["checkpoint_best.pt"],
    "marian": ["model.npz"],
    "tensor2tensor": [f"model.ckpt-400.{part}" for part in ("index", "data-00000-of-00002")],
}


def old_fairseq(folder):
    reference = test_fairseq.Reference({})
    torch.save(
        reference.content(), reference.write(folder) / "checkpoint_best.pt", _use_new_zipfile_serialization=False
    )
    return folder / "checkpoint_best.pt"


def write_without_checksums(source, folder):
    """The file with the weights, which has none."""
    return old_fairseq(folder) if source == "fairseq" else write(source, folder) / "model.safetensors"


def open_all(source, folder):
    """Config and tensors of a checkpoint, as the conversion reads them."""
    found = CONVERTERS[source].read(folder)
    assert not found.unsupported()
    config = found.to_config()
    converted = convert_tensors(found.keys(config), found.tensors, empty_model(config))
    return config.to_dict(), {name: tensor.clone() for name, tensor in converted}


def same(one, other):
    return (
        one[0] == other[0]
        and one[1].keys() == other[1].keys()
        and all(torch.equal(one[1][k], other[1][k]) for k in one[1])
    )


def flip_a_bit(data, chance, end=None):
    place = chance.randrange(end or len(data))
    return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]


def overwrite(data, chance, end=None):
    place, length = chance.randrange(end or len(data)), chance.randint(2, 64)
    return data[:place] + chance.randbytes(length)[: len(data) - place] + data[place + length :]


def truncate(data, chance, end=None):
    return data[: chance.randrange(len(data))]


def damage(path, chance, kind, end=None):
    data = path.read_bytes()
    path.write_bytes(kind(data, chance, end))
    return data


@pytest.mark.parametrize("source", WITH_CHECKSUMS)
def test_damage_is_refused_or_harmless(source, tmp_path):
    names, folder = WITH_CHECKSUMS[source], write(source, tmp_path / "run")
    whole = open_all(source, folder)
    chance, refused = random.Random(0), 0
    for number in range(50):
        path = folder / names[number % len(names)]
        data = damage(path, chance, [flip_a_bit, flip_a_bit, overwrite, truncate][number // 2 % 4])
        try:
            assert same(open_all(source, folder), whole), f"damage {number} went unnoticed"
        except ConversionError as error:
            refused += 1
            assert "\n" not in str(error) or "left over" in str(error) or "missing" in str(error)
        path.write_bytes(data)
    assert refused >= 30, "most damage is seen"


@pytest.mark.parametrize("source", ["marianmt", "fairseq"])
def test_truncated_files_without_checksums_are_refused(source, tmp_path):
    path, chance = write_without_checksums(source, tmp_path / "run"), random.Random(0)
    for _ in range(50):
        data = damage(path, chance, truncate)
        with pytest.raises(ConversionError):
            open_all(source, path.parent)
        path.write_bytes(data)


def test_a_damaged_header_of_safetensors_is_refused_or_harmless(tmp_path):
    path = write_without_checksums("marianmt", tmp_path / "run")
    whole = open_all("marianmt", path.parent)
    header = 8 + struct.unpack("<Q", path.read_bytes()[:8])[0]
    chance = random.Random(0)
    for number in range(50):
        data = damage(path, chance, flip_a_bit, header)
        with contextlib.suppress(ConversionError):
            assert same(open_all("marianmt", path.parent), whole), f"damage {number} went unnoticed"
        path.write_bytes(data)


def test_damage_to_old_pickles_ends_in_a_clear_error_or_in_a_model(tmp_path):
    """Without a checksum a changed number is a number; no other exception gets out, and nothing is run."""
    path, chance = old_fairseq(tmp_path / "run"), random.Random(0)
    for number in range(50):
        data = damage(path, chance, [flip_a_bit, overwrite][number % 2])
        with contextlib.suppress(ConversionError):
            _, tensors = open_all("fairseq", path.parent)
            assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
        path.write_bytes(data)


def test_numbers_that_are_none_are_refused(tmp_path):
    path = write_without_checksums("marianmt", tmp_path / "run")
    data = bytearray(path.read_bytes())
    data[-4:] = struct.pack("<f", float("nan"))
    path.write_bytes(data)
    with pytest.raises(ConversionError, match="not finite"):
        convert("marianmt", path.parent, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_card_has_the_checksum_of_every_file(tmp_path):
    convert("tensor2tensor", write("tensor2tensor", tmp_path / "run"), tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    for name in ("model.ckpt-400.index", "model.ckpt-400.data-00001-of-00002", "hparams.json"):
        assert hashlib.sha256((tmp_path / "run" / name).read_bytes()).hexdigest() in card, name
    shutil.rmtree(tmp_path / "out")
