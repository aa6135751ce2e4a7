"""The copy for CTranslate2 in the cache: one export for all who need it."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from huggingface_hub import constants

from vanilla_transformer_hf.commands.main import main
from vanilla_transformer_hf.common.files import lock_path, new_folder
from vanilla_transformer_hf.export import export as exporting
from vanilla_transformer_hf.translation.kept_copy import kept_copy
from vanilla_transformer_hf.translation.streams import command
from vanilla_transformer_hf.translation.streams.resumable_output import ResumableOutput
from vanilla_transformer_hf.translation.streams.work import LineWork


def test_who_finds_another_export_of_the_same_copy_waits_for_it(tmp_path, monkeypatch):
    """The second one ended with "is being written by another process"."""
    model, second_waits, exports = tmp_path / "model", threading.Event(), []
    model.mkdir()
    (model / "config.json").write_text("{}")
    callers = []

    def lock(path, wait):
        callers.append(path)
        if len(callers) == 2:
            second_waits.set()
        return lock_path(path, wait=wait)

    def export(engine, folder, copy, **options):
        assert second_waits.wait(60)
        with new_folder(copy) as unfinished:
            (unfinished / "model.bin").write_bytes(bytes(99))
        exports.append(copy)

    module = sys.modules[kept_copy.__module__]
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "assets"))
    monkeypatch.setattr(module, "lock_path", lock)
    monkeypatch.setattr(exporting, "export_for", export)
    with ThreadPoolExecutor(2) as pool:
        copies = [each.result() for each in [pool.submit(kept_copy, model, None) for _ in range(2)]]
    assert copies == [*exports, *exports] and copies[0].is_dir()


def flip(copy):
    (copy / "model.bin").write_bytes(bytes(98) + b"x")


def halve(copy):
    (copy / "model.bin").write_bytes(bytes(50))


def no_copy(copy):
    shutil.rmtree(copy)
    copy.write_bytes(b"")


DAMAGES = {
    "flipped bits": flip,
    "half a file": halve,
    "without a file": lambda copy: (copy / "model.bin").unlink(),
    "without checksums": lambda copy: (copy / "SHA256SUMS").unlink(),
    "with empty checksums": lambda copy: (copy / "SHA256SUMS").write_bytes(b""),
    "with damaged checksums": lambda copy: (copy / "SHA256SUMS").write_bytes(b"\xff"),
    "emptied": lambda copy: [file.unlink() for file in copy.iterdir()],
    "a file in its place": no_copy,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_copy_is_made_again(damage, tmp_path, monkeypatch, caplog):
    """Flipped bits gave other translations without a message."""
    model, exports = tmp_path / "model", []
    model.mkdir()
    (model / "config.json").write_text("{}")

    def export(engine, folder, copy, **options):
        with new_folder(copy) as unfinished:
            (unfinished / "model.bin").write_bytes(bytes(99))
        exports.append(copy)

    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "assets"))
    monkeypatch.setattr(exporting, "export_for", export)
    copy = kept_copy(model, None)
    damage(copy)
    assert kept_copy(model, None) == copy == kept_copy(model, None)
    assert len(exports) == 2 and (copy / "model.bin").read_bytes() == bytes(99)
    assert "is damaged, and made again" in caplog.text


# What the copy alone translates as the model with it did.
TEXT = "one two\n\n  three!  \ntwo one three two one one two\n42\none. Two three. one\nthree two\n"
BY_COPY: list[list[str]] = [
    [],
    ["--num_beams", "3"],
    ["--num_beams", "3", "--length_penalty", "0.5", "--no_repeat_ngram_size", "1"],
    ["--max_new_tokens", "2", "--repetition_penalty", "1.5"],
    ["--without_letters", "translate", "--split_sentences", "always", "--batch_size", "2"],
    ["--max_source_length", "4", "--too_long", "truncate", "--window", "3"],
    ["--max_source_length", "4", "--max_extra_tokens", "1", "--threads", "1", "--batch_tokens", "9"],
    ["--device", "cpu", "--quantization", "int8"],
]
COMMAND = """
import json, sys
import vanilla_transformer_hf_command
vanilla_transformer_hf_command.has_started = True
from vanilla_transformer_hf.commands.main import main

for argv in json.loads(sys.argv[1]):
    main(argv)
print(json.dumps([name for name in ("torch", "transformers") if name in sys.modules]))
"""


@pytest.mark.slow
def test_a_command_with_a_kept_copy_needs_neither_torch_nor_transformers(counting_folder, tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2", reason="pip install '.[export]'")
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "assets"))
    monkeypatch.chdir(tmp_path)
    Path("text").write_text(TEXT)

    def outputs(run, options):
        given = ["translate", str(counting_folder), "--engine", "ctranslate2", "--input", "text", "--output"]
        run([[*given, f"{name}", *each] for name, each in enumerate(options)])
        return [Path(f"{name}").read_bytes() for name in range(len(options))]

    def here(calls):
        for argv in calls:
            main(argv)

    def elsewhere(calls):
        environment = {**os.environ, "HF_ASSETS_CACHE": str(tmp_path / "assets")}
        arguments = [sys.executable, "-c", COMMAND, json.dumps(calls)]
        imported.append(json.loads(subprocess.run(arguments, env=environment, check=True, capture_output=True).stdout))

    imported = list[list[str]]()
    with monkeypatch.context() as patch:
        patch.setattr(command, "copy_for", lambda *_: None)
        expected = outputs(here, BY_COPY)
    assert outputs(elsewhere, BY_COPY) == expected and len({*expected}) > 4
    assert outputs(elsewhere, [["--format", "tsv"]]) and imported == [[], ["torch", "transformers"]]


def test_who_needs_the_model_does_not_get_the_copy_alone():
    given = argparse.Namespace(device=None, dtype="auto", matmul="auto")
    assert command.copy_for(given, LineWork("translate", "jsonl")) is None
    for name, value in {"device": "cuda", "ensemble": ["other"]}.items():
        assert command.copy_for(argparse.Namespace(**{**vars(given), name: value}), LineWork("translate")) is None
    assert command.copy_for(given, LineWork("translate", options={"too_long": "whole"})) is None
    for name, value in {"dtype": "bfloat16", "matmul": "onednn"}.items():
        with pytest.raises(ValueError, match=f"--{name} {value} has no effect with --engine ctranslate2: set its --q"):
            command.copy_for(argparse.Namespace(**{**vars(given), name: value}), LineWork("translate"))


@pytest.mark.slow
def test_a_run_by_the_copy_continues_with_other_processes_and_threads(counting_folder, tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2", reason="pip install '.[export]'")
    monkeypatch.setenv("HF_ASSETS_CACHE", str(tmp_path / "assets"))  # of the processes
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "assets"))
    monkeypatch.chdir(tmp_path)
    Path("text").write_text(TEXT)
    given = ["translate", str(counting_folder), "--engine", "ctranslate2", "--input", "text"]
    main([*given, "--output", "whole"])
    write = ResumableOutput.write

    def killed(*arguments):
        write(*arguments)
        raise OSError("killed")

    for name, numbers in {"threads": ["--threads", "auto"], "processes": ["--processes", "2"]}.items():
        with monkeypatch.context() as patch:
            patch.setattr(ResumableOutput, "write", killed)
            with pytest.raises(SystemExit):
                main([*given, "--output", name, "--window", "4"])
        main([*given, "--output", name, "--window", "4", *numbers])
        assert Path(name).read_bytes() == Path("whole").read_bytes()
