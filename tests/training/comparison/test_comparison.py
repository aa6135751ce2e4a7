"""Comparisons of variants: files of variants, the runs with their results, and the table and the picture of them."""

import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import TrainerControl, TrainerState

from vanilla_transformer_hf.commands.compare import VARIANTS
from vanilla_transformer_hf.model.config.presets import PRESETS
from vanilla_transformer_hf.training.comparison import comparison
from vanilla_transformer_hf.training.comparison import run as comparison_run
from vanilla_transformer_hf.training.comparison.comparison import (
    MeasuredRun,
    PlannedRun,
    plan_comparison,
    read_variants,
    run_comparison,
)
from vanilla_transformer_hf.training.comparison.report import (
    csv_table,
    draw_comparison,
    make_rows,
    markdown_table,
    write_report,
)
from vanilla_transformer_hf.training.comparison.run import FinalScores, Stopwatch, find_divergence
from vanilla_transformer_hf.training.recipe import CONFIGS, ConfigArguments


ROOT = Path(__file__).parents[2]
LINES = {"source": ["one two", "two", "three one", "one"], "target": ["eins zwei", "zwei", "drei eins", "eins"]}
SIZES = {f"{side}_{name}": 1 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
RECIPE = {
    **{"vocab_size": 290, "d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, **SIZES},
    **{"max_source_length": 20, "max_target_length": 20, "num_beams": 1, "learning_rate": 0.01, "warmup_steps": 1},
    **{"per_device_train_batch_size": 4, "max_steps": 3, "logging_steps": 1, "save_steps": 1, "eval_steps": 3},
    **{"eval_strategy": "steps", "matmul": "default", "use_cpu": True, "disable_tqdm": True, "seed": 1},
    "save_total_limit": 1,
}


@pytest.fixture
def recipe(tmp_path, datasets_cache):
    """The path of a recipe of a tiny model with its text."""
    files = {}
    for part in ("train", "validation"):
        for side, lines in LINES.items():
            path = tmp_path / f"{part}.{side}"
            path.write_text("\n".join(lines * 4) + "\n", encoding="utf-8")
            files[f"{part}_{side}"] = str(path)
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(files | RECIPE), encoding="utf-8")
    return path


@pytest.fixture
def variants(tmp_path):
    """`variants(text)`: what `read_variants` makes of a file with this text."""

    def variants(text):
        path = tmp_path / "variants.yaml"
        path.write_text(text, encoding="utf-8")
        return read_variants(str(path))

    return variants


@pytest.fixture
def started(monkeypatch):
    """The runs that were started. They run in this process, which saves the seconds of an import for each."""
    runs = []

    def start(run, seconds, processes):
        runs.append(str(run))
        code = comparison_run.main([str(run.beside(".yaml")), *([str(seconds)] if seconds else [])])
        return SimpleNamespace(returncode=code, poll=lambda: code)

    monkeypatch.setattr(comparison, "start_process", start)
    return runs


VARIANTS_FILE = """
variants:
  paper: {}
  again: {encoder_layers: 1}
  bad: {encoder_attention_heads: 3}
  wild: {learning_rate: 1e12, optim: sgd, activation_function: linear}
"""


def test_a_comparison_measures_what_runs_and_reports_what_does_not(recipe, variants, started, tmp_path, monkeypatch):
    output, told = tmp_path / "out", []
    plan = plan_comparison(str(recipe), variants(VARIANTS_FILE), [], 1, output)
    runs = run_comparison(plan, output, tell=told.append)
    paper, again, bad, wild = (each.result for each in runs)
    assert [each.result["status"] for each in runs] == ["finished", "finished", "failed", "diverged"]
    # Same text, seed and batches: the same model twice is the same to the last bit.
    assert paper["curves"] == again["curves"] and paper["validation_loss"] == again["validation_loss"]
    assert [step for step, _ in paper["curves"]["training_loss"]] == [1, 2, 3]
    assert [step for step, _ in paper["curves"]["validation_loss"]] == [3]
    for key in ("parameters", "steps_per_second", "peak_mib", "generated_tokens_per_second"):
        assert paper[key] > 0, key
    assert paper["validation_loss"] == pytest.approx(paper["curves"]["validation_loss"][-1][1])
    assert bad["error"] == "encoder_attention_heads=3: must divide d_model=16, unless d_k and d_v are given"
    assert wild["error"].startswith("the loss is ") and "sentence pairs" not in wild["error"]
    assert any(line.startswith("wild, seed 1: diverged: the loss is") for line in told)
    # One tokenizer; a finished model stays, its checkpoints go.
    model = output / "runs" / "paper-seed-1"
    assert (model / "tokenizer.json").read_bytes() == (output / "tokenizer" / "tokenizer.json").read_bytes()
    assert (model / "model.safetensors").is_file() and not (model / "checkpoints").exists()

    table = write_report(runs, output, "about")
    assert table == (output / "table.md").read_text(encoding="utf-8")
    assert table.startswith("about\n\n| variant | parameters | steps") and "| `bad` | – |" in table
    assert (output / "curves.png").read_bytes().startswith(b"\x89PNG")

    # Once more: only what failed is tried again; a variant and a seed can be added.
    def pretend(run, seconds, processes):
        started.append(str(run))
        run.beside(".json").write_text(json.dumps(paper))
        return SimpleNamespace(returncode=0, poll=lambda: 0)

    monkeypatch.setattr(comparison, "start_process", pretend)
    started.clear()
    more = variants(VARIANTS_FILE + "  wide: {encoder_ffn_dim: 32}\n")
    run_comparison(plan_comparison(str(recipe), more, [], 1, output), output, tell=told.append)
    assert started == ["bad, seed 1", "wide, seed 1"]
    started.clear()
    two = plan_comparison(str(recipe), variants("variants: {paper: {}}"), [], 2, output)
    assert [each.result["status"] for each in run_comparison(two, output, tell=told.append)] == ["finished"] * 2
    assert started == ["paper, seed 2"]

    # Other settings, variants or text are refused by name, and nothing is started.
    started.clear()
    changed = VARIANTS_FILE.replace("encoder_layers: 1", "encoder_layers: 2")
    for text, argv, message in [
        (VARIANTS_FILE, ["--max_steps", "4"], "max_steps was 3, is 4"),
        (changed, [], "again: encoder_layers was 1, is 2"),
    ]:
        plan = plan_comparison(str(recipe), variants(text), argv, 1, output)
        with pytest.raises(ValueError, match=message):
            run_comparison(plan, output)
    (tmp_path / "train.source").write_text("one\n", encoding="utf-8")
    plan = plan_comparison(str(recipe), variants(VARIANTS_FILE), [], 1, output)
    with pytest.raises(ValueError, match="train_source has other content"):
        run_comparison(plan, output)
    assert not started


HOLD = """
import filelock, sys
with filelock.FileLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_process_at_a_time_compares_in_a_folder(recipe, variants, started, tmp_path):
    output = tmp_path / "out"
    output.mkdir()
    plan = plan_comparison(str(recipe), variants("variants: {paper: {}}"), [], 1, output)
    command = [sys.executable, "-c", HOLD, str(output / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(OSError, match="another process is training in this folder"):
            run_comparison(plan, output)
    assert not started


def test_a_budget_of_seconds_ends_a_run(recipe, variants, started, tmp_path, monkeypatch):
    now = itertools.count()  # a quarter of a second passes whenever somebody looks, once a step
    clock = SimpleNamespace(perf_counter=lambda: next(now) / 4, process_time=time.process_time)
    monkeypatch.setattr(comparison_run, "time", clock)
    output = tmp_path / "out"
    argv = ["--lr_scheduler_type", "constant", "--save_steps", "1000", "--eval_steps", "1000"]
    plan = plan_comparison(str(recipe), variants("variants: {paper: {}}"), argv, 1, output, seconds=1)
    (run,) = run_comparison(plan, output, 1, tell=lambda text: None)
    result = run.result
    assert (result["status"], result["steps"], result["seconds"]) == ("finished", 4, 1)
    assert result["steps_per_second"] == pytest.approx(4)


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--max_steps", "3"], "--seconds 9 and max_steps=3 exclude each other: give one."),
        (["--lr_scheduler_type", "linear"], "--seconds 9: lr_scheduler_type=linear depends on the last step"),
        (["--warmup_steps", "0.1"], "--seconds 9: warmup_steps=0.1 is a share of all steps"),
        (["--eval_steps", "0.5"], "--seconds 9: eval_steps=0.5 is a share of all steps"),
        (["--push_to_hub", "true"], "push_to_hub=True: a comparison neither"),
        (["--task", "masked_lm"], "task=masked_lm: a comparison trains models of translation"),
    ],
)
def test_what_a_comparison_cannot_do_is_refused(recipe, variants, tmp_path, argv, message):
    with pytest.raises(ValueError) as error:
        plan_comparison(str(recipe), variants("variants: {paper: {}}"), argv, 1, tmp_path / "out", seconds=9)
    assert str(error.value).startswith(message)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("field", ["warmup_steps: 0.1", "lr_scheduler_type: linear"])
def test_no_variant_depends_on_an_unknown_number_of_steps(recipe, variants, tmp_path, field):
    with pytest.raises(ValueError, match=f"--seconds 9: {field.replace(': ', '=')} "):
        plan_comparison(str(recipe), variants(f"variants: {{a: {{}}, b: {{{field}}}}}"), [], 1, tmp_path, seconds=9)


@pytest.mark.parametrize(
    "text, message",
    [
        ("- paper", "is not a file of variants: expected a mapping with 'variants' and 'settings'"),
        ("variants: {}", "variants is not a mapping of names to fields"),
        ("variants: {../x: {}}", "'../x' is not a name: expected letters, digits and . _ + -"),
        ("variants: {paper: 3}", "paper is not a mapping of fields to values"),
        ("variants: {paper: {drpout: 3}}", "paper has a field 'drpout' that recipes do not have"),
        (
            "variants: {paper: {max_steps: 3}}",
            "paper sets max_steps, but text, tokenizer, seed and budget are the same",
        ),
        ("variants: {paper: {train_source: a}}", "paper sets train_source, but text"),
    ],
)
def test_files_that_hold_no_variants_are_refused(variants, text, message):
    with pytest.raises(ValueError) as error:
        variants(text)
    assert message in str(error.value)


def test_the_models_of_the_last_step_are_compared(recipe, variants, tmp_path):
    """A recipe that keeps its best checkpoint would give the first one while no sentence is translated exactly."""
    best = {"load_best_model_at_end": True, "metric_for_best_model": "exact_match"}
    recipe.write_text(
        yaml.safe_dump({**yaml.safe_load(recipe.read_text()), **best, "save_steps": 3}), encoding="utf-8"
    )

    def planned(text="variants: {paper: {}}", argv=()):
        (run,) = plan_comparison(str(recipe), variants(text), argv, 1, tmp_path / "out").runs
        return {name: run.settings.get(name) for name in best}

    assert planned() == dict.fromkeys(best)
    assert planned(argv=["--load_best_model_at_end", "true"]) == best
    assert planned("{settings: {load_best_model_at_end: true}, variants: {paper: {}}}") == best
    assert planned(argv=["--early_stopping_patience", "2"]) == best


def test_variants_override_the_command_line_and_that_the_settings_of_the_file(recipe, variants, tmp_path):
    text = """
settings: {d_model: 32, dropout: 0.2, label_smoothing: 0.0}
variants:
  paper: {}
  tokens: {tokens_per_step: 64, dropout: 0.3, label_smoothing: null}
"""
    plan = plan_comparison(str(recipe), variants(text), ["--d_model", "64"], 2, tmp_path / "out")
    assert [str(run) for run in plan.runs] == ["paper, seed 1", "paper, seed 2", "tokens, seed 1", "tokens, seed 2"]
    paper, tokens = plan.runs[0].settings, plan.runs[3].settings
    assert (paper["d_model"], paper["dropout"], paper["seed"]) == (64, 0.2, 1)
    assert (tokens["d_model"], tokens["dropout"], tokens["seed"]) == (64, 0.3, 2)
    assert "label_smoothing" in paper and "label_smoothing" not in tokens
    assert "per_device_train_batch_size" in paper and "per_device_train_batch_size" not in tokens, "excluded"
    assert "vocab_size" not in paper, "that of the tokenizer, which all share"
    with pytest.raises(ValueError, match=r"variant .odd.: .*--d_model.*: invalid int value: 'wide'"):
        plan_comparison(str(recipe), variants("variants: {odd: {d_model: wide}}"), [], 1, tmp_path / "out")


def test_variants_of_a_recipe_of_sizes_by_pairs_have_one_tokenizer(recipe, variants, started, tmp_path):
    table = "by_pairs: {16: {vocab_size: 275, dropout: 0.3, encoder_layers: 2}, 900: {vocab_size: 900}}"
    sizes = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    kept = {name: value for name, value in sizes.items() if name not in ("vocab_size", "encoder_layers")}
    recipe.write_text(f"{yaml.safe_dump(kept)}{table}\n", encoding="utf-8")
    plan = plan_comparison(
        str(recipe), variants("variants: {recipe: {}, one: {encoder_layers: 1}}"), [], 1, tmp_path / "out"
    )
    runs = run_comparison(plan, tmp_path / "out", tell=lambda text: None)
    configs = [json.loads((each.run.place / "config.json").read_text(encoding="utf-8")) for each in runs]
    assert [(each["vocab_size"], each["dropout"], each["encoder_layers"]) for each in configs] == [
        (275, 0.3, 2),
        (275, 0.3, 1),
    ]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_of_the_package_is_a_model(name):
    chosen = read_variants(str(VARIANTS[name]))
    for variant, values in chosen.variants.items():
        kind = CONFIGS[values.get("model_type", "vanilla_transformer")]
        fields = {
            **chosen.settings,
            **{field: value for field, value in values.items() if field in ConfigArguments.__annotations__},
        }
        config = kind(vocab_size=99, **fields)
        assert all(getattr(config, field) == value for field, value in fields.items()), variant
        of_training = {"max_grad_norm", "tokens_per_step", "learning_rate", "moving_average", "warmup_steps"}
        assert values.keys() - fields.keys() <= {"model_type", "preset", *of_training}, variant


def test_the_rows_of_table_3_are_those_of_the_presets():
    """Widths of 1/8 and half of the layers; numbers of heads and rates are the paper's."""
    chosen = read_variants(str(VARIANTS["table3"]))
    scale = {
        **{"d_model": 8, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "d_k": 8, "encoder_layers": 2},
        "decoder_layers": 2,
    }
    rows = {name: values for name, values in PRESETS.items() if re.match(r"base|[A-E](-|$)", name)}
    assert chosen.variants.keys() == rows.keys()
    for name, values in rows.items():
        assert chosen.variants[name] == {key: value / scale.get(key, 1) if key in scale else value
                                         for key, value in values.items()}, name  # fmt: skip


def measured(variant, seed, **result):
    result = {"status": "finished", "error": None, "parameters": 1234, "steps": 10, "steps_per_second": 2.5, **result}
    result = {"device": "cuda", **result}
    result.setdefault("curves", {"training_loss": [[5, 3.0], [10, 2.0]], "validation_loss": [[5, 2.5], [10, 1.5]]})
    return MeasuredRun(PlannedRun(variant, seed, Path("runs"), {}), result)


def test_the_tables_have_means_deviations_and_errors():
    runs = [
        measured("a", 1, validation_loss=1.0, validation_bleu=20.0, peak_mib=600.4),
        measured("a", 2, validation_loss=2.0, validation_bleu=24.0, peak_mib=601.6),
        measured("b", 1, validation_loss=3.0, validation_bleu=10.0),
        measured("b", 2, status="diverged", error="the loss is nan at step 4", validation_loss=None),
        MeasuredRun(PlannedRun("c", 1, Path("runs"), {}), {"status": "failed", "error": "no | good"}),
        MeasuredRun(PlannedRun("c", 2, Path("runs"), {}), {"status": "failed", "error": "no | good"}),
    ]
    rows = make_rows(runs)
    assert markdown_table(rows) == (
        "| variant | parameters | steps/s | peak MiB | validation loss | BLEU | note |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |\n"
        "| `a` | 1,234 | 2.50 | 601 | 1.500 ± 0.707 | 22.00 ± 2.83 |  |\n"
        "| `b` | 1,234 | 2.50 | – | 3.000 | 10.00 | seed 2 diverged: the loss is nan at step 4 |\n"
        "| `c` | – | – | – | – | – | failed: no \\| good |\n"
    )
    head, first, second, third = csv_table(rows).splitlines()
    assert head == (
        "variant,seeds,parameters,steps,steps_per_second,cpu_ms_per_step,peak_mib,validation_loss,"
        "validation_loss_deviation,validation_bleu,validation_bleu_deviation,validation_chrf,validation_chrf_deviation,validation_exact_match,validation_exact_match_deviation,test_loss,test_loss_deviation,test_bleu,"
        "test_bleu_deviation,test_chrf,test_chrf_deviation,test_exact_match,test_exact_match_deviation,generated_tokens_per_second,note"
    )
    assert first == f"a,1 2,1234.0,10.0,2.5,,601.0,1.5,{math.sqrt(0.5)},22.0,{math.sqrt(8)},,,,,,,,,,,,,,"
    assert second == "b,1,1234.0,10.0,2.5,,,3.0,,10.0,,,,,,,,,,,,,,,seed 2 diverged: the loss is nan at step 4"
    assert third == "c,,,,,,,,,,,,,,,,,,,,,,,,failed: no | good"


def test_runs_of_different_lengths_show_their_steps():
    rows = make_rows([measured("a", 1, steps=10), measured("b", 1, steps=20)])
    assert "| `b` | 1,234 | 20 | 2.50 |" in markdown_table(rows)


def test_the_picture_has_the_means_of_the_seeds_over_steps_and_seconds():
    bend = {"training_loss": [], "validation_loss": [[5, 3.5], [10, 2.5]]}
    diverged = {"status": "diverged", "error": "the loss is nan"}
    runs = [measured("a", 1), measured("a", 2, curves=bend), measured("b", 1, **diverged)]
    runs += [MeasuredRun(PlannedRun("c", 1, Path("runs"), {}), {"status": "failed", "error": "bad"})]
    by_step, by_time = draw_comparison(runs).axes
    lines = [(line.get_label(), line.get_xydata().tolist()) for line in by_step.lines]
    assert lines == [("a", [[5, 3.0], [10, 2.0]]), ("b (diverged)", [[5, 2.5], [10, 1.5]])]
    assert by_time.lines[0].get_xydata().tolist() == [[2, 3.0], [4, 2.0]], "2.5 steps a second"
    assert by_step.get_ylabel() == "validation loss, nats per token"
    _, by_time = draw_comparison([measured("a", 1, device="cpu", cpu_ms_per_step=100)]).axes
    assert by_time.lines[0].get_xydata().tolist() == [[0.5, 2.5], [1, 1.5]]
    assert by_time.get_xlabel() == "CPU seconds of training, without evaluations"


@pytest.mark.parametrize(
    "losses, found",
    [
        ([], None),
        ([5.0, 3.0, 2.0, 2.9], None),
        ([5.0, 2.0, 3.5], "training loss 3.50 at step 3, 2.00 at step 2"),
        ([6.0, 5.8, 5.7], "training loss 5.70 at step 3, 5.70 at step 3"),
    ],
)
def test_divergence_is_a_rise_or_a_loss_above_guessing(losses, found):
    assert find_divergence(list(enumerate(losses, start=1)), 99) == found  # guessing: 4.6 nats


def test_the_stopwatch_counts_steps_alone_and_goes_on_from_a_checkpoint(monkeypatch):
    clock = iter([0, 10, 12, 100, 103, 200, 201, 205])
    monkeypatch.setattr(comparison_run.time, "perf_counter", lambda: next(clock))
    processor = iter([0, 1, 2, 3, 4, 5, 6, 7])
    monkeypatch.setattr(comparison_run.time, "process_time", lambda: next(processor))
    arguments, control = SimpleNamespace(eval_strategy="no"), TrainerControl()
    watch = Stopwatch(9)
    watch.on_train_begin(arguments, TrainerState(), control)
    watch.on_step_end(arguments, TrainerState(), control)  # 10 to 12
    watch.on_evaluate(arguments, TrainerState(), control)
    watch.on_step_end(arguments, TrainerState(), control)  # 100 to 103
    assert (watch.seconds, watch.cpu_seconds) == (5, 2) and not control.should_training_stop
    state = TrainerState(global_step=2, stateful_callbacks=[watch])
    later = Stopwatch(9)
    later.on_train_begin(arguments, state, control)
    assert later.seconds == 5 and not control.should_training_stop
    later.on_step_end(arguments, state, control)  # 201 to 205
    assert (later.seconds, later.cpu_seconds) == (9, 3)
    assert control.should_training_stop and control.should_save


def test_the_speed_of_generation_is_that_of_the_last_search(tiny_model):
    model = tiny_model()
    scores = FinalScores(model)
    found = model.generate(torch.tensor([[5, 6, 1]]), max_new_tokens=4)
    tokens = int((found[:, 1:] != model.config.pad_token_id).sum())
    scores._seconds = 2.0
    scores.on_predict(None, None, None, metrics={"validation_loss": 1.0, "validation_runtime": 3.0})
    assert scores.found == {"validation_loss": 1.0, "generated_tokens_per_second": tokens / 2}


KILLED = """
import sys
from vanilla_transformer_hf.commands.main import main
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_comparison_that_is_killed_continues_and_ends_as_one_that_was_not(recipe, tmp_path):
    """Its processes: SIGTERM and SIGKILL end the runs too, finished ones are kept, and the results are the same."""
    (tmp_path / "variants.yaml").write_text("variants: {paper: {}}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_DATASETS_CACHE": str(tmp_path / "cache")}

    def command(output, seeds=1):
        names = ["compare", str(recipe), "--variants", str(tmp_path / "variants.yaml"), "--output", str(output)]
        return [
            sys.executable,
            "-c",
            KILLED,
            *names,
            "--processes",
            "2",
            "--max_steps",
            "60",
            "--seeds",
            str(seeds),
            "--logging_steps",
            "20",
        ]

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run(command(whole, seeds=2), env=environment, check=True, capture_output=True)
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = subprocess.Popen(command(cut), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        before = {path.name for path in cut.glob("runs/*/checkpoints/checkpoint-*")}
        deadline = time.monotonic() + 120
        while {path.name for path in cut.glob("runs/*/checkpoints/checkpoint-*")} <= before:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == (-9 if number == signal.SIGKILL else 143)
        if number == signal.SIGTERM:
            assert b"stopped; the same command continues." in said
        # The runs end by themselves, with a checkpoint, and free their folders.
        while subprocess.run(["pgrep", "-f", str(cut / "runs")], capture_output=True).stdout:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert not list(cut.glob("runs/*.json"))
    subprocess.run(command(cut), env=environment, check=True, capture_output=True)
    results = [json.loads((folder / "runs" / "paper-seed-1.json").read_text()) for folder in (whole, cut)]
    for key in ("status", "parameters", "steps", "validation_loss", "validation_bleu", "curves"):
        assert results[0][key] == results[1][key], key
    weights = [load_file(folder / "runs" / "paper-seed-1" / "model.safetensors") for folder in (whole, cut)]
    assert all((weights[1][key] == value).all() for key, value in weights[0].items())
    assert len(list(whole.glob("runs/*/model.safetensors"))) == 2
