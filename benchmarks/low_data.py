"""
Models of little text, each trained to its own early stopping

`low_resource`, with and without R-Drop, MarianMT's architecture with transformers' `Seq2SeqTrainer`
(`script_marianmt_train.py`), and JoeyNMT 2.3 (`script_joeynmt.py`, in an environment of its own) learn from the same
first pairs of a shuffled text, one training at a time on one thread. `joeynmt` has the sizes of low_resource,
`joeynmt_own` those of the notebook that JoeyNMT's users of little text begin with.

    python -m benchmarks low_data --train train.en.gz train.de.gz --validation val.en.gz val.de.gz \\
        --test test.en.gz test.de.gz --sizes 1000 2000 5000 --output outputs/low_data --picture low_data.png
    python -m benchmarks low_data ... --systems joeynmt joeynmt_own --joeynmt venv-joeynmt/bin/python

The same command continues after an interruption, from the checkpoints of the training that was stopped. Of each
training: BLEU and chrF of the validation and the test text with 5 beams, CPU seconds of the whole command, evaluations
and what was repeated after interruptions included, and the updates of the weights.
"""

import argparse
import hashlib
import json
import os
import random
import resource
import signal
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml

from vanilla_transformer_hf.commands.train import RECIPES
from vanilla_transformer_hf.common.files import new_file
from vanilla_transformer_hf.common.lines import read_lines
from vanilla_transformer_hf.evaluation.scores import read_predictions, score_translations
from vanilla_transformer_hf.publishing.model_card import CardFacts
from vanilla_transformer_hf.training.data.corpora import nearest_size

from .claims_picture import draw_lines, panels
from .results import write_picture
from .turns import FOLDER, ROOT


Row = dict[str, Any]
SIDES = ("source", "target")
ROLES = ("train", "validation", "test")
OURS, JOEYNMT = ("low_resource", "without_r_drop"), ("joeynmt", "joeynmt_own")
SYSTEMS = (*OURS, "marianmt", *JOEYNMT)
BEAMS, SHUFFLE = 5, 1
# Sentences of Multi30k in an update of 1,024 tokens of one length. JoeyNMT mixes lengths, so that 2,048 of its tokens,
# padding included, are as many.
SENTENCES, JOEYNMT_TOKENS = 48, 2048
# Evaluations of MarianMT without a better chrF: three times those of low_resource, because a post-norm model can write
# one sentence for all sources for thousands of updates before it attends to them.
PATIENCE = 30
# What JoeyNMT's notebook for African languages has (masakhane-io/masakhane-mt, starter_notebook), its pieces aside.
OWN_TOKENS, OWN_PIECES = 4096, 4000
OWN_MODEL = {"layers": 6, "heads": 4, "width": 256, "inner": 1024, "dropout": 0.3, "embeddings": 0.2}
EVALUATED = 128  # sentences that are translated at once while a system trains, and at its end
SECONDS = 20  # between two notes of the CPU time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for role in ROLES:
        parser.add_argument(
            f"--{role}", nargs=2, required=True, metavar=("SOURCE", "TARGET"), help="text, line by line"
        )
    parser.add_argument("--langs", nargs=2, default=["en", "de"], metavar="LANG", help="(default: en de)")
    parser.add_argument("--sizes", nargs="+", type=int, default=[1000, 2000, 5000], help="pairs (1000 2000 5000)")
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=SYSTEMS,
        default=["low_resource", "marianmt"],
        help="(default: low_resource marianmt)",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], help="(default: 1)")
    parser.add_argument("--joeynmt", metavar="PYTHON", help="interpreter of an environment with JoeyNMT 2.3")
    parser.add_argument("--bf16", action="store_true", help="in bfloat16, which JoeyNMT does not have on a CPU")
    parser.add_argument(
        "--marianmt_rate", type=float, default=5e-4, help="learning rate of MarianMT (default: 0.0005)"
    )
    parser.add_argument("--most_updates", type=int, help="of a training (default: 2 for each pair)")
    parser.add_argument("--evaluate_every", type=int, help="updates (default: 100, or 0.02 for each pair if more)")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder of the trainings")
    parser.add_argument("--picture", metavar="FILE", help="draw the scores of all finished trainings in it, as PNG")


def write_text(arguments: argparse.Namespace) -> dict[str, dict[str, dict[str, str]]]:
    """The files of each size: role -> side -> path. The training text is the first pairs of one shuffled order."""
    folder = arguments.output / "text"
    folder.mkdir(parents=True, exist_ok=True)
    pairs: dict[str, list[tuple[str, str]]] = {}
    for role in ROLES:
        sides = [[line.strip() for line in read_lines(path)] for path in getattr(arguments, role)]
        pairs[role] = list(zip(*sides, strict=True))
    random.Random(SHUFFLE).shuffle(pairs["train"])
    if max(arguments.sizes) > len(pairs["train"]):
        raise ValueError(f"--sizes {max(arguments.sizes):,}: the training text has {len(pairs['train']):,} pairs")
    parts = {str(size): pairs["train"][:size] for size in arguments.sizes}
    parts |= {role: pairs[role] for role in ROLES[1:]}
    paths: dict[str, dict[str, str]] = {}
    for name, part in parts.items():
        paths[name] = {}
        for i, (side, lang) in enumerate(zip(SIDES, arguments.langs)):
            path = folder / f"{name}.{lang}"
            path.write_text("".join(f"{pair[i]}\n" for pair in part), encoding="utf-8")
            paths[name][side] = str(path)
    return {
        size: {"train": paths[size]} | {role: paths[role] for role in ROLES[1:]} for size in map(str, arguments.sizes)
    }


# Settings ------------------------------------------------------------------------------------------------------------
def recipe(pairs: int) -> dict[str, Any]:
    """The recipe of so many pairs."""
    settings: Row = yaml.safe_load(RECIPES["low_resource"].read_text(encoding="utf-8"))
    table = settings.pop("by_pairs")
    return settings | table[nearest_size(table, pairs)]


def our_command(row: Row, folder: Path, text: Any, langs: list[str]) -> list[str]:
    given = {f"{role}_{side}": path for role, sides in text.items() for side, path in sides.items()}
    every = {
        f"{what}_{name}": value
        for what in ("eval", "save")
        for name, value in (("strategy", "steps"), ("steps", row["evaluate_every"]))
    }
    given |= {"source_lang": langs[0], "target_lang": langs[1], "output_dir": folder / "model", "threads": 1}
    if row["system"] == "without_r_drop":
        given["r_drop"] = 0
    given |= every | {"max_steps": row["most_updates"], "max_extra_tokens": 50, "num_beams": BEAMS}
    given |= {
        "per_device_eval_batch_size": EVALUATED,
        "seed": row["seed"],
        "disable_tqdm": "true",
        "bf16": str(row["bf16"]).lower(),
    }
    options = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    return [sys.executable, "-m", "vanilla_transformer_hf", "train", "low_resource", *options]


def marianmt_settings(row: Row) -> dict[str, Any]:
    """The sizes of low_resource, and its regularization; the rate is that of post-norm models of such sizes."""
    ours = recipe(row["pairs"])
    names = [f"{s}_{n}" for s in ("encoder", "decoder") for n in ("layers", "attention_heads", "ffn_dim")]
    sizes = {name: ours[name] for name in ("d_model", "dropout", "activation_dropout", *names)}
    return {
        "sizes": sizes,
        "vocab_size": ours["vocab_size"],
        "label_smoothing": ours["label_smoothing"],
        "learning_rate": row["learning_rate"],
        "sentences": SENTENCES,
        "most_updates": row["most_updates"],
        "bf16": row["bf16"],
        "evaluate_every": row["evaluate_every"],
        "patience": PATIENCE,
        "max_length": 100,
        "beams": BEAMS,
        "evaluated": EVALUATED,
    }


def joeynmt_settings(row: Row, text: Any, langs: list[str]) -> dict[str, Any]:
    """
    A configuration of JoeyNMT. It stops when its rate, which falls after six validations without a better score, is
    below a third of the first: 12 such validations with the sizes of low_resource, 24 with its own.
    """
    is_own, ours = row["system"] == "joeynmt_own", recipe(row["pairs"])
    if is_own:
        model = OWN_MODEL
        training: Row = {"adam_betas": [0.9, 0.999], "learning_rate": 0.0003, "decrease_factor": 0.7}
        training |= {"learning_rate_min": 0.0001, "label_smoothing": 0.1, "early_stopping_metric": "ppl"}
    else:
        model = {"layers": ours["encoder_layers"], "heads": ours["encoder_attention_heads"]}
        model |= {"width": ours["d_model"], "inner": ours["encoder_ffn_dim"], "dropout": ours["dropout"]}
        model |= {"embeddings": ours["dropout"]}
        training = {"adam_betas": [0.9, 0.98], "learning_rate": 0.0005, "decrease_factor": 0.5}
        training |= {"learning_rate_min": 0.00015, "label_smoothing": ours["label_smoothing"]}
        training |= {"early_stopping_metric": "chrf"}
    tokens = OWN_TOKENS if is_own else JOEYNMT_TOKENS
    every = max(10, row["evaluate_every"] * JOEYNMT_TOKENS // tokens // 10 * 10)
    training |= {"optimizer": "adam", "normalization": "tokens", "scheduling": "plateau", "patience": 5}
    training |= {"batch_size": tokens, "batch_type": "token", "validation_freq": every, "logging_freq": 10}
    training |= {"epochs": 10**6, "updates": row["most_updates"] * JOEYNMT_TOKENS // tokens, "keep_best_ckpts": 1}
    stack = {
        "type": "transformer",
        "num_layers": model["layers"],
        "num_heads": model["heads"],
        "embeddings": {"embedding_dim": model["width"], "scale": True, "dropout": model["embeddings"]},
        "hidden_size": model["width"],
        "ff_size": model["inner"],
        "dropout": model["dropout"],
        "layer_norm": "post" if is_own else "pre",
    }
    starts = {"initializer": "xavier_uniform", "embed_initializer": "xavier_uniform", "bias_initializer": "zeros"}
    side = {"max_length": 256, "lowercase": False, "normalize": False, "level": "bpe"}
    side |= {"tokenizer_type": "sentencepiece"}
    # JoeyNMT wants one prefix for both sides, and the languages as suffixes.
    data: Row = {
        name: os.path.splitext(text[role]["source"])[0] for name, role in zip(("train", "dev", "test"), ROLES)
    }
    data |= {"dataset_type": "plain"}
    if len(list(read_lines(text["validation"]["target"]))) > ours["eval_sample"]:
        data |= {"sample_dev_subset": ours["eval_sample"]}  # of a text with more sentences alone, as JoeyNMT demands
    data |= {name: side | {"lang": lang} for name, lang in zip(("src", "trg"), langs)}
    testing = {"beam_size": BEAMS, "beam_alpha": 1.0, "batch_size": EVALUATED, "batch_type": "sentence"}
    testing |= {"eval_metrics": ["chrf"]}  # up to 1.5 times as long as the source
    model_config = starts | {"tied_embeddings": True, "tied_softmax": True, "encoder": stack, "decoder": stack}
    # JoeyNMT takes the CPU where there is no GPU.
    config = {"name": row["system"], "use_cuda": True, "data": data, "testing": testing, "training": training}
    return {"vocab_size": OWN_PIECES if is_own else ours["vocab_size"], "config": config | {"model": model_config}}


def command_of(row: Row, folder: Path, text: Any, arguments: argparse.Namespace) -> list[str]:
    """The command of a training; its settings are a file in the folder."""
    if row["system"] in OURS:
        return our_command(row, folder, text, arguments.langs)
    settings: Row = {"folder": str(folder), "seed": row["seed"], "text": text}
    if row["system"] == "marianmt":
        settings |= marianmt_settings(row)
        python, script = sys.executable, "script_marianmt_train.py"
    else:
        settings |= joeynmt_settings(row, text, arguments.langs)
        python, script = arguments.joeynmt, "script_joeynmt.py"
    (folder / "settings.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    return [python, str(FOLDER / script), str(folder / "settings.json")]


# Trainings -----------------------------------------------------------------------------------------------------------
def run_counted(command: list[str], folder: Path) -> Row:
    """
    Run a command with its output at the end of log.txt, and add its CPU seconds to those of earlier, stopped ones.
    """
    log, notes = folder / "log.txt", folder / "used.json"
    before: Row = json.loads(notes.read_text()) if notes.exists() else {"cpu_seconds": 0.0, "starts": 0}
    used = {"cpu_seconds": before["cpu_seconds"], "starts": before["starts"] + 1}
    earlier = resource.getrusage(resource.RUSAGE_CHILDREN)

    def note(seconds: float) -> None:
        used["cpu_seconds"] = before["cpu_seconds"] + seconds
        with new_file(notes) as place:
            Path(place).write_text(json.dumps(used))

    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": paths}
    with open(log, "ab") as file:
        process = psutil.Popen(command, stdout=file, stderr=file, env=environment)
        try:
            while True:
                try:
                    status = process.wait(SECONDS)
                    break
                except psutil.TimeoutExpired:
                    times = process.cpu_times()
                    note(times.user + times.system)
        finally:
            if process.is_running():
                process.terminate()
                process.wait()
            now = resource.getrusage(resource.RUSAGE_CHILDREN)
            note(now.ru_utime + now.ru_stime - earlier.ru_utime - earlier.ru_stime)
    if status:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
        raise ChildProcessError(f"{folder.name} ended with code {status}:\n{tail}")
    return used


def train(row: Row, folder: Path, text: Any, arguments: argparse.Namespace) -> Row:
    """Train a system and score its translations."""
    folder.mkdir(parents=True, exist_ok=True)
    command = command_of(row, folder, text, arguments)
    found = row | run_counted(command, folder)
    log = (folder / "log.txt").read_bytes()
    for role in ROLES[1:]:
        if row["system"] in OURS:
            lines = [triple[1] for triple in read_predictions(folder / "model" / f"predictions.{role}.tsv")]
        else:
            lines = list(read_lines(folder / f"{role}.txt"))
        scores = score_translations(lines, list(read_lines(text[role]["target"])))
        found |= {f"{role}_bleu": scores.bleu, f"{role}_chrf": scores.chrf}
        found |= {"signatures": [scores.bleu_signature, scores.chrf_signature]}
    if row["system"] in OURS:
        found["updates"] = CardFacts.read(folder / "model").steps
    else:
        found["updates"] = json.loads(log.decode(errors="replace").splitlines()[-1])["updates"]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return found | {"device": device, "command": command, "log_sha256": hashlib.sha256(log).hexdigest()}


def finished(output: Path) -> Iterator[Row]:
    for path in sorted(output.glob("rows/*/row.json")):
        yield json.loads(path.read_text(encoding="utf-8"))


def describe(row: Row) -> str:
    """A row of a table."""
    scores = (f"{row[f'{role}_bleu']:.2f} / {row[f'{role}_chrf']:.2f}" for role in ROLES[1:])
    numbers = (f"{row['updates']:,}", f"{row['cpu_seconds'] / 60:.0f}", row["log_sha256"][:8])
    return f"| {row['pairs']:,} | {row['system']} | {row['seed']} | {' | '.join((*scores, *numbers))} |"


def run(arguments: argparse.Namespace) -> None:
    """Train what is not finished, print a row of a table for each, and draw all of them."""
    if {*JOEYNMT} & {*arguments.systems} and not arguments.joeynmt:
        raise ValueError("--joeynmt: expected the interpreter of an environment with JoeyNMT 2.3")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    text = write_text(arguments)
    for size, seed, system in product(arguments.sizes, arguments.seeds, arguments.systems):
        folder = arguments.output / "rows" / f"{size}-{system}-{seed}"
        if (folder / "row.json").exists():
            continue
        row: Row = {"pairs": size, "system": system, "seed": seed, "bf16": arguments.bf16 and system not in JOEYNMT}
        row["most_updates"] = arguments.most_updates or 2 * size
        row["evaluate_every"] = arguments.evaluate_every or max(100, size // 50)
        if system == "marianmt":
            row["learning_rate"] = arguments.marianmt_rate
        found = train(row, folder, text[str(size)], arguments)
        with new_file(folder / "row.json") as place:
            Path(place).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    rows = sorted(
        finished(arguments.output), key=lambda row: (row["pairs"], SYSTEMS.index(row["system"]), row["seed"])
    )
    print("| pairs | system | seed | validation BLEU / chrF | test BLEU / chrF | updates | CPU minutes | log |")
    print("| ---: | --- | ---: | --- | --- | ---: | ---: | --- |")
    for row in rows:
        print(describe(row))
    if arguments.picture:
        figure, axes = panels(2, ("BLEU, test text", "chrF, test text"))
        for each, key in zip(axes, ("test_bleu", "test_chrf")):
            draw_lines(each, rows, "pairs", key, "system", is_log=False)
            each.set_xlabel("sentence pairs")
        axes[1].legend(frameon=False, loc="center right")
        write_picture(arguments.picture, figure, dpi=120)
