"""
Print how far the package is from a call to what it is for: functions, files and calls of its own on the way.

    python scripts/measure_paths.py
    PYTHONPATH=../another-checkout python scripts/measure_paths.py

Each way runs once before it is counted, so that imports and what is kept are not, and ends with its first product,
step or answer where that is named. Frames are those of the package on the stack there.
"""

import argparse
import ast
import contextlib
import io
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import vanilla_transformer_hf
from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.common.command_line import run
from vanilla_transformer_hf_command import main as command


ROOT = Path(__file__).parents[1]
MODEL = ROOT / "model_cards" / "multi30k_tiny_en_de"
PACKAGE = f"{Path(vanilla_transformer_hf.__file__).parent}/"
SIZES = {"vocab_size": 99, "d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
TEXT = [f"one two {number}" for number in range(60)]


class Way:
    """Functions of the package that are called within `with`, in every thread, and its frames at an event."""

    def __init__(self, ends_with: str | None = None):
        self.ends_with, self.calls, self.functions, self.frames = ends_with, 0, set[tuple[str, str]](), 0
        self.is_counting = True

    def __enter__(self) -> "Way":
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _see(self, frame: Any, event: str, argument: Any) -> None:
        if not self.is_counting or self.frames:
            return
        if event == "call" and (name := _own(frame)):
            self.calls += 1
            self.functions.add(name)
        reached = getattr(argument, "__name__", "") if event == "c_call" else frame.f_code.co_qualname
        if reached == self.ends_with:
            while frame and frame.f_code.co_filename != __file__:  # below are those of this script's command
                self.frames += _own(frame) is not None
                frame = frame.f_back


def _own(frame: Any) -> tuple[str, str] | None:
    """File and name of a function of the package; None for others and for what is nested in one."""
    code = frame.f_code
    is_own = code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<")
    return (code.co_filename.removeprefix(PACKAGE), code.co_qualname) if is_own else None


def measure(run: Callable[[], Any], ends_with: str | None = None, first: Callable[[], Any] | None = None) -> Way:
    """Run twice, once before (or `first`), and count the second time."""
    for each in (first or run, None):
        nowhere = io.TextIOWrapper(io.BytesIO())
        with Way(ends_with) as way, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            (each or run)()
    return way


def model_ways() -> dict[str, Way]:
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**SIZES, **HEADS)).eval()
    source, target = torch.randint(4, 99, (2, 5)), torch.randint(4, 99, (2, 4))
    with torch.no_grad():
        return {
            "forward, to a product": measure(lambda: model(input_ids=source, decoder_input_ids=target), "linear"),
            "generate(), to a step of 4 beams": measure(
                lambda: model.generate(source, max_new_tokens=3, num_beams=4), "BeamSearch.step"
            ),
        }


def run_command(*arguments: object) -> None:
    """A command of the package in this process."""
    sys.argv = ["vanilla-transformer", *map(str, arguments)]
    try:
        command()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{sys.argv[1]} ended with {end.code}") from end


def command_ways(folder: Path) -> dict[str, Way]:
    for side in ("en", "de"):
        (folder / f"text.{side}").write_text("\n".join(TEXT), encoding="utf-8")
    settings = {
        **SIZES,
        **HEADS,
        "vocab_size": 270,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "max_steps": 1,
        "num_train_epochs": 1,
    }
    recipe = folder / "recipe.yaml"
    recipe.write_text("".join(f"{name}: {value}\n" for name, value in settings.items()), encoding="utf-8")
    text = [f"--{name}={folder}/text.{side}" for kind in ("train", "validation")
            for name, side in ((f"{kind}_source", "en"), (f"{kind}_target", "de"))]  # fmt: skip
    marian = ROOT / "tests" / "conversion" / "recorded" / "marian-1.12.42-pre"
    number = iter(range(100))

    def train() -> None:
        run_command("train", recipe, *text, "--output_dir", folder / f"run-{next(number)}", "--use_cpu", "true")

    def translate() -> None:
        sys.stdin = io.TextIOWrapper(io.BytesIO(b"Two dogs are running .\n"), encoding="utf-8")
        run_command("translate", MODEL)

    def convert() -> None:
        run_command("convert", "marian", marian, folder / f"marian-{next(number)}")

    return {
        "train, to the first step": measure(train, "Adam.step"),
        "translate, one line": measure(translate),
        "convert marian": measure(convert),
        "push --dry-run": measure(lambda: run_command("push", MODEL, "owner/name", "--dry-run")),
    }


def server_way() -> Way:
    from starlette.testclient import TestClient

    from vanilla_transformer_hf import Translator
    from vanilla_transformer_hf.serving.application import ServedModel, create_application
    from vanilla_transformer_hf.serving.batcher import Batcher

    with Way() as way:  # the threads of the server begin within
        way.is_counting = False
        served = ServedModel("en-de", Batcher(Translator.from_pretrained(MODEL)), "en", {"de": None})
        with TestClient(create_application([served])) as client:
            for way.is_counting in (False, True):
                client.post("/translate", json={"q": "two dogs ."}).raise_for_status()
            way.is_counting = False
    return way


def travelling() -> tuple[int, int]:
    """Files and lines of code that a saved folder of a plain model has."""
    with tempfile.TemporaryDirectory() as folder:
        VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**SIZES, **HEADS)).save_pretrained(folder)
        files = [path.read_text(encoding="utf-8") for path in Path(folder).rglob("*.py")]
    return len(files), sum(text.count("\n") for text in files)


def imported() -> list[str]:
    """Modules of the package that the file with the model imports."""
    tree = ast.parse(Path(PACKAGE, "model", "modeling_vanilla_transformer.py").read_text(encoding="utf-8"))
    return [f"{'.' * node.level}{node.module}" for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.level]  # fmt: skip


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"{'':34}frames  functions  outside model/  files  calls")
    with tempfile.TemporaryDirectory() as folder:
        ways = {**model_ways(), **command_ways(Path(folder)), "POST /translate": server_way()}
    for name, way in ways.items():
        outside = sum(not file.startswith("model/") for file, _ in way.functions)
        files = len({file for file, _ in way.functions})
        print(f"{name:34}{way.frames or '':6}  {len(way.functions):9,}  {outside:14,}  {files:5,}  {way.calls:5,}")
    print("modules of the package that the model's file imports:", *imported())
    files, lines = travelling()
    print(f"a saved folder of a plain model: {files} files of code, {lines:,} lines")


if __name__ == "__main__":
    run(main)
