"""`python -m benchmarks low_data`: trainings of several systems, which continue."""

import argparse
import json
import math
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks import low_data
from benchmarks.__main__ import main
from vanilla_transformer_hf.commands.train import RECIPES


PAIRS = [(f"a dog has {n} more legs", f"ein Hund hat {n} Beine mehr") for n in range(40)]


@pytest.fixture
def given(tmp_path):
    """The arguments that name the text, and the folder of the trainings."""
    names = []
    for role, pairs in (("train", PAIRS), ("validation", PAIRS[:3]), ("test", PAIRS[3:5])):
        names.append(f"--{role}")
        for i, lang in enumerate(("en", "de")):
            path = tmp_path / f"{role}.{lang}"
            path.write_text("".join(f"{pair[i]}\n" for pair in pairs), encoding="utf-8")
            names.append(str(path))
    return ["low_data", *names, "--output", str(tmp_path / "out")]


def parsed(given, *more):
    parser = argparse.ArgumentParser()
    low_data.add_arguments(parser)
    return parser.parse_args([*given[1:], *more])


def row_of(system, **more):
    return {"pairs": 30, "system": system, "seed": 1, "bf16": False, "most_updates": 60, "evaluate_every": 100, **more}


def test_smaller_texts_are_the_beginning_of_larger_ones(given, tmp_path):
    text = low_data.write_text(parsed(given, "--sizes", "10", "30"))
    for side, i in (("source", 0), ("target", 1)):
        small, large = (
            (tmp_path / "out" / text[size]["train"][side]).read_text().split("\n") for size in ("10", "30")
        )
        assert small[:10] == large[:10] and len(large) == 31
        assert large[:5] != [pair[i] for pair in PAIRS[:5]]
    assert text["10"]["test"] == text["30"]["test"]
    with pytest.raises(ValueError, match="--sizes 41: the training text has 40 pairs"):
        low_data.write_text(parsed(given, "--sizes", "41"))


def test_peers_have_the_sizes_of_the_recipe(given):
    text = low_data.write_text(parsed(given, "--sizes", "30"))["30"]
    whole = yaml.safe_load(RECIPES["low_resource"].read_text(encoding="utf-8"))
    ours = whole | whole["by_pairs"][10000]
    assert low_data.recipe(20000)["encoder_layers"] == whole["by_pairs"][29000]["encoder_layers"]
    marian = low_data.marianmt_settings(row_of("marianmt", learning_rate=1e-3))["sizes"]
    assert {name: ours[name] for name in marian} == marian and len(marian) == 9
    assert low_data.marianmt_settings(row_of("marianmt", learning_rate=1e-3))["learning_rate"] == 1e-3
    found = low_data.joeynmt_settings(row_of("joeynmt"), text, ["en", "de"])
    for side in ("encoder", "decoder"):
        stack = found["config"]["model"][side]
        names = ("num_layers", "num_heads", "hidden_size", "ff_size", "dropout", "layer_norm")
        assert [stack[name] for name in names] == [
            *(ours[f"{side}_{name}"] for name in ("layers", "attention_heads")),
            *(ours[name] for name in ("d_model", f"{side}_ffn_dim", "dropout", f"{side}_norm_position")),
        ]


def test_r_drop_is_the_recipes_or_none(given, tmp_path):
    text, langs = low_data.write_text(parsed(given, "--sizes", "30"))["30"], ["en", "de"]
    whole, plain = (low_data.our_command(row_of(system), tmp_path, text, langs) for system in low_data.OURS)
    place = plain.index("--r_drop")
    assert plain[place + 1] == "0" and whole == plain[:place] + plain[place + 2 :]


@pytest.mark.parametrize(("system", "validations"), [("joeynmt", 12), ("joeynmt_own", 24)])
def test_joeynmt_stops_after_the_validations_that_are_told(given, system, validations):
    text = low_data.write_text(parsed(given, "--sizes", "30"))["30"]
    config = low_data.joeynmt_settings(row_of(system), text, ["en", "de"])["config"]
    training = config["training"]
    assert "sample_dev_subset" not in config["data"]  # JoeyNMT draws only from more sentences
    Path(text["validation"]["target"]).write_text("ein Hund\n" * 501)
    data = low_data.joeynmt_settings(row_of(system), text, ["en", "de"])["config"]["data"]
    assert data["sample_dev_subset"] == low_data.recipe(30)["eval_sample"] == 500
    falls = math.log(training["learning_rate_min"] / training["learning_rate"], training["decrease_factor"])
    assert math.ceil(falls) * (training["patience"] + 1) == validations
    assert training["validation_freq"] % training["logging_freq"] == 0


def test_cpu_seconds_of_stopped_trainings_are_added(tmp_path):
    command = [sys.executable, "-S", "-c", "import time\nwhile time.process_time() < 0.3: pass"]
    first = low_data.run_counted(command, tmp_path)
    second = low_data.run_counted(command, tmp_path)
    assert first["cpu_seconds"] >= 0.3 and first["cpu_seconds"] + 0.3 <= second["cpu_seconds"]
    assert [first["starts"], second["starts"]] == [1, 2]
    with pytest.raises(ChildProcessError, match=r"ended with code 3:\nno text"):
        low_data.run_counted([sys.executable, "-S", "-c", "print('no text'); raise SystemExit(3)"], tmp_path)
    assert json.loads((tmp_path / "used.json").read_text())["starts"] == 3


def test_finished_trainings_are_kept_and_drawn(given, tmp_path, monkeypatch, capsys):
    begun = []

    def command_of(row, folder, text, arguments):
        begun.append((row["pairs"], row["seed"]))
        # Translations are the references, but for the smaller text.
        lines = "'ein Hund\\n' * 3" if row["pairs"] == 10 else "open(sys.argv[2 + i]).read()"
        code = f"""
import sys
for i, (role, lines) in enumerate((("validation", 3), ("test", 2))):
    given = {lines}
    open(sys.argv[1] + "/" + role + ".txt", "w").write("".join(given.splitlines(True)[:lines]))
print('{{"updates": 7}}')"""
        references = [text[role]["target"] for role in ("validation", "test")]
        return [sys.executable, "-S", "-c", code, str(folder), *references]

    monkeypatch.setattr(low_data, "command_of", command_of)
    monkeypatch.setattr(low_data.signal, "signal", lambda *_: None)
    picture = tmp_path / "curve.png"
    asked = [*given, "--systems", "marianmt", "--sizes", "10", "30", "--seeds", "1", "2", "--picture", str(picture)]
    main("benchmarks", asked)
    assert begun == [(10, 1), (10, 2), (30, 1), (30, 2)]
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1].startswith("| 30 | marianmt | 2 | 100.00 / 100.00 | 100.00 / 100.00 | 7 | 0 | ")
    assert picture.read_bytes().startswith(b"\x89PNG")
    main("benchmarks", asked)
    assert len(begun) == 4 and capsys.readouterr().out.splitlines() == shown
    row = json.loads((tmp_path / "out" / "rows" / "10-marianmt-1" / "row.json").read_text())
    assert row["test_bleu"] < 30 and len(row["log_sha256"]) == 64 and row["starts"] == 1


def test_joeynmt_needs_an_interpreter(given):
    with pytest.raises(ValueError, match="--joeynmt: expected the interpreter"):
        main("benchmarks", [*given, "--systems", "joeynmt"])


@pytest.mark.slow
def test_marianmt_is_trained_and_continues(given, tmp_path, monkeypatch):
    tiny = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 60}
    tiny |= {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("attention_heads", "ffn_dim")}
    whole = low_data.recipe(30) | tiny
    monkeypatch.setattr(low_data, "recipe", lambda pairs: whole)
    monkeypatch.setattr(low_data.signal, "signal", lambda *_: None)
    asked = [*given, "--systems", "marianmt", "--sizes", "30", "--evaluate_every", "1", "--most_updates"]
    main("benchmarks", [*asked, "2"])
    folder = tmp_path / "out" / "rows" / "30-marianmt-1"
    assert json.loads((folder / "row.json").read_text())["updates"] == 2
    (folder / "row.json").unlink()
    main("benchmarks", [*asked, "3"])
    found = json.loads((folder / "row.json").read_text())
    assert found["updates"] == 3 and found["starts"] == 2
    log = (folder / "log.txt").read_text().split('{"updates": 2')[1]
    assert log.count("eval_chrf") == 1  # of the third update alone
