"""A small checkpoint of every source, to be damaged."""

from pathlib import Path

import test_annotated
import test_bert
import test_eole
import test_fairseq
import test_fsmt
import test_gpt2
import test_joeynmt
import test_marian
import test_marianmt
import test_opennmt_py
import test_speech_to_text
import test_tensor2tensor
import test_torch_nn
import test_whisper


def _fairseq(folder):
    test_fairseq.Reference({}).write(folder)


def _joeynmt(folder):
    toy, model, _ = test_joeynmt.make()
    test_joeynmt.write(folder, toy, model)


def _torch_nn(folder):
    settings = {**test_torch_nn.USUAL, "nhead": 4, "source_bos": True, "source_eos": True}
    test_torch_nn.write(folder, test_torch_nn.Tutorial().state_dict(), **settings)


def _annotated(folder):
    toy, settings, _ = test_annotated.make()
    usual = {**test_annotated.USUAL, "positions": "sinusoidal", "source_bos": True, "source_eos": True}
    test_annotated.write(folder, toy.tensors, {**usual, **settings})


WRITERS = {
    "eole": lambda folder: test_eole.write(folder, *test_eole.make()),
    "fairseq": _fairseq,
    "marian": test_marian.make,
    "marianmt": lambda folder: test_marianmt.save(test_marianmt.build({}), folder, {}),
    "fsmt": lambda folder: test_fsmt.build({}).save_pretrained(folder),
    "bert": test_bert.write,
    "gpt2": test_gpt2.write,
    "joeynmt": _joeynmt,
    "opennmt_py": lambda folder: test_opennmt_py.write(folder, *test_opennmt_py.make()),
    "tensor2tensor": test_tensor2tensor.make,
    "torch_nn": _torch_nn,
    "annotated": _annotated,
    "whisper": test_whisper.write,
    "speech_to_text": test_speech_to_text.write,
}


def write(source: str, folder: Path) -> Path:
    """A checkpoint of `source` in a new folder, which converts."""
    folder.mkdir()
    WRITERS[source](folder)
    return folder
