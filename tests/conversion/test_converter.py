"""The flow that all sources share: nothing half done is left, nothing wrong is passed, and the folder is whole."""

import re
import signal
from pathlib import Path

import numpy as np
import pytest
import test_fairseq
import torch
from checkpoints import write
from huggingface_hub import ModelCard
from new_process import run_script
from travelling_code import CODE

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer
from vanilla_transformer_hf.common.checksums import verify_folder, write_checksums
from vanilla_transformer_hf.conversion import ConversionError, convert
from vanilla_transformer_hf.conversion import converter as flow
from vanilla_transformer_hf.conversion.sources.fairseq import Fairseq
from vanilla_transformer_hf.conversion.verification import try_tokenizer


ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of fairseq and a reference for it."""
    reference = test_fairseq.Reference(test_fairseq.ALL)
    return reference.write(tmp_path / "fairseq"), reference.write_reference(tmp_path / "ref.npz")


def test_the_folder_is_whole(checkpoint, tmp_path):
    folder, reference = checkpoint
    done = convert("fairseq", folder, tmp_path / "a" / "model", reference=reference)
    names = {path.name for path in (tmp_path / "a" / "model").iterdir()}
    assert names == {
        *("config.json", "generation_config.json", "model.safetensors", "README.md", "card_facts.json"),
        "SHA256SUMS",
        *("tokenizer.json", "tokenizer_config.json"),
        *CODE,
    }
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["model"]
    card = ModelCard.load(tmp_path / "a" / "model" / "README.md")
    assert card.data.language == ["en", "de"] and "fairseq" in card.data.tags
    assert "vanilla-transformer convert fairseq fairseq model --reference ref.npz" in card.text
    assert str(tmp_path) not in card.text, "folders of the machine that converted"
    assert f"{done.reference:.1e} |" in card.text and "11 target positions" in card.text
    assert "checkpoint_best.pt" in card.text


def test_the_generation_config_is_the_toolkits(checkpoint, tmp_path):
    convert("fairseq", checkpoint[0], tmp_path / "out")
    model = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "out")
    settings = model.generation_config
    assert (settings.num_beams, settings.length_penalty, settings.early_stopping) == (5, 1.0, True)
    assert settings.max_new_tokens == 30, "of 30 positions"
    batch = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")(["one two"], return_tensors="pt")
    ids = model.generate(**batch)[0].tolist()
    assert ids[0] == 2 and 1 not in ids


def test_a_reference_that_is_not_reproduced_is_refused(checkpoint, tmp_path):
    folder, path = checkpoint
    with np.load(path) as file:
        arrays = dict(file)
    for name, change, message in (
        ("logits", arrays["logits"] + 2e-5, r"logits differ by .*; 1e-05 is allowed"),
        ("logits", arrays["logits"].repeat(2, axis=-1), "has logits of 28 pieces, and the model has 14"),
        ("logits", arrays["logits"] * np.nan, r"logits differ by nan"),
        ("src_mask", arrays["src_mask"][:, :-1], "arrays that do not fit each other"),
        ("tgt_mask", arrays["tgt_mask"] & False, "arrays that do not fit each other"),
        ("src_ids", arrays["src_ids"] + 99, "src_ids: token id .* lies outside the vocabulary of 14 tokens"),
        ("src_ids", None, "is not a reference with src_ids"),
    ):
        changed = {**arrays, name: change}
        np.savez(path, **{key: array for key, array in changed.items() if array is not None})
        with pytest.raises(ValueError, match=message):
            convert("fairseq", folder, tmp_path / "out", reference=path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConversionError, match="is not a reference"):
        convert("fairseq", folder, tmp_path / "out", reference=path)
    assert {item.name for item in tmp_path.iterdir()} == {"fairseq", "ref.npz"}


@pytest.mark.parametrize(
    ("source", "message"),
    [("auto", "is not recognised by any source"), ("opennmt", "'opennmt' is not a source: expected one of auto, ")],
)
def test_a_source_that_is_not_known_is_refused(source, message, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConversionError, match=message):
        convert(source, tmp_path / "folder", tmp_path / "out")
    with pytest.raises(ConversionError, match="nowhere does not exist"):
        convert(source, tmp_path / "nowhere", tmp_path / "out")


@pytest.mark.parametrize(
    ("source", "file"),
    [
        *(("eole", name) for name in ("config.json", "vocab.json", "model.00.safetensors")),
        *(("joeynmt", name) for name in ("config.yaml", "trg_vocab.txt", "best.ckpt")),
        *(("tensor2tensor", name) for name in ("hparams.json", "vocab.test", "model.ckpt-400.data-00000-of-00002")),
        *(("marian", "target.vocab.yml"), ("fairseq", "dict.de.txt"), ("whisper", "model.safetensors")),
    ],
)
def test_a_missing_file_is_named(source, file, tmp_path):
    (write(source, tmp_path / "run") / file).unlink()
    named = {"model.00.safetensors": "model.*.safetensors", "vocab.test": "vocab.*"}.get(file, file)
    with pytest.raises(ConversionError, match=re.escape(named)):
        convert(source, tmp_path / "run", tmp_path / "out")


def test_what_is_there_is_not_overwritten(checkpoint, tmp_path):
    (tmp_path / "empty").mkdir()
    convert("fairseq", checkpoint[0], tmp_path / "empty")
    with pytest.raises(ValueError, match=r"empty exists already; name a new folder"):
        convert("fairseq", checkpoint[0], tmp_path / "empty")


@pytest.mark.parametrize("step", ["logits_of", "open_by", "write_card"])
def test_an_error_at_any_step_leaves_nothing(step, checkpoint, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(flow, step, fail)
    with pytest.raises(KeyboardInterrupt):
        convert("fairseq", checkpoint[0], tmp_path / "out")
    assert {item.name for item in tmp_path.iterdir()} == {"fairseq", "ref.npz"}


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_conversion_leaves_no_model_and_the_next_one_clears_up(sign, checkpoint, tmp_path):
    """Killed where it is most complete: all is written, and the folder lacks its name."""
    code = (
        "import os, sys\n"
        "from vanilla_transformer_hf.conversion import convert\n"
        "from vanilla_transformer_hf.common import files\n"
        f"files.os.replace = lambda *names: os.kill(os.getpid(), {int(sign)})\n"
        "convert('fairseq', sys.argv[1], sys.argv[2])\n"
    )
    (tmp_path / "killed").mkdir()
    output = tmp_path / "killed" / "out"
    (tmp_path / "convert.py").write_text(code)
    ended = run_script(tmp_path / "convert.py", str(checkpoint[0]), str(output))
    assert ended.returncode == (-9 if sign == signal.SIGKILL else 143), ended.stderr
    left = [".out.unfinished", ".out.unfinished.lock"] if sign == signal.SIGKILL else []
    assert sorted(path.name for path in output.parent.iterdir()) == left
    convert("fairseq", checkpoint[0], output)
    assert [path.name for path in output.parent.iterdir()] == ["out"]


def test_the_command(checkpoint, tmp_path, script):
    folder, reference = checkpoint
    arguments = ["convert.py", "auto", folder, tmp_path / "out", "--reference", reference]
    code, out, err = script(*arguments)
    assert code == 0 and "(11 target positions)" in out
    assert "tensors: 100%" in err, "a progress bar"
    assert script(*arguments) == (2, "", f"convert.py: {tmp_path / 'out'} exists already; name a new folder\n")


def test_trust_runs_what_a_file_contains_and_nothing_else_does(checkpoint, tmp_path):
    class Touch:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    folder, _ = checkpoint
    content = torch.load(folder / "checkpoint_best.pt", weights_only=False)
    torch.save({**content, "extra_state": Touch()}, folder / "checkpoint_best.pt")
    with pytest.raises(ConversionError, match=r"refers to pathlib\.Path\.touch|refers to builtins\.getattr") as caught:
        convert("fairseq", folder, tmp_path / "out")
    assert "--i-trust-this-file" in str(caught.value) and not (tmp_path / "ran").exists()
    assert convert("fairseq", folder, tmp_path / "out", trust=True).reopened == 0
    assert (tmp_path / "ran").exists()
    assert "--i-trust-this-file" in (tmp_path / "out" / "README.md").read_text()


def test_the_weights_of_a_pt_file_are_never_copied(checkpoint):
    """They stay in the file until they are written, so that memory stays near the size of the checkpoint."""
    found = Fairseq.read(checkpoint[0])
    model = flow.assemble(found, found.to_config())
    if not (maps := Path("/proc/self/maps")).is_file():
        pytest.skip("only Linux tells where memory comes from")
    lines = [line.split() for line in maps.read_text().splitlines() if line.endswith(str(found.files[0]))]
    ranges = [[int(address, 16) for address in line[0].split("-")] for line in lines]
    for name, parameter in model.named_parameters():
        assert any(start <= parameter.data_ptr() < end for start, end in ranges), name


def test_checksums_beside_a_checkpoint_are_checked_and_those_of_the_folder_are_right(checkpoint, tmp_path):
    folder, _ = checkpoint
    write_checksums(folder)
    convert("fairseq", folder, tmp_path / "out")
    found = verify_folder(tmp_path / "out")
    assert "model.safetensors" in found.right and not found.wrong and not found.unknown
    (folder / "dict.en.txt").write_text("one 2\n")
    with pytest.raises(ConversionError, match=r"dict\.en\.txt do not fit SHA256SUMS"):
        convert("fairseq", folder, tmp_path / "other")


def test_a_tokenizer_that_panics_is_refused():
    class Panic(BaseException):
        pass

    Panic.__name__ = "PanicException"

    class Tokenizer:
        def __call__(self, text=None, text_target=None):
            raise Panic("index out of bounds")

    with pytest.raises(ConversionError, match=r"the tokenizer panics on '': index out of bounds"):
        try_tokenizer(Tokenizer())
