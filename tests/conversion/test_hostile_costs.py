"""
Nothing that a file says costs more than the file is worth: each input here ends in one error that names it, in less
than a second of a usual processor's time and with little memory beyond the file's size.
"""

import contextlib
import io
import json
import os
import re
import shutil
import struct
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow_writer
import test_marian
import test_marianmt
import torch
import yaml
from checkpoints import write
from machine import is_within, within
from safetensors.torch import save_file
from tensorflow_writer import message, varint

from vanilla_transformer_hf.common.settings import parse_json, parse_yaml, read_bounded
from vanilla_transformer_hf.conversion import ConversionError, convert
from vanilla_transformer_hf.conversion.formats.sentencepiece_model import read_sentencepiece


SECONDS = 1.0
MEMORY = 64 * 2**20  # bytes for what Python and torch need anyway


def memory(name: str) -> int:
    """A line of /proc/self/status in bytes, 0 where there is none."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


def forget_peak():
    if Path("/proc/self/clear_refs").is_file():
        Path("/proc/self/clear_refs").write_text("5")


@pytest.fixture(autouse=True)
def warm(tmp_path_factory, request):
    """What the first use of a library costs is no file's fault."""
    if not getattr(request.session, "converted_once", False):
        for source in ("fairseq", "marian", "joeynmt"):
            folder = tmp_path_factory.mktemp("warm")
            convert(source, write(source, folder / "run"), folder / "out")
        request.session.converted_once = True


def refused(call, folder, match, lines=4):
    """The error of a call that reads `folder`, within its bounds."""
    assert match, "an empty pattern would match every message"
    size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
    forget_peak()
    before, start = memory("VmRSS"), time.process_time()
    with pytest.raises((ValueError, OSError), match=match) as error:
        call()
    seconds, peak = time.process_time() - start, memory("VmHWM") - before
    assert is_within(seconds, SECONDS)
    assert peak < 1.2 * size + MEMORY, f"{peak:,} bytes"
    assert len(str(error.value).splitlines()) <= lines and len(str(error.value)) < 2000
    return error.value


def not_converted(source, folder, tmp_path, match, lines=4):
    error = refused(lambda: convert(source, folder, tmp_path / "out"), folder, match, lines)
    assert isinstance(error, (ConversionError, FileNotFoundError))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"], "nothing is left"


# ------------------------------------------------------------------------------------ sizes that only a setting claims


def set_in(file, *path):
    """A change of a setting in a file of JSON or YAML."""
    read, write = (json.loads, json.dumps) if file.endswith("json") else (yaml.safe_load, yaml.safe_dump)

    def change(folder, value):
        content = read((folder / file).read_text())
        place = content
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = value
        (folder / file).write_text(write(content))

    return change


def set_in_pickle(file, part, name):
    def change(folder, value):
        content = torch.load(folder / file, weights_only=False)
        settings = content[part]["model"] if part == "cfg" else content[part]
        setattr(settings, name, value)
        torch.save(content, folder / file)

    return change


def set_in_marian(name):
    def change(folder, value):
        with np.load(folder / "model.npz") as file:
            arrays = dict(file)
        text = arrays.pop("special:model.yml").tobytes().rstrip(b"\0").decode()
        options = {**yaml.safe_load(text), name: value}
        text = yaml.safe_dump(options).encode() + b"\0"
        np.savez(folder / "model.npz", **{"special:model.yml": np.frombuffer(text, np.int8)}, **arrays)

    return change


# Source -> how its depth, width and heads are set.
SIZES = {
    "eole": [set_in("config.json", "model", "encoder", name) for name in ("layers", "hidden_size", "heads")],
    "fairseq": [
        set_in_pickle("checkpoint_best.pt", "cfg", f"decoder_{name}")
        for name in ("layers", "embed_dim", "attention_heads")
    ],
    "marian": [set_in_marian(name) for name in ("dec-depth", "dim-emb", "transformer-heads")],
    "marianmt": [set_in("config.json", name) for name in ("encoder_layers", "d_model", "encoder_attention_heads")],
    "fsmt": [set_in("config.json", name) for name in ("decoder_layers", "d_model", "decoder_attention_heads")],
    "joeynmt": [
        set_in("config.yaml", "model", "decoder", name) for name in ("num_layers", "hidden_size", "num_heads")
    ],
    "opennmt_py": [set_in_pickle("model_step_10.pt", "opt", name) for name in ("layers", "hidden_size", "heads")],
    "tensor2tensor": [set_in("hparams.json", name) for name in ("num_hidden_layers", "hidden_size", "num_heads")],
}

# How an error may call each of them.
SIZE_NAMES = ("layers|depth", "hidden_size|embed_dim|d_model|dim-emb|word_vec_size", "heads")


@pytest.mark.parametrize("value", [10**6, 10**9, 2**40, 10**30, 0, -1])
@pytest.mark.parametrize("source", SIZES)
def test_sizes_that_no_tensor_has(source, value, tmp_path):
    folder = write(source, tmp_path / "run")
    whole = {path: path.read_bytes() for path in folder.iterdir()}
    for number, change in enumerate(SIZES[source]):
        if (source == "opennmt_py" and value <= 0 and number < 2) or (source, value, number) == ("fairseq", 0, 1):
            continue  # there it stands for "not given"
        change(folder, value)
        not_converted(source, folder, tmp_path, SIZE_NAMES[number], lines=60)
        for path, content in whole.items():
            path.write_bytes(content)


@pytest.mark.parametrize("source", ["torch_nn", "annotated"])
@pytest.mark.parametrize("heads", [0, -2, 10**9, 2**70])
def test_heads_that_do_not_exist(source, heads, tmp_path):
    folder = write(source, tmp_path / "run")
    set_in("settings.yaml", "nhead" if source == "torch_nn" else "h")(folder, heads)
    not_converted(source, folder, tmp_path, "nhead|heads|h:")


# --------------------------------------------------------------------------------------------------------------- texts


def nested(opening, closing, depth=100_000):
    return opening * depth + closing * depth


ANCHORS = "a0: &a0 [x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]\n" for n in range(1, 12)
)
TEXTS = {
    "deep": nested("[", "]"),
    "deep objects": nested('{"a":', "}", 50_000),
    "not closed": "[" * 1_000_000,
    "too large": '{"a": "' + "x" * (40 * 2**20) + '"}',
    "a long number": '{"a": ' + "9" * 10_000 + "}",
    "half a character": '{"model_type": "marian", "a": "\\ud800"}',
    "empty": "",
}
YAML_TEXTS = {
    "anchors": ANCHORS,
    "deep": nested("[", "]"),
    "deep blocks": "".join(f"{' ' * n}a:\n" for n in range(2000)),
    "deep lists": "- " * 100_000 + "x",
    "too large": "a: " + "x" * (5 * 2**20),
    "a tag that does not fit": "a: !!timestamp x\n",
    "a number that does not fit": "a: !!int x\n",
    "a date that does not exist": "a: 2001-99-99\n",
    "a long number": "a: " + "9" * 10_000,
    "an object": "a: !!python/object/apply:os.system [true]\n",
    "a list as a name": "? [a]\n: b\n",
}


JSON_FILES = {"marianmt": "config.json", "eole": "vocab.json", "tensor2tensor": "hparams.json"}
YAML_FILES = {"joeynmt": "config.yaml", "torch_nn": "settings.yaml", "marian": "decoder.yml"}


@pytest.mark.parametrize(
    ("files", "text"),
    [
        *(pytest.param(JSON_FILES, text, id=f"json, {name}") for name, text in TEXTS.items()),
        *(pytest.param(YAML_FILES, text, id=f"yaml, {name}") for name, text in YAML_TEXTS.items()),
    ],
)
def test_settings_of_every_source(files, text, tmp_path):
    for source, file in files.items():
        folder = write(source, tmp_path / "run")
        (folder / file).write_text(text)
        not_converted(source, folder, tmp_path, file)
        shutil.rmtree(folder)


def test_a_deep_vocabulary_in_yaml_does_not_reach_the_c_loader(tmp_path):
    folder = write("marian", tmp_path / "run")
    for text in (nested("[", "]"), nested("{a: ", "}", 30_000), ANCHORS):
        (folder / "target.vocab.yml").write_text(text)
        not_converted("marian", folder, tmp_path, r"target\.vocab\.yml")


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "link to a device"])
def test_what_is_not_a_regular_file(kind, tmp_path):
    for source, file in (
        ("marianmt", "config.json"),
        ("marianmt", "generation_config.json"),
        ("marianmt", "model.safetensors"),
        ("joeynmt", "best.ckpt"),
        ("joeynmt", "src_vocab.txt"),
        ("fairseq", "dict.en.txt"),
        ("marian", "model.npz"),
        ("tensor2tensor", "model.ckpt-400.index"),
        ("tensor2tensor", "model.ckpt-400.data-00000-of-00002"),
    ):
        folder = write(source, tmp_path / "run")
        path = folder / file
        path.unlink(missing_ok=True)
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "link to a device":
            path.symlink_to("/dev/zero")
        else:
            try:
                os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
            except (PermissionError, OSError):
                pytest.skip("devices cannot be made here")
        if file == "generation_config.json":
            convert(source, folder, tmp_path / "out")  # not a file: as if it were not there
            shutil.rmtree(tmp_path / "out")
        else:
            not_converted(source, folder, tmp_path, rf"{re.escape(file)}|no \.npz file|name its \.index")
        shutil.rmtree(folder)


@pytest.mark.parametrize("token", ["x" * 2_000_000, "a\ud800b"])
def test_tokens_that_are_none(token, tmp_path):
    folder = write("eole", tmp_path / "run")
    content = json.loads((folder / "vocab.json").read_text())
    content["src"][-1] = token
    (folder / "vocab.json").write_text(json.dumps(content))
    not_converted("eole", folder, tmp_path, "2,000,000 characters long|lone surrogate")


# ---------------------------------------------------------------------------------------------------- pickles, tensors


def archive(data, name="archive/data.pkl", compression=zipfile.ZIP_STORED, **members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as content:
        content.writestr(name, data)
        content.writestr("archive/version", "3\n")
        for other, more in members.items():
            content.writestr(f"archive/{other}", more)
    return file.getvalue()


def calls(function, argument, count=20_000):
    """A function of `module name`, called with an argument that is taken from the memo."""
    module, name = function.split()
    call = f"c{module}\n{name}\n".encode() + b"q\x00" + argument + b"q\x01" + b"h\x00h\x01\x85R" * count
    return b"\x80\x02](" + call + b"e."


NAMES = b"".join(f"cfairseq\nName{number}\n".encode() for number in range(2_000))
TEXT = b"X" + struct.pack("<I", 1_000_000) + b"a" * 1_000_000

PICKLES = {
    "a list that calls read": calls("collections OrderedDict", b"](" + b"K\x01K\x02\x86" * 20_000 + b"e"),
    "a text that calls read": calls("_codecs encode", TEXT),
    "names that calls look through": b"\x80\x02](" + NAMES + calls("fairseq Name", b")")[4:],
    "a list that grows in another": b"\x80\x02](](]q\x00"
    + b"h\x00" * 5_999
    + b"eq\x01h\x00("
    + b"K\x00" * 6_000
    + b"ectorch\nTensor\nh\x01\x85Re.",
    "memory of a number": b"\x80\x02cbuiltins\nbytearray\nJ" + struct.pack("<i", 2**31 - 1) + b"\x85R.",
    "deep lists": b"\x80\x02" + b"]" * 80_000 + b"a" * 79_999 + b".",
    "deep tuples": b"\x80\x02)" + b"\x85" * 300_000 + b".",
    "a deep key": b"\x80\x02})" + b"\x85" * 300_000 + b"Ns.",
    "no mark": b"\x80\x02t.",
    "takes too much": b"\x80\x02a.",
    "many instructions": b"\x80\x02" + b"N0" * 100_000 + b"N.",
    "many marks": b"\x80\x02" + b"N" * 60_000 + b"(t" * 60_000 + b".",
    "marks in marks": b"\x80\x02" + b"(" * 200_000 + b"(t" * 600 + b".",
    "a key that holds itself twice, and so on": b"\x80\x02})q\x00" + b"h\x00\x86q\x00" * 60 + b"Ns.",
    "a large key many times": b"\x80\x02}(" + b"K\x00" * 9_000 + b"tq\x000" + b"h\x00Ns" * 5_000 + b".",
}


@pytest.mark.parametrize("data", PICKLES.values(), ids=PICKLES)
def test_pickles(data, tmp_path):
    folder = write("fairseq", tmp_path / "run")
    (folder / "checkpoint_best.pt").write_bytes(archive(data))
    not_converted("fairseq", folder, tmp_path, r"checkpoint_best\.pt")


def set_in_itself():
    value = []
    value.append(value)
    return value


def deep(value, wrap, depth=5_000):
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "make", [set_in_itself, lambda: deep(0, lambda each: [each]), lambda: deep(0, lambda each: {"a": each})]
)
def test_settings_in_themselves(make, tmp_path):
    folder = write("fairseq", tmp_path / "run")
    content = torch.load(folder / "checkpoint_best.pt", weights_only=False)
    limit = sys.getrecursionlimit()
    content["cfg"]["task"]["x"] = make()
    sys.setrecursionlimit(100_000)
    try:
        torch.save(content, folder / "checkpoint_best.pt")
    finally:
        sys.setrecursionlimit(limit)
    not_converted("fairseq", folder, tmp_path, "RecursionError|nested")


def test_lists_in_lists_that_are_one_list(tmp_path):
    """Of a few bytes a level, and 2^60 values when each is unpacked."""
    folder = write("fairseq", tmp_path / "run")
    content = torch.load(folder / "checkpoint_best.pt", weights_only=False)
    value = ["x"]
    for _ in range(60):
        value = [value, value]
    content["cfg"]["task"]["x"] = value
    torch.save(content, folder / "checkpoint_best.pt")
    not_converted("fairseq", folder, tmp_path, "more than 200,000 values")


def test_settings_that_are_each_taken_twice(tmp_path):
    folder = write("fairseq", tmp_path / "run")
    content = torch.load(folder / "checkpoint_best.pt", weights_only=False)
    content["cfg"] |= {f"a{number}": [f"${{a{number + 1}}}"] * 2 for number in range(40)}
    torch.save(content, folder / "checkpoint_best.pt")
    not_converted("fairseq", folder, tmp_path, "taken from each other")


def test_a_pickle_that_inflates(tmp_path):
    folder = write("fairseq", tmp_path / "run")
    data = b"\x80\x02X" + struct.pack("<I", 300_000_000) + b"x" * 300_000_000 + b"."
    (folder / "checkpoint_best.pt").write_bytes(archive(data, compression=zipfile.ZIP_DEFLATED))
    del data
    not_converted("fairseq", folder, tmp_path, "inflates to")


def replaced_tensor(source, folder, tensor):
    """The first weight of a checkpoint as another tensor."""
    if source == "fairseq":
        content = torch.load(folder / "checkpoint_best.pt", weights_only=False)
        content["model"]["encoder.layers.0.fc1.weight"] = tensor
        torch.save(content, folder / "checkpoint_best.pt")
    else:
        content = torch.load(folder / "model.pt")
        content[next(name for name in content if "linear1.weight" in name)] = tensor
        torch.save(content, folder / "model.pt")


TENSORS = {
    "stride 0": lambda: torch.zeros(1).expand(2**20, 2**10),
    "sparse": lambda: torch.eye(24).to_sparse(),
    "compressed": lambda: torch.eye(24).to_sparse_csr(),
    "meta": lambda: torch.empty(2**20, 2**20, device="meta"),
    "float8": lambda: torch.zeros(24, 16).to(torch.float8_e4m3fn),
    "integers": lambda: torch.zeros(24, 16, dtype=torch.int64),
    "complex": lambda: torch.zeros(24, 16, dtype=torch.complex64),
    "of another shape": lambda: torch.zeros(24),
    "of no axes": lambda: torch.zeros(()),
    "empty": lambda: torch.zeros(0, 16),
    "not a tensor": lambda: "weights",
    "numbers that are not finite": lambda: torch.full((24, 16), float("nan")),
}


@pytest.mark.parametrize("source", ["fairseq", "torch_nn"])
@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS)
def test_tensors(source, make, tmp_path):
    folder = write(source, tmp_path / "run")
    replaced_tensor(source, folder, make())
    named = r"(fc1|linear1)\.weight|model\.pt holds no state dict|0-d tensor|encoder_ffn_dim=0: "
    not_converted(source, folder, tmp_path, named, lines=12)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors(tmp_path):
    folder = write("fairseq", tmp_path / "run")
    replaced_tensor("fairseq", folder, torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(4, 3)]))
    not_converted("fairseq", folder, tmp_path, "nested|cannot be read")


def test_many_names_of_one_tensor(tmp_path):
    folder = write("torch_nn", tmp_path / "run")
    content = torch.load(folder / "model.pt")
    whole = torch.zeros(2**18)
    torch.save({**content, **{f"x{number}": whole.view(2**9, 2**9) for number in range(1000)}}, folder / "model.pt")
    not_converted("torch_nn", folder, tmp_path, "the weights claim")


def test_float8_in_safetensors(tmp_path):
    folder = write("marianmt", tmp_path / "run")
    tensors = {name: value.detach().clone() for name, value in test_marianmt.build({}).state_dict().items()}
    tensors = {name: value for name, value in tensors.items() if "lm_head" not in name and "embed_tokens" not in name}
    tensors = {name: value for name, value in tensors.items() if "embed_positions" not in name}
    name = "model.encoder.layers.0.fc1.weight"
    save_file({**tensors, name: tensors[name].to(torch.float8_e5m2)}, folder / "model.safetensors")
    not_converted("marianmt", folder, tmp_path, "float8")


# ---------------------------------------------------------------------------------------------------------------- .npz


def npy(header, data=b""):
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


HEADERS = {
    "1 TB": "{'descr': '<f4', 'fortran_order': False, 'shape': (262144, 1048576), }",
    "negative": "{'descr': '<f4', 'fortran_order': False, 'shape': (-4, 16), }",
    "negative twice": "{'descr': '<f4', 'fortran_order': False, 'shape': (-4, -16), }",
    "beyond 64 bits": "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 10**30), }".replace("10**30", "9" * 30),
    "true": "{'descr': '<f4', 'fortran_order': False, 'shape': (True, 16), }",
    "objects": "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
    "no header": "{",
    "an expression": "{'descr': '<f4', 'fortran_order': False, 'shape': __import__('os'), }",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_headers_of_numpy(header, tmp_path):
    folder = write("marian", tmp_path / "run")
    with zipfile.ZipFile(folder / "model.npz", "a") as content:
        content.writestr("more.npy", npy(header, b"\0" * 64))
    not_converted("marian", folder, tmp_path, r"more in .*model\.npz is not an array|left over: more", lines=6)


def test_a_member_that_inflates(tmp_path):
    folder = write("marian", tmp_path / "run")
    with zipfile.ZipFile(folder / "model.npz", "a", zipfile.ZIP_DEFLATED) as content:
        content.writestr(
            "more.npy", npy("{'descr': '|i1', 'fortran_order': False, 'shape': (200000000,), }", b"\0" * 200000000)
        )
    not_converted("marian", folder, tmp_path, "inflates to")


def test_a_reference_that_claims_more_than_it_has(tmp_path):
    folder = write("marian", tmp_path / "run")
    with zipfile.ZipFile(tmp_path / "run" / "ref.npz", "w") as content:
        for name in ("src_ids", "src_mask", "tgt_in_ids", "tgt_mask", "logits"):
            content.writestr(f"{name}.npy", npy(HEADERS["1 TB"]))
    refused(
        lambda: convert("marian", folder / "model.npz", tmp_path / "out", reference=folder / "ref.npz"),
        folder,
        "is not a reference",
    )


# ------------------------------------------------------------------------------------------------------- tensor2tensor


def index_of(*entries):
    """The bytes of an index with these names and messages."""
    blocks, handles = b"", []
    for part in [list(entries)]:
        content = tensorflow_writer.block(part)
        handles.append((part[-1][0], varint(len(blocks)) + varint(len(content))))
        blocks += content + b"\0" + tensorflow_writer.checksum(content + b"\0")
    return closed(blocks, handles)


def closed(blocks, handles):
    """Blocks of names, and behind them what says where they are."""
    footers = []
    for part in ([], handles):
        content = tensorflow_writer.block(part)
        footers.append(varint(len(blocks)) + varint(len(content)))
        blocks += content + b"\0" + tensorflow_writer.checksum(content + b"\0")
    return blocks + b"".join(footers).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def entry(shape, size, shard=0, offset=0):
    shape = b"".join(message((2, message((1, length)))) for length in shape)
    return message((1, 1), (2, shape), (3, shard), (4, offset), (5, size)) + varint(6 << 3 | 5) + b"\0\0\0\0"


def one_block_many_times(count, size):
    """An index whose blocks are all the same one, without entries."""
    block = b"\0" * (size - 4) + struct.pack("<I", size // 4) + b"\0"
    return closed(block + tensorflow_writer.checksum(block), [(b"", varint(0) + varint(size))] * count)


HEADER = message((1, 1), (3, message((1, 1))))
INDEXES = {
    "2^33 data files": index_of((b"", message((1, 2**33)))),
    "a number of 3 MB": index_of((b"", b"\x08" + b"\xff" * 3_000_000 + b"\x01")),
    "a number of 20 MB": b"\xff" * 20_000_000,
    "a shape without bytes": index_of((b"", HEADER), (b"a", entry((2**20, 2**20), 0))),
    "a shape beyond 64 bits": index_of((b"", HEADER), (b"a", entry((2**62, 2**62), 64))),
    "a negative shape": index_of((b"", HEADER), (b"a", entry((2**64 - 4, 16), 64))),
    "a long name": index_of((b"", HEADER), (b"a" * 500_000, entry((1,), 4))),
    "one block many times": one_block_many_times(60_000, 600_000),
    "another data file": index_of((b"", HEADER), (b"a", entry((1,), 4, shard=7))),
    "too many names": index_of((b"", HEADER), *((b"%07d" % n, entry((), 4)) for n in range(60_000))),
}


@pytest.mark.parametrize("data", INDEXES.values(), ids=INDEXES)
def test_indexes_of_tensorflow(data, tmp_path):
    folder = write("tensor2tensor", tmp_path / "run")
    (folder / "model.ckpt-400.index").write_bytes(data)
    not_converted("tensor2tensor", folder, tmp_path, r"model\.ckpt-400\.index")


# ------------------------------------------------------------------------------------------------------- SentencePiece


def spm(*pieces, charsmap=b""):
    """A SentencePiece model of these pieces, unigram, with a table of normalization."""
    content = b"".join(message((1, piece)) for piece in pieces)
    return content + message((2, message((3, 1))), (3, message((2, charsmap))))


def piece(text, score=-1.0, kind=1):
    return message((1, text)) + varint(2 << 3 | 5) + struct.pack("<f", score) + message((3, kind))


PIECES = [piece(b"<unk>", 0.0, 2), piece(b"</s>", 0.0, 3), piece("▁a".encode()), piece(b"b")]


def charsmap(units, texts=b"a\0"):
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + texts


MODELS = {
    "a number of 5 MB": b"\x08" + b"\xff" * 5_000_000 + b"\x01",
    "a piece of 1 MB": spm(*PIECES, piece(b"a" * 2**20)),
    "a score that is not a number": spm(*PIECES, piece(b"c", float("nan"))),
    "an infinite score": spm(*PIECES, piece(b"c", float("-inf"))),
    "a table that leads nowhere": spm(*PIECES, charsmap=charsmap([0x7FFFFC00 | 97] * 256)),
    "a table that leads into no text": spm(*PIECES, charsmap=charsmap([0x100] * 256)),
    "a table within a character": spm(*PIECES, charsmap=charsmap([0x100] + [1] * 255, "aé\0".encode())),
    "a table that is cut off": spm(*PIECES, charsmap=struct.pack("<I", 2**31) + b"abc"),
    "a table of one byte": spm(*PIECES, charsmap=b"\x01"),
    "texts that are not UTF-8": spm(*PIECES, charsmap=charsmap([0] * 256, b"\xff\0")),
    "a piece that is not UTF-8": spm(*PIECES, piece(b"\xff")),
    "no pieces": spm(),
    "empty": b"",
}


@pytest.mark.parametrize("data", MODELS.values(), ids=MODELS)
def test_sentencepiece_models(data, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    test_marian.make(folder)
    for name in ("source", "target"):
        (folder / f"{name}.spm").write_bytes(data)
    (folder / "decoder.yml").write_text(yaml.safe_dump({"vocabs": ["source.spm", "target.spm"]}))
    not_converted("marian", folder, tmp_path, r"source\.spm")


def test_a_sentencepiece_model_of_random_bytes(tmp_path):
    generator = np.random.default_rng(0)
    whole = bytearray(spm(*PIECES, charsmap=charsmap([0] * 256)))
    path = tmp_path / "x.spm"
    path.write_bytes(whole)
    assert len(read_sentencepiece(path).pieces) == 4
    for _ in range(300):
        data = whole.copy()
        for place in generator.integers(len(data), size=3):
            data[place] = generator.integers(256)
        path.write_bytes(data)
        with contextlib.suppress(ConversionError):
            read_sentencepiece(path)


# ------------------------------------------------------------------------------------------------------------ the door


def test_brackets_in_texts_are_not_nesting():
    assert parse_json(json.dumps({"a": "[" * 500 + '\\"{'}), "x") == {"a": "[" * 500 + '\\"{'}
    assert parse_json(json.dumps([[1]] * 500), "x") == [[1]] * 500
    assert parse_yaml("a: '[[[[]]'\nb: [[1]]", "x") == {"a": "[[[[]]", "b": [[1]]}
    assert parse_json('"\\ud83d\\ude00"', "x") == "😀"


def test_a_file_without_an_end_is_not_read(tmp_path):
    for path in ("/dev/zero", "/dev/urandom"):
        if Path(path).exists():
            refused(lambda: read_bounded(path), tmp_path, "not a regular file")  # noqa: B023
    os.mkfifo(tmp_path / "fifo")
    refused(lambda: read_bounded(tmp_path / "fifo"), tmp_path, "not a regular file")


def test_a_number_in_yaml_is_short():
    """Hours, minutes and seconds "1:00:00" are one number, whose time grows with the square of its digits."""
    assert parse_yaml("a: 1:30:00", "x") == {"a": 5400}
    with within(SECONDS), pytest.raises(ValueError, match=r"^x has a number of 180,001 digits$"):
        parse_yaml("a: 1" + ":00" * 60_000, "x")
