"""docs/troubleshooting.md: its headings are what the package, torch and transformers print."""

import ast
import re
import subprocess
import sys
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from hub_server import ROOT
from transformers import TrainerControl, TrainerState

from vanilla_transformer_hf.commands.main import main
from vanilla_transformer_hf.training.trainer.progress import ZeroScoreWarning


TEXT = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^### (.+)$", TEXT, re.MULTILINE)
# What others print where a test cannot be: a GPU, a shell whose command was ended, the shell of Windows.
ELSEWHERE = {
    "CUDA out of memory. Tried to allocate …",
    "Killed",
    "'make' is not recognized as an internal or external command",
}
# What a user sees that is no error.
SEEN = {
    *("BLEU 0.00", "It repeats a phrase without end", "Translations are empty, too short or cut off"),
    *("It translates one sentence of several", "Hallucination: it invents words", "Training is slow"),
}
# Headings that have a number or a name of the user's where the code has a variable.
AS_WRITTEN = {
    "the loss is nan at step …": "the loss is … at step …",
    "… tokens are seen fewer than 5 times in the training text, too few to learn them": "tokens are seen fewer than … "
    "times in the training text, too few to learn them",
    "the run makes … updates of the weights, which is too few to learn anything": "which is too few to learn anything",
}


def zero_score(folder):
    state = TrainerState(log_history=[{"step": step, "eval_bleu": 0.0} for step in (1, 2)])
    arguments = SimpleNamespace(metric_for_best_model="bleu", greater_is_better=True)
    ZeroScoreWarning().on_train_end(arguments, state, TrainerControl())


def without_cuda(folder):
    if torch.version.cuda:
        pytest.skip("this torch has CUDA")
    torch.zeros(1, device="cuda")


def train(*arguments):
    return lambda folder: main(["train", *arguments, "--output_dir", str(folder / "out")])


def foreign_encoding(folder):
    (folder / "old.txt").write_bytes("caf\xe9\n".encode("latin-1"))
    main(["translate", str(ROOT / "model_cards" / "multi30k_raw_en_de"), "--input", str(folder / "old.txt")])


# Heading -> what prints it.
PROVOKED = {
    "DefaultCPUAllocator: can't allocate memory: you tried to allocate … bytes": lambda folder: torch.empty(
        2**60, dtype=torch.uint8
    ),
    "Warning: … was 0 at all … evaluations, so it tells nothing about the checkpoints": zero_score,
    "Torch not compiled with CUDA enabled": without_cuda,
    "has no effect: CPUs do not support it; use bf16": train("quickstart", "--fp16", "true", "--use_cpu", "true"),
    "is neither a file nor the name of a recipe": train("quikstart"),
    "unknown field …; the nearest name is …": train("quickstart", "--learning_rat", "1"),
    "needs validation_source, the text to evaluate on; name one or set eval_strategy to no": train(
        "low_resource", "--train_source", "a.tsv"
    ),
    "no such file": train("quickstart", "--train_source", "a.en"),
    "a batch of … tokens has no room for a sentence of …": train("quickstart", "--tokens_per_step", "32"),
    "not valid UTF-8": foreign_encoding,
}


@cache
def texts_of_the_package() -> list[str]:
    """Every string of the code; of f-strings, variables are "…"."""
    found = []
    for path in (ROOT / "vanilla_transformer_hf").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def pattern_of(heading: str) -> re.Pattern[str]:
    return re.compile(re.escape(heading).replace("…", ".*"), re.DOTALL)


def test_every_heading_is_of_one_kind():
    assert len(HEADINGS) == len(set(HEADINGS)) > 25
    assert ELSEWHERE | SEEN | AS_WRITTEN.keys() | PROVOKED.keys() <= {*HEADINGS}


@pytest.mark.parametrize("heading", PROVOKED)
def test_it_is_what_is_printed(heading, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = []
    try:
        PROVOKED[heading](tmp_path)
    except (Exception, SystemExit) as error:
        said.append(str(error))
    printed = capsys.readouterr()
    assert pattern_of(heading).search("\n".join([*said, printed.out, printed.err]))


CODE = "contains custom code which must be executed to correctly load the model"


@pytest.mark.parametrize("heading", [each for each in HEADINGS if each not in {*PROVOKED, *ELSEWHERE, *SEEN, CODE}])
def test_it_is_in_the_code(heading):
    pattern = pattern_of(AS_WRITTEN.get(heading, heading))
    assert any(pattern.search(text) for text in texts_of_the_package())


@pytest.mark.slow
def test_transformers_alone_asks_for_the_code_of_a_folder(tmp_path):
    folder = ROOT / "model_cards" / "multi30k_raw_en_de"
    code = (
        f"from transformers import AutoConfig\nAutoConfig.from_pretrained({str(folder)!r}, trust_remote_code=False)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert CODE in HEADINGS and CODE in done.stderr
