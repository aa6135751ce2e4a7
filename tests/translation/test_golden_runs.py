"""
What translate, score and align write with each option, and what the explorer answers, of the shipped model, as
recorded in `golden_runs.json`. A change that means to change none of it leaves that file as it is;
`python tests/translation/test_golden_runs.py` prints what it is now.

Words and places are compared exactly. Numbers with a point differ in their last digits between CPUs: they are compared
with a tolerance.
"""

import contextlib
import hashlib
import io
import json
import re
import tempfile
from pathlib import Path

import pytest
import torch

from vanilla_transformer_hf.commands.main import main
from vanilla_transformer_hf.explorer.explorer import QUESTIONS, Explorer


ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "model_cards" / "multi30k_raw_en_de"
RECORD = Path(__file__).with_name("golden_runs.json")
NUMBER = re.compile(r"-?\d+(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)")

CAPTION = "A brown dog is running through the snow."
SOURCE = [
    *(CAPTION, "Two men are playing guitar.", "", "***", "  A girl in a red dress  "),
    "A man sits on a bench. A woman reads a book! Is it cold? " + "Children play with a ball in the park. " * 6,
]
TARGET = [
    *("Ein brauner Hund rennt durch den Schnee.", "Zwei Männer spielen Gitarre.", "", "***", "Ein Mädchen in Rot"),
    "Ein Mann sitzt auf einer Bank. Eine Frau liest.",
]
ROWS = {
    "translate": {
        "plain": [],
        "greedy": ["--num_beams", "1"],
        "jsonl": ["--format", "jsonl"],
        "tsv": ["--format", "tsv", "--n_best", "2"],
        "html": ["--format", "html"],
        "alignment": ["--alignment"],
        "truncate": ["--too_long", "truncate", "--max_source_length", "12"],
        "split": ["--too_long", "split", "--max_source_length", "12"],
        "never": ["--split_sentences", "never"],
        "always": ["--split_sentences", "always"],
        "small batches": ["--batch_size", "2", "--window", "3", "--batch_tokens", "40"],
        "power": ["--num_beams", "3", "--length_penalty", "0.2", "--length_penalty_type", "power"],
        "coverage": ["--num_beams", "3", "--coverage_penalty", "0.3"],
        "short": ["--max_new_tokens", "4"],
        "extra": ["--max_extra_tokens", "2"],
        "no repeats": ["--no_repeat_ngram_size", "2", "--repetition_penalty", "1.2"],
        "groups": ["--num_beams", "4", "--num_beam_groups", "2", "--diversity_penalty", "0.5", "--n_best", "4"],
        "ensemble": ["--ensemble", str(MODEL)],
        "marked": ["--without_letters", "mark", "--format", "jsonl"],
        "translated": ["--without_letters", "translate"],
    },
    "score": {
        "plain": [],
        "jsonl": ["--format", "jsonl"],
        "tsv": ["--format", "tsv"],
        "truncate": ["--too_long", "truncate", "--max_source_length", "12"],
        "never": ["--split_sentences", "never"],
    },
    "align": {"plain": [], "jsonl": ["--format", "jsonl"], "layer": ["--layer", "1"]},
}
# Question -> fields; those of a pair are added.
QUESTIONS_ASKED = {
    "models": {},
    "translate": {"num_beams": 2, "alternatives": 2},
    "score": {"target": TARGET[0], "alternatives": 1},
    "attention": {"part": "decoder", "layer": 1},
    "grid": {"part": "encoder", "size": 4},
    "mixing": {"part": "encoder"},
    "head": {"part": "cross", "layer": 1, "head": 2},
    "positions": {"stack": "encoder", "length": 4},
    "walk": {"best": 1},
    "tensor": {"box": "encoder.0.fc2"},
    "patch": {"other": "Two men are running through the snow."},
    "patch_map": {"other": "Two men are running through the snow."},
    "attributions": {"piece": 1},
    "ranks": {},
    "neurons": {"layer": 0},
}
FAST = {("translate", "jsonl"), ("translate", "split"), ("score", "tsv"), ("align", "plain"), ("explorer", "walk")}
NOT_ASKED = {"file", "source", "diagonality"}  # of models that read recordings and images
NO_PAIR = {"models", "translate", "score", "positions"}


def written(command: str, row: str) -> tuple[str, list[float]]:
    """The digest of what a command writes without its numbers with a point, and these."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sources = SOURCE if command == "translate" else [*SOURCE[:-1], SOURCE[-1][:44]]  # that go through at once
        count = 1 if command == "align" else len(SOURCE)  # an empty line has no words
        for name, lines in (("source", sources), ("target", TARGET)):
            (folder / name).write_text("".join(f"{line}\n" for line in lines[:count]), encoding="utf-8")
        given = [str(folder / "source"), *([] if command == "translate" else [str(folder / "target")])]
        given[:0] = ["--input"] if command == "translate" else []
        argv = [command, str(MODEL), *given, *ROWS[command][row], "--output", str(folder / "out"), "--device", "cpu"]
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                main([*argv, "--matmul", "default"])
            except SystemExit as error:
                raise RuntimeError(f"{command} {row}: {said.getvalue()}") from error
        return as_record((folder / "out").read_text(encoding="utf-8"))


def as_record(text: str) -> tuple[str, list[float]]:
    numbers = [float(each) for each in NUMBER.findall(text)]
    digest = hashlib.sha256(NUMBER.sub("#", text).encode()).hexdigest()[:16]
    return digest, numbers if len(numbers) <= 12 else [sum(numbers), min(numbers), max(numbers)]


def answered(explorer: Explorer, question: str) -> tuple[str, list[float]]:
    """What the explorer answers, tensors by their shapes and sums."""
    fields = dict(QUESTIONS_ASKED[question])
    if question != "models":
        fields["text"] = CAPTION
    if question not in NO_PAIR:
        fields["target_ids"] = explorer.answer("translate", {"text": CAPTION})["hypotheses"][0]["ids"]

    def plain(value):
        if isinstance(value, dict) and value.keys() == {"shape", "data"}:
            return [value["shape"], float(torch.nan_to_num(tensor_of(value), neginf=-1.0).double().sum())]
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items()}
        return [plain(each) for each in value] if isinstance(value, list) else value

    answer = plain(explorer.answer(question, fields))
    if question == "models":
        (answer,) = answer
        del answer["config"]  # grows with each release
    return as_record(json.dumps(answer))


def tensor_of(value):
    from vanilla_transformer_hf.explorer.results import from_json

    return from_json(value).clamp(min=-1e9)  # what a mask adds


def close(found: tuple[str, list[float]], expected: list) -> None:
    assert found[0] == expected[0]
    assert found[1] == pytest.approx(expected[1], rel=2e-3, abs=2e-3)


def rows_of(tables):
    """The fast ones, and the others with their marker."""
    pairs = [(kind, row) for kind, rows in tables.items() for row in rows]
    return [pytest.param(*pair, marks=() if pair in FAST else pytest.mark.slow) for pair in pairs]


@pytest.mark.parametrize(("command", "row"), rows_of(ROWS))
def test_commands_write_what_they_wrote(command, row):
    close(written(command, row), json.loads(RECORD.read_text(encoding="utf-8"))[command][row])


@pytest.mark.parametrize(("kind", "question"), rows_of({"explorer": QUESTIONS_ASKED}))
def test_the_explorer_answers_what_it_answered(kind, question):
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))[kind][question]
    close(answered(Explorer.open([str(MODEL)]), question), recorded)


def test_all_are_recorded():
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    assert {command: list(rows) for command, rows in recorded.items() if command != "explorer"} == {
        command: list(rows) for command, rows in ROWS.items()
    }
    assert list(recorded["explorer"]) == list(QUESTIONS_ASKED)
    assert {*QUESTIONS_ASKED} | NOT_ASKED == {*QUESTIONS} | {"models"}


if __name__ == "__main__":
    found = {command: {row: written(command, row) for row in rows} for command, rows in ROWS.items()}
    explorer = Explorer.open([str(MODEL)])
    found["explorer"] = {question: answered(explorer, question) for question in QUESTIONS_ASKED}
    kinds = []
    for kind, rows in found.items():
        lines = ",\n".join(f"    {json.dumps(row)}: {json.dumps(one)}" for row, one in rows.items())
        kinds.append(f"  {json.dumps(kind)}: {{\n{lines}\n  }}")
    print("{\n" + ",\n".join(kinds) + "\n}")
