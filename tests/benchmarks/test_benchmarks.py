"""`python -m benchmarks`: that it measures what it says, on sizes that say nothing about speed."""

import argparse
import contextlib
import importlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from new_process import ForkedPopen
from transformers import GenerationMixin

from benchmarks import (
    attention,
    attention_engines,
    corpus,
    generation,
    generation_engine,
    generation_models,
    generation_picture,
    generation_torch,
    memory,
    predecessors,
    training,
    turns,
    variants,
)
from benchmarks.__main__ import PROG, main
from vanilla_transformer_hf import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer_hf.common import command_line
from vanilla_transformer_hf.common.matmul import MatmulRow
from vanilla_transformer_hf.conversion.converter import example_batch, logits_of


@pytest.fixture
def forked(monkeypatch):
    """Engines need not import torch and transformers, which takes each longer than what it measures here."""
    monkeypatch.setattr(turns, "subprocess", SimpleNamespace(Popen=ForkedPopen, PIPE=None))


def run(*arguments: str) -> None:
    """`python -m benchmarks`, in this process: its engines have processes of their own."""
    command_line.run(lambda: main(PROG, [*arguments]), PROG)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_four_engines_train_on_text_and_on_a_made_up_corpus(tmp_path, capsys):
    files = {"source": "one two three\n\nfour five\n" * 40, "target": "eins zwei drei\n\nvier fünf\n" * 40}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    small = ["--presets", "smoke", "--rounds", "2", "--block", "1", "--threads", "1", "--tokens", "64"]
    text = ["--source", str(tmp_path / "source"), "--target", str(tmp_path / "target")]
    text += ["--against", "stock", "marian", "torch"]
    run("train", *small, *text, "--dtypes", "bfloat16", "--loads", "run", "--json", str(tmp_path / "json"))
    printed = capsys.readouterr().out
    result = json.loads((tmp_path / "json").read_text())
    rows = result["measurements"]
    assert [row["engine"] for row in rows] == ["ours", "stock", "marian", "torch"]
    assert all(row["tokens_per_second"] > 0 and row["peak_mib"] > row["anonymous_mib"] > 50 for row in rows)
    assert all(row["slowest"] <= row["tokens_per_second"] <= row["fastest"] for row in rows)
    for row in rows:
        assert row["ratio"] == pytest.approx(rows[0]["tokens_per_second"] / row["tokens_per_second"])
        assert row["name"] in printed
    against = ["--against", "r_drop", "bfloat16_moment"]
    run("train", *small, "--dtypes", "float32", "--loads", "step", *against, "--clock", "processor")
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("smoke, float32, step", "ours with R-Drop", "ours, bfloat16 moment"))


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_the_memory_of_a_step_is_measured(tmp_path, capsys):
    small = ["--presets", "multi30k_tiny", "--vocab_size", "300", "--tokens", "16", "4096", "--threads", "1"]
    run("memory", *small, "--dtypes", "float32", "--json", str(tmp_path / "json"))
    found = json.loads((tmp_path / "json").read_text())
    few, many = (row["peak_mib"] for row in found["peaks"])
    assert 200 < few < many - 100
    device = "cuda" if torch.cuda.is_available() else "cpu"
    printed = capsys.readouterr().out
    assert training.describe_device(device) in printed and f"| {few:,.0f} | {many:,.0f} |" in printed


class FailingEngine:
    """One whose process ends with `says`."""

    says = ""

    def __init__(self, *settings):
        pass

    def warm_up(self):
        raise ChildProcessError(self.says)

    def stop(self):
        pass


@pytest.mark.parametrize("says", ["torch.OutOfMemoryError: CUDA out of memory.", "base ended with code -9:"])
def test_a_step_without_room_is_told_and_other_errors_are_errors(says, monkeypatch, capsys):
    monkeypatch.setattr(memory, "Engine", FailingEngine)
    monkeypatch.setattr(FailingEngine, "says", says)
    small = ["--presets", "base", "--tokens", "16", "--dtypes", "float32"]
    run("memory", *small)
    assert "| `base` | 63.0 M | float32 | out of memory |" in capsys.readouterr().out
    monkeypatch.setattr(FailingEngine, "says", "KeyError: 'device'")
    with pytest.raises(SystemExit):
        run("memory", *small)
    with pytest.raises(SystemExit):
        run("memory", "--tokens", "8")
    errors = capsys.readouterr().err
    assert "KeyError: 'device'" in errors and "--tokens are 16 or more" in errors


def test_errors_are_one_line(capsys):
    for arguments, message in (
        (("--source", "x"), "--source and --target are given together"),
        (("--rounds", "0"), "are 1 or more"),
        (("--source", "none", "--target", "none", "--presets", "smoke"), "no such file"),
    ):
        with pytest.raises(SystemExit) as ended:
            run("train", *arguments)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_an_engine_that_fails_says_why():
    with pytest.raises(ChildProcessError, match=r"(?s)ours ended with code 1:.*KeyError: 'device'"):
        turns.Engine("ours", "training_engine", {}, threads=1).warm_up()


def test_an_engine_that_was_killed_while_it_waited_is_named(tmp_path, monkeypatch):
    """Not as a broken pipe, which commands take for a reader of their output that has seen enough."""
    shutil.copytree(turns.FOLDER, tmp_path / "engines")
    (tmp_path / "engines" / "idle.py").write_text("from .turns import Turns\n\nTurns().report({})\n")
    monkeypatch.setattr(turns, "FOLDER", tmp_path / "engines")
    engine = turns.Engine("ours", "idle", {}, threads=1)
    engine.warm_up()
    engine._process.kill()
    engine._process.wait()
    with pytest.raises(ChildProcessError, match="ours ended with code -9"):
        engine.turn()
    engine.stop()


def test_engines_do_other_work_and_are_ended_at_the_time_limit(tmp_path, monkeypatch, capsys):
    """An engine that has no time left for a turn is ended in the middle of it; rows that had a turn are kept."""
    shutil.copytree(turns.FOLDER, tmp_path / "engines")
    code = """
import json, sys, time
from .turns import Turns
turns, work = Turns(), json.loads(sys.argv[1])
while True:
    following = turns.report({})
    while not following:
        if work["sleeps"]:
            time.sleep(1000)
        following = turns.report({"outputs": [[work["token"]]], "seconds": 1.0} | dict.fromkeys(MEMORY, 1.0))
    work = following
""".replace("MEMORY", '("peak_mib", "search_mib", "anonymous_mib")')
    (tmp_path / "engines" / "sleeper.py").write_text(code)
    monkeypatch.setattr(turns, "FOLDER", tmp_path / "engines")
    limit = turns.TimeLimit()
    engines = [turns.Engine(name, "sleeper", {"sleeps": False, "token": 3}, 1, limit=limit) for name in ("one", "two")]
    rows = generation.rows_of(["float32"], ["marian"], "default", "cpu")
    load = generation.Load("speed", "", [], 1, 1)
    try:
        for engine in engines:
            engine.warm_up()
        found = generation.measure(rows, engines, load, 2, limit)
        assert [(row["engine"], row["seconds"]) for row in found] == [("ours", 1), ("marian", 1)]
        for engine, sleeps in zip(engines, (False, True), strict=True):
            engine.send({"sleeps": sleeps, "token": 4})
            engine.warm_up()
        engines[0].turn()
        assert engines[0].results[0]["outputs"] == [[4]]
        engines[0].results = []
        limit._seconds = limit.used + 1
        found = generation.measure(rows, engines, load, 2, limit)
        assert [row["engine"] for row in found] == ["ours"]
        assert "the time limit is reached before a turn of two has ended" in capsys.readouterr().err
        with pytest.raises(turns.OutOfTimeError, match="one"):
            engines[0].warm_up()
    finally:
        for engine in engines:
            engine.stop()


def test_both_sides_have_the_same_backend_somewhere():
    rows = training.float32_rows("onednn")
    assert [(row.engine, row.matmul) for row in rows] == [
        *(("ours", "onednn"), ("stock", "default"), ("marian", "default"), ("torch", "default")),
        *(("r_drop", "onednn"), ("bfloat16_moment", "onednn"), ("ours", "default"), ("marian", "onednn")),
    ]
    assert training.float32_rows("default") == training.BFLOAT16_ROWS


@pytest.mark.slow
def test_engines_of_others_import_nothing_of_the_package():
    """So that their peak memory is their own."""
    names = ("torch", "vanilla_transformer_hf")
    code = f"import benchmarks.generation_torch; print(*(name in sys.modules for name in {names}))"
    code = turns.LAUNCH.replace('runpy.run_module("benchmarks." + module, run_name="__main__", alter_sys=True)', code)
    done = subprocess.run([sys.executable, "-c", code, turns.FOLDER, ""], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_operations_are_those_of_the_weights():
    config = VanillaTransformerConfig.from_preset("multi30k_tiny", vocab_size=500)
    model = VanillaTransformerForConditionalGeneration(config)
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    assert training.gflops_per_token(config) == pytest.approx(6e-9 * weights)


def test_made_up_corpus_has_the_lengths_it_says():
    source, target = ([len(line.split()) for line in side] for side in corpus.made_up_text(5000))
    for lengths, mean, deviation in zip((source, target), corpus.MEANS, corpus.DEVIATIONS, strict=True):
        assert np.mean(lengths) == pytest.approx(mean, rel=0.02)
        assert np.std(lengths) == pytest.approx(deviation, rel=0.05)
    assert np.corrcoef(source, target)[0, 1] == pytest.approx(corpus.CORRELATION, abs=0.03)
    assert corpus.made_up_text(5) == corpus.made_up_text(5)


def small_model(**fields) -> VanillaTransformerForConditionalGeneration:
    preset, sizes = training.SIZES["smoke"]
    return generation_models.random_model(VanillaTransformerConfig.from_preset(preset, **{**sizes, **fields}))


@pytest.mark.slow
def test_searches_are_measured_side_by_side(tmp_path, capsys):
    lines = ["one two three four", "", "two", "five four one", "three three"] * 9
    (tmp_path / "text").write_text("\n".join(lines), encoding="utf-8")
    tokenizer = VanillaTransformerTokenizer.train(lines, lines, vocab_size=300, show_progress=False)
    tokenizer.save_pretrained(tmp_path / "model")
    small_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path / "model")
    text = ["--model", str(tmp_path / "model"), "--source", str(tmp_path / "text"), "--vocab_size", "310"]
    small = ["--presets", "smoke", "--rounds", "2", "--seconds", "0", "--threads", "1", "--beams", "2"]
    engines = ["--dtypes", "bfloat16", "--against", "marian"]
    run("generate", *small, *engines, *text, "--json", str(tmp_path / "json"))
    rows = json.loads((tmp_path / "json").read_text())["measurements"]
    assert [(row["model"], row["engine"]) for row in rows] == [
        ("smoke", "ours"),
        ("smoke", "marian"),
        ("model", "ours"),
        ("model", "marian"),
    ]
    assert [(row["sentences"], row["batch"], row["new_tokens"]) for row in rows[:2]] == [(32, 32, 32)] * 2
    assert [(row["sentences"], row["batch"], row["limit"]) for row in rows[2:]] == [(36, 32, 128)] * 2
    for row in rows:
        assert row["slowest"] <= row["sentences_per_second"] <= row["fastest"]
        assert row["tokens_per_second"] == pytest.approx(row["sentences_per_second"] * row["new_tokens"])
        assert row["peak_mib"] > row["search_mib"] > 0
        assert row["peak_mib"] > row["anonymous_mib"] > 10
    assert rows[0]["ratio"] == rows[2]["ratio"] == 1
    assert "smoke, speed: 32 × 32 tokens, 32 new, beam 2" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_engines_of_a_gpu_run_from_load_to_load(monkeypatch):
    """The way of a GPU, with engines that compute on the CPU."""
    started, start = [], generation.start_engine

    def start_on_cpu(row, work, folder, arguments, *others):
        started.append(row.engine)
        return start(row, work, folder, argparse.Namespace(device="cpu", seconds=0.0, clock="wall"), *others)

    monkeypatch.setattr(generation, "start_engine", start_on_cpu)
    parser = argparse.ArgumentParser()
    generation.add_arguments(parser)
    arguments = parser.parse_args(["--device", "cuda", "--sections", "sentence", "speed", "--beams", "1", "2"])
    arguments.threads, arguments.rounds, limit = [1], 1, turns.TimeLimit()
    rows = generation.rows_of(["float32"], ["static", "marian"], "default", "cuda")
    loads = generation.random_loads(arguments, training.SIZES["smoke"][1]["vocab_size"])
    found = list(generation.measure_all("smoke", small_model(), loads, rows, arguments, limit))
    assert started == ["ours", "static", "marian"]
    assert [(part[0]["sentences"], part[0]["beams"]) for part in found] == [(1, 1), (1, 2), (32, 1), (32, 2)]
    assert all(row["new_tokens"] == 32 and row["same_outputs"] == 1 for part in found for row in part)


def test_arguments_of_generate_fit_each_other(tmp_path):
    parser = argparse.ArgumentParser()
    generation.add_arguments(parser)
    for arguments, message in (
        (["--model", "x"], "--model and --source are given together"),
        (["--loads", "natural"], "needs --model and --source"),
        (["--beams", "0"], "are 1 or more"),
        (["--against", "static"], "static and marian_static need --device cuda"),
        (["--picture", "x"], "needs one of the sections batch, beam, length"),
        *([] if torch.cuda.is_available() else [(["--device", "cuda"], "torch does not find a CUDA device")]),
    ):
        with pytest.raises(ValueError, match=message):
            generation.run(parser.parse_args(arguments))
    arguments = parser.parse_args(["--model", "x", "--source", str(tmp_path / "text")])
    generation.check(arguments)
    assert (arguments.loads, arguments.dtypes) == (["fixed", "natural"], ["float32", "bfloat16", "int8"])
    (tmp_path / "text").write_text(" \n\n", encoding="utf-8")
    with pytest.raises(ValueError, match="text: no text"):
        generation.natural_batches("x", arguments)


def test_loads_of_all_sections():
    parser = argparse.ArgumentParser()
    generation.add_arguments(parser)
    arguments = parser.parse_args(["--sections", *generation.SECTIONS, "--beams", "1", "4"])
    loads = list(generation.random_loads(arguments, vocab_size=50))
    found = {}
    for load in loads:
        (batch,) = load.batches
        found.setdefault(load.section, set()).add((len(batch), len(batch[0]), load.new_tokens, load.beams))
        assert {len(row) for row in batch} == {len(batch[0])} and all(
            3 <= index < 50 for row in batch for index in row
        )
    assert found["speed"] == {(32, 32, 32, 1), (32, 32, 32, 4)}
    assert {size for size, *_ in found["batch"]} == {1, 8, 32, 128}
    assert {new_tokens for _, _, new_tokens, _ in found["first_token"]} == {1}
    assert {beams for *_, beams in found["beam"]} == {1, 2, 4, 8, 16}
    assert {(source, new) for _, source, new, _ in found["length"]} == {(n, n) for n in (16, 64, 256, 1024)}


@pytest.mark.parametrize("beams", [1, 3])
def test_engines_find_the_same(tmp_path, beams):
    """Random weights, sentences of several lengths: greedy and beam search of all engines agree, to the last token."""
    names = ["ours", "batch_by_batch", "host_search", "static", "marian", "marian_static"]
    if importlib.util.find_spec("ctranslate2"):
        names.append("ctranslate2")
    model = small_model(d_model=64, encoder_layers=2, decoder_layers=2)
    generation_models.write_models(model, tmp_path, set(names), {torch.float32})
    batch = [torch.randint(3, 400, (length,)).tolist() for length in (7, 4, 9)]
    found = {}
    for name in names:
        kind = name.removesuffix("_static")
        folder = tmp_path / (kind if kind in ("marian", "ctranslate2") else "ours")
        settings = {"folder": str(folder), "dtype": "float32", "fp32_precision": None, "device": "cpu", "threads": 1}
        module = importlib.import_module(generation_engine.ENGINES[name], generation_engine.__package__)
        searcher = getattr(module, f"open_{name}")(settings)
        searcher.configure(beams, 12, {})
        result = generation_engine.one_turn(searcher, [searcher.prepare(batch)], least_seconds=0.0)
        found[name] = result["outputs"]
        assert result["seconds"] > 0
    assert [len(ids) for ids in found["ours"]] == [12] * 3, "ended by the limit"
    assert len({tuple(ids) for ids in found["ours"]}) > 1 and len(set(found["ours"][1])) > 1
    for name in names[1:]:
        assert found[name] == found["ours"], name


def test_outputs_are_cut_at_their_end(tmp_path):
    """A model that ends soon: no start, end or padding is counted."""
    model = small_model()
    with torch.no_grad():  # `</s>` gets the logit 3 whatever comes, the others none
        norm = model.model.decoder.layers[-1].final_layer_norm
        norm.weight.zero_()
        norm.bias.fill_(0.1)
        model.lm_head.weight[model.config.eos_token_id] = 1.0
    model.save_pretrained(tmp_path / "ours")
    module = importlib.import_module(generation_engine.ENGINES["ours"], generation_engine.__package__)
    settings = {"folder": str(tmp_path / "ours"), "dtype": "float32", "fp32_precision": None, "device": "cpu"}
    searcher = module.open_ours(settings)
    searcher.configure(1, 12, {})
    assert [searcher.ids(found) for found in searcher.search([searcher.prepare([[5, 6], [7]])])] == [[[], []]]
    assert searcher.ids(torch.tensor([[0, 5, 1, 0], [0, 6, 7, 8]])) == [[5], [6, 7, 8]]


def test_host_search_runs_the_host_loops():
    model = small_model()
    theirs = generation_torch.host_search_class()
    for name in ("generate", "_sample", "_beam_search"):
        assert getattr(theirs, name) is getattr(GenerationMixin, name)
    assert issubclass(theirs, type(model))


def test_twin_of_marianmt_is_the_same_function():
    fields = {"attention_bias": False, "encoder_layers": 2, "decoder_layers": 2}
    for encoding in ("sinusoidal", "sinusoidal_halves"):
        model = small_model(position_encoding=encoding, **fields)
        for parameter in model.parameters():  # norms and biases do not start as they end
            torch.nn.init.normal_(parameter, std=0.1)
        twin = generation_models.as_marianmt(model)
        assert twin.config.position_encoding == twin.config.decoder_position_encoding == "sinusoidal_halves"
        batch = example_batch(model.config)
        torch.testing.assert_close(logits_of(twin, batch), logits_of(model, batch), rtol=0, atol=1e-5)


def test_rows_compare_like_with_like():
    rows = generation.rows_of(["float32", "bfloat16", "int8"], ["marian", "ctranslate2"], "onednn", "cpu")
    assert [(row.engine, row.dtype, row.matmul) for row in rows if row.plain] == [
        ("ours", "float32", "default"),
        ("marian", "float32", "default"),
        ("ctranslate2", "float32", "default"),
        ("ours", "bfloat16", "default"),
        ("marian", "bfloat16", "default"),
        ("ours", "int8", "default"),
        ("ctranslate2", "int8", "default"),
    ]
    assert [(row.engine, row.matmul) for row in rows if not row.plain] == [("ours", "onednn"), ("marian", "onednn")]
    found = [
        row._asdict() | {"sentences_per_second": speed} for row, speed in zip(rows, (10, 5, 8, 2, 4, 20, 16, 30, 40))
    ]
    generation.add_ratios(found)
    assert [row["ratio"] for row in found] == [1, 2, 1.25, 5, 2.5, 1, 1.25, 1, 0.75]
    engines = ["ours", "static", "marian", "marian_static", "ctranslate2"]
    on_gpu = generation.rows_of(["float32", "float16"], engines, "onednn", "cuda")
    assert [(row.engine, row.dtype, row.matmul) for row in on_gpu] == [
        (engine, dtype, "default") for dtype in ("float32", "float16") for engine in engines
    ]
    assert {row.attention for row in training.rows_of("float32", "onednn", "cuda")} == {"sdpa"}


def test_numbers_of_turns():
    results = [{"seconds": seconds, "peak_mib": 9, "search_mib": 1, "anonymous_mib": 5} for seconds in (4.0, 1.0, 2.0)]
    results[0]["outputs"] = [[1, 2, 3], [4]]
    row = generation.numbers(results, reference=[[1, 2, 3], [5]], limit=3)
    assert (row["sentences_per_second"], row["slowest"], row["fastest"], row["seconds"]) == (1, 0.5, 2, 2)
    assert (row["new_tokens"], row["tokens_per_second"], row["at_limit"], row["same_outputs"]) == (2, 2, 0.5, 0.5)


def test_growth_is_drawn():
    found = [
        {"model": "base", "section": "batch", "name": name, "dtype": "float32", "beams": 4, "batch": size}
        | {"sentences_per_second": size * speed, "peak_mib": 100.0 * size}
        for name, speed in (("ours", 2.0), ("MarianMT", 1.0))
        for size in (32, 1, 8)
    ]
    speed, memory = generation_picture.draw_growth(found, generation.GROWTH).axes
    assert [line.get_label() for line in speed.lines] == ["ours float32", "MarianMT float32"]
    assert speed.lines[0].get_xydata().tolist() == [[1, 2], [8, 16], [32, 64]]
    assert memory.lines[1].get_xydata().tolist() == [[1, 100], [8, 800], [32, 3200]]


FILES_OF_ATTENTION = {"json": "json", "picture": "png", "markdown": "md"}


@pytest.mark.slow
def test_kinds_of_attention_take_turns(tmp_path, capsys, monkeypatch):
    sizes = {"lengths": [16, 32], "widths": [16, 64], "layer_length": 24, "window": 4}
    settings = {**sizes, "rounds": 1, "threads": 1, "tasks": list(attention.TASKS), "clock": "processor"}
    settings |= {"matmul": "default", "dtype": "float32"}
    monkeypatch.setattr(attention, "probe_matmul", lambda: [MatmulRow("default", 9, 0.0), MatmulRow("onednn", 1, 0.0)])
    monkeypatch.setattr(attention, "available_matmuls", lambda: ["default"])  # a second row of full is tested below
    files = {name: str(tmp_path / f"attention.{end}") for name, end in FILES_OF_ATTENTION.items()}
    attention.run(argparse.Namespace(**settings, **files, kinds=["full", "eager", "chunk_mean", "LongT5"]))
    rows = json.loads((tmp_path / "attention.json").read_text())
    places = [(row["task"], row["length"], row["kind"]) for row in rows]
    assert [place for place in places if place[0] == "token"] == [
        ("token", length, kind) for length in (16, 32) for kind in ("full", "eager", "chunk_mean")
    ]
    assert len(places) == 8 + 8 + 6 + 4 * 4
    assert all(row["seconds"] > 0 for row in rows)
    assert all(row["mib"] >= 0 and set(row["speed"]) == {"full", "eager"} for row in rows if row["task"] != "layer")
    layers = {(row["over"], row["length"], row["width"]) for row in rows if row["task"] == "layer"}
    assert layers == {("length", 16, 512), ("length", 32, 512), ("width", 24, 16), ("width", 24, 64)}
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "forward        full               grows with n^" in printed
    assert re.search(r"layer +feed-forward +grows with d\^\S+ \(operations: n d²\)", printed)
    written = (tmp_path / "attention.md").read_text().splitlines()
    heads = [line.split(" | ")[0].removeprefix("| ") for line, rule in pairwise(written) if rule.startswith("| ---")]
    assert heads == [
        *("forward, speed (`full`: ms)", "training step, speed (`full`: ms)", "training step, MiB", "token, ms"),
        *("layer, ms", "layer, over the width, ms"),
    ]


def test_kinds_of_attention_are_drawn_as_small_multiples():
    """At most four kinds in a panel, each beside the two baselines; those that have no token leave its column."""
    kinds = ["full", "full, onednn", "eager", "window", "blocks", "chunk", "lsh", "performer", "LongT5"]
    rows = [
        {"task": task, "over": "length", "length": length, "width": 512, "kind": kind}
        | {"seconds": length * (place + 1) / 1e5, "mib": 10.0 * length}
        for task in ("forward", "training step", "token")
        for place, kind in enumerate(kinds)
        for length in (256, 1024)
        if (task, kind) != ("token", "LongT5")
    ]
    layer = {"task": "layer", "kind": "norm", "seconds": 1.0}
    rows += [
        layer | {"over": "length", "length": 256, "width": 512},
        layer | {"over": "width", "length": 9, "width": 64},
    ]
    panels = attention.figure_of(rows).axes
    groups = [["window", "blocks", "chunk", "lsh"], ["performer"], ["LongT5"]]
    assert attention.groups_of([kind for kind in kinds if "," not in kind]) == groups
    named = [[text.get_text() for text in panel.get_legend().texts] for panel in panels if panel.get_legend()]
    assert named == [*(["full", "eager", *group] for group in groups), [*attention.LAYERS]]
    drawn = [panel for panel in panels if not panel.get_legend()]
    counts = [len(panel.lines) for panel in drawn]
    assert counts == [6, 3, 3] * 3 + [6, 3] + [1, 1]  # forward, step, its memory, token; the layers
    titles = [panel.get_title() for panel in drawn if panel.get_title()]
    assert titles[:4] == ["forward: seconds", "training step: seconds", "training step: MiB", "token: seconds"]
    assert drawn[0].lines[2].get_xydata().tolist() == [[256, 256 * 4 / 1e5], [1024, 1024 * 4 / 1e5]]
    alone = attention.figure_of(rows[:2]).axes[-1]
    assert len(alone.lines) == 1 and {*alone.get_xticks()} == {256, 1024}


def test_tables_compare_with_the_faster_library_of_products():
    def row(kind, length, seconds, **more):
        place = {"task": "forward", "over": "length", "length": length, "width": 512}
        return place | {"kind": kind, "seconds": seconds, "mib": 3.0, **more}

    rows = [
        *(row("full", 512, 0.02), row("full", 1024, 0.08), row("window", 512, 0.01, speed={"full": 1.5})),
        *(row("full, onednn", 512, 0.015), row("full, onednn", 1024, 0.12)),
    ]
    assert attention.tables(rows, "one thread") == (
        "one thread\n\n"
        "| forward, speed (`full`: ms) | 512 | 1,024 | grows with |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| `full` | 20.00 | 80.00 | n^2.00 |\n"
        "| `window` | 1.50 | – | – |\n"
        "| `full, onednn` | 15.00 | 120 | n^3.00 |\n"
    )


def test_speeds_are_relative_to_the_faster_full(monkeypatch):
    """Each turn of `full` takes 4 seconds, of `full` with the other library 2, of `window` 1."""
    settings = {"kinds": ["full", "window"], "window": 4, "threads": 1, "rounds": 2, "clock": "wall"}
    settings |= {"dtype": "float32", "matmul": "default", "other_matmuls": ["onednn"]}
    times = {("full", "default"): 4.0, ("full", "onednn"): 2.0, ("window", "default"): 1.0}
    monkeypatch.setattr(attention, "work_of", lambda name, *rest: lambda: times[name, rest[-1]])
    with ThreadPoolExecutor() as here:
        monkeypatch.setattr(attention, "memory_of", lambda *_: 1.0)
        rows = attention.take_turns("forward", 16, 512, argparse.Namespace(**settings), here)
    speeds = {row["kind"]: row["speed"]["full"] for row in rows}
    assert list(speeds.items()) == [("full", 0.5), ("full, onednn", 1.0), ("window", 2.0)]


@pytest.mark.parametrize("task", ["forward", "training step", "token"])
@pytest.mark.parametrize("name", attention_engines.INSTALLED)
def test_each_kind_of_attention_runs(name, task):
    work = attention_engines.work_of(name, task, 12, 4)
    if task == "token" and ("linformer" in name or name not in attention_engines.KINDS):
        assert work is None
    else:
        assert work() > 0


@torch.no_grad()
def test_segments_are_those_of_one_pass():
    module = attention_engines.Segments(4, 12).double()
    states = torch.randn(1, 12, 512, dtype=torch.double)
    whole = module.attention(states, module.attention.mask(states, None, None, False))[0]
    torch.testing.assert_close(module(states), whole, atol=1e-10, rtol=0)


def test_products_of_all_kinds_are_packed_and_of_the_chosen_library(monkeypatch):
    used, chosen = [], []

    def counted(weights, bias):
        return lambda states: used.append(0) or F.linear(states, *weights, bias)

    monkeypatch.setattr(attention_engines, "pack", counted)
    monkeypatch.setattr(attention_engines, "matmul", lambda name: chosen.append(name) or contextlib.nullcontext())
    for name in ("full", "window", "LongT5"):
        used.clear()
        attention_engines.work_of(name, "forward", 16, 4, products="onednn")()
        assert len(used) == (4 if attention_engines.is_packable(torch.ones(2)) else 0)
    assert chosen == ["onednn"] * 3


@pytest.mark.slow
def test_the_transformer_and_a_recurrent_model_take_turns(tmp_path, capsys):
    files = {"json": str(tmp_path / "rows.json"), "picture": str(tmp_path / "rows.png")}
    settings = {"lengths": [4], "batch": 2, "rounds": 1, "threads": 1, "models": ["transformer", "gru_bahdanau"]}
    settings["tasks"] = list(predecessors.TASKS)
    predecessors.run(argparse.Namespace(**settings, **files))
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["task"], row["length"], row["model"]) for row in rows] == [
        (task, 4, name) for task in predecessors.TASKS for name in settings["models"]
    ]
    assert all(row["tokens_per_second"] > 0 and row["mib"] > 0 for row in rows if row["task"] == "training step")
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")
    assert "training step       4 gru_bahdanau" in capsys.readouterr().out
    with pytest.raises(ValueError, match="--models rnn: expected one of transformer, transformer_pre, lstm"):
        predecessors.run(argparse.Namespace(**settings | {"models": ["rnn"]}, json=None, picture=None))


def test_attention_refuses_widths_that_heads_cannot_share():
    sizes = {"lengths": [16], "widths": [64, 100], "layer_length": 8, "window": 4, "rounds": 1, "threads": 1}
    with pytest.raises(ValueError, match="--widths 100: must be a multiple of 8"):
        attention.run(argparse.Namespace(**sizes))


def test_an_exponent_is_the_slope_between_logarithms():
    assert attention.exponent([(n, 3e-6 * n**2) for n in (256, 1024, 4096)]) == pytest.approx(2)


@pytest.mark.parametrize("causal", [False, True])
def test_all_variants_can_be_models(causal):
    preset, more = training.SIZES["smoke"]
    sizes = {"name": preset, **more}
    first, *others = variants.variants(sizes, causal).values()
    paper = variants.model_of(sizes, causal)
    assert variants.model_of({**sizes, **first}, causal).config.to_dict() == paper.config.to_dict()
    for fields in others:
        assert variants.model_of({**sizes, **fields}, causal).config.to_dict() != paper.config.to_dict()


@pytest.mark.parametrize("causal", [False, True])
def test_variants_take_turns_with_the_papers_model(causal, tmp_path, capsys):
    settings = {"preset": "smoke", "rounds": 1, "threads": 1, "beams": [1, 2], "json": str(tmp_path / "speed.json")}
    settings["causal"] = causal
    variants.run(argparse.Namespace(**settings, only=["gated_alibi", "gated"]))
    rows = json.loads((tmp_path / "speed.json").read_text())
    assert [(row["variant"], row["beams"]) for row in rows] == [
        (name, beams) for name in ("gated_alibi", "gated") for beams in (1, 2)
    ]
    for row in rows:
        assert row["seconds"] > 0 and row["ratio"] == pytest.approx(row["seconds"] / row["paper"])
    assert len(capsys.readouterr().out.splitlines()) == 5
    with pytest.raises(ValueError, match="--only gate: expected some of sinusoidal, sinusoidal_halves, "):
        variants.run(argparse.Namespace(**settings, only=["gate"]))
