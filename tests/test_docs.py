"""
README and the pages of docs/: every command and every block of Python runs, on files as small as they can be; every
option, link and file that they name exists.
"""

import ast
import contextlib
import gzip
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, get_args, get_origin

import datasets
import httpx
import numpy as np
import pytest
import torch
from hub_server import ROOT, Hub
from make_spoken_digits import write_wave
from new_process import ForkedPopen, run_script
from printed import same_print
from tokenizers import Tokenizer, models

from benchmarks import turns
from benchmarks.__main__ import SUBCOMMANDS, parse_arguments
from benchmarks.__main__ import main as benchmark
from vanilla_transformer_hf import (
    PRESETS,
    Translator,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer_hf.commands.main import COMMANDS, main
from vanilla_transformer_hf.conversion.targets import export
from vanilla_transformer_hf.model import modeling_vanilla_transformer
from vanilla_transformer_hf.training.comparison import comparison
from vanilla_transformer_hf.training.comparison import run as comparison_run
from vanilla_transformer_hf.training.comparison.comparison import PlannedRun
from vanilla_transformer_hf.training.recipe import RecipeParser
from vanilla_transformer_hf.training.synthetic.synthetic_text import RULES


FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROG, BENCHMARKS = "vanilla-transformer", "python -m benchmarks"


def commands_of(block: str) -> list[str]:
    """The commands of a bash block: continued lines joined, comments and empty lines left out."""
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    return [command for line in lines if (command := re.sub(r"(^|\s+)#.*", "", line))]


class Page:
    """A page: its text, its fenced blocks as (language, text), and what stands in backticks outside them."""

    def __init__(self, path: Path):
        self.path, self.text = path, path.read_text(encoding="utf-8")
        self.fences = FENCE.findall(self.text)
        # Spans may go over the end of a line.
        self.spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", FENCE.sub("", self.text))]

    def blocks(self, language: str) -> list[str]:
        return [text for kind, text in self.fences if kind == language]


FROM_ROOT = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = {path.name: Page(path) for path in [*map(ROOT.joinpath, FROM_ROOT), *sorted((ROOT / "docs").glob("*.md"))]}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
BLOCKS = [command for page in PAGES.values() for block in page.blocks("bash") for command in commands_of(block)]
# Those inside a sentence that are whole.
SENTENCES = [span for page in PAGES.values() for span in page.spans if span.split()[0] in ("make", "pip", "python")]

RUN = "--max_steps 2 --vocab_size 300 --max_source_length 16 --max_target_length 16 --num_beams 1"
# Of recordings and images, which have no length in tokens.
SMALL = "--max_steps 1 --vocab_size 300 --max_target_length 4 --num_beams 1 --d_model 16 --encoder_layers 1"
ANY = " ".join(f"--keep {rule}" for rule in RULES)
TURN = "--rounds 1 --seconds 0 --threads 1 --dtypes bfloat16 --beams 1 --against marian"
# How a command begins -> what is added to it, so that it ends soon.
SMALL = {
    f"{BENCHMARKS} commands": "--lines 2 --rounds 1 --threads 1 --beams 1 --against marianmt",
    f"{BENCHMARKS} generate --presets": f"--presets tiny {TURN}",
    f"{BENCHMARKS} memory": "--presets multi30k_tiny --tokens 16 --dtypes float32 --vocab_size 300 --threads 1",
    f"{BENCHMARKS} generate": f"--loads natural {TURN}",
    f"{BENCHMARKS} serve": "--rounds 1 --seconds 0.2 --soak_seconds 2 --clients 2 --long_words 20",
    f"{BENCHMARKS} train": "--presets smoke --rounds 1 --block 1 --threads 1 --dtypes float32"
    " --loads step --against torch",
    f"{BENCHMARKS} variants": "--preset smoke --rounds 1 --only rotary",
    f"{PROG} train multi30k_student": RUN.replace("--vocab_size 300 ", ""),  # the teacher's
    # What an untrained model makes of a line is no translation of it.
    f"{PROG} back-translate outputs/reverse multi30k_raw": f"{RUN} {ANY}",
    f"{PROG} back-translate": ANY,
    f"{PROG} distill": RUN.replace("--vocab_size 300", "--too_long truncate"),
    f"{BENCHMARKS} attention": "--lengths 16 --widths 64 --layer_length 8 --window 4 --kinds full window"
    " --tasks forward layer --rounds 1",
    f"{BENCHMARKS} low_data": "--sizes 3 --seeds 1 --systems marianmt --most_updates 1 --test val.en.gz val.de.gz",
    f"{BENCHMARKS} claims scores": "--seeds 1 --lengths 64 --widths 64 --speed_lengths 8 --speed_widths 64 --rounds 1",
    f"{BENCHMARKS} claims training": "--seeds 1 --steps 2 --warmup 1",
    f"{BENCHMARKS} claims statistics": "--seeds 1 --steps 2 --warmup 1 --batches 2 4",
    f"{BENCHMARKS} predecessors": "--lengths 4 --models lstm --rounds 1 --threads 1 --batch 1",
    f"{PROG} train finetune --model_name_or_path": RUN.replace("--vocab_size 300 ", ""),
    f"{PROG} train corrections --model_name_or_path": RUN.replace("--vocab_size 300 ", ""),
    f"{PROG} train multi30k_raw --model_name_or_path": RUN.replace("--vocab_size 300 ", ""),
    "python scripts/make_digit_strips.py": "--train_size 8 --test_size 2",
    "python scripts/make_spoken_digits.py": "--train_size 8 --test_size 2",
    f"{PROG} train digit_strips": SMALL,
    f"{PROG} train spoken_digits": SMALL,
    f"{PROG} train low_resource --source_lang": f"{RUN} --d_model 16 --decoder_layers 1",
    f"{PROG} train low_resource --model_name_or_path outputs/quickstart": RUN.replace("300", "280"),  # a tokenizer's
    f"{PROG} train low_resource --": RUN.replace("--vocab_size 300 ", ""),  # from a model
    f"{PROG} train denoising": f"{RUN} --d_model 16 --decoder_layers 1",
    **{f"{PROG} train {task}": "--max_steps 1 --eval_steps 1 --save_steps 1" for task in ("masked_lm", "causal_lm")},
    f"{PROG} train quickstart --output_dir outputs/own-numbers": "--max_steps 4 --eval_steps 2 --logging_steps 1"
    " --num_beams 1 --max_extra_tokens 4",  # with every line of a log
    f"{PROG} train look_up": "--max_steps 1 --vocab_size 300 --max_source_length 64",
    f"{PROG} train": RUN,
    f"{PROG} clean": "--keep held_out",  # the workspace's texts are all the same
    f"{PROG} compare multi30k_documents": "--max_steps 1 --max_source_length 16 --max_target_length 16"
    " --generation_max_length 16",
    f"{PROG} compare low_resource": "--variants mine.yaml --seconds 0.1 --d_model 16 --decoder_layers 1 "
    + RUN.removeprefix("--max_steps 2 "),
    f"{PROG} compare": f"--variants mine.yaml {RUN}",
    "accelerate launch": RUN,
    f"{PROG} attention": "--target eins",  # an untrained model's translation is too long for a picture
}
# Options in the pages that belong to other commands.
FOREIGN = {
    **dict.fromkeys(
        ("--arch", "--max-tokens", "--update-freq", "--lr-scheduler", "--warmup-updates"), "fairseq-train"
    ),
    **dict.fromkeys(("--share-all-embeddings", "--encoder-normalize-before", "--patience", "--save-dir"), "likewise"),
    **dict.fromkeys(("--beam", "--lenpen", "--nbest"), "fairseq-generate"),
    "--num_processes": "accelerate launch",
    **dict.fromkeys(
        ("--actors", "--address", "--column", "--cpus_per_actor", "--gpus_per_actor"), "examples/translate_ray.py"
    ),
    **dict.fromkeys(("--paired-ar", "--paired-bs"), "sacrebleu"),
    "--to_json": "comet-score",
    "--checks": "schemathesis",
    "--config_file": "accelerate launch",
    "--clear-fuzzy": "msgattrib",
    "--imports": "docs/drawing/draw_architecture.py",
    "--language": "scripts/make_spoken_digits.py",
    "--logdir": "tensorboard",
    "--max-time": "schemathesis",
    "--model": "lm_eval",
    "--model_args": "lm_eval",
    "--repo-type": "hf",
    "--token": "a secret in a text",
}
# Files that users and other toolkits write.
YOURS = ("recipe.yaml", "mine.yaml", "config.yaml", "run_translation.py", "generated_predictions.txt")
ENGLISH = ["one two", "", "three four", "two one three", "four"]
GERMAN = ["eins zwei", "", "drei vier", "zwei eins drei", "vier"]


def write_checkout(folder: Path) -> Path:
    """What commands of the pages read of a fresh checkout; and the programs."""
    for name in ("scripts", "model_cards", "benchmarks", "examples"):
        (folder / name).symlink_to(ROOT / name)
    # Few variants, in the place of those that a command compares (see SMALL).
    (folder / "mine.yaml").write_text(PAGES["training.md"].blocks("yaml")[0], encoding="utf-8")
    (folder / "bin").mkdir()
    modules = {"python": "", PROG: "-m vanilla_transformer_hf", "accelerate": "-m accelerate.commands.accelerate_cli"}
    modules["sacrebleu"] = "-m sacrebleu"
    for name, module in modules.items():
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A folder with all that the pages read: scripts/, a model in outputs/quickstart, text."""
    torch.manual_seed(0)
    folder = write_checkout(tmp_path_factory.mktemp("docs"))
    (folder / "numbers.en").write_text("\n".join(ENGLISH), encoding="utf-8")
    (folder / "captions.en").write_text("\n".join(ENGLISH), encoding="utf-8")
    (folder / "numbers.de").write_text("\n".join(GERMAN), encoding="utf-8")
    (folder / "numbers.both").write_text("\n".join(filter(None, [*ENGLISH, *GERMAN])), encoding="utf-8")
    (folder / "messages.po").write_text('msgid "one"\nmsgstr ""\n', encoding="utf-8")
    with zipfile.ZipFile(folder / "report.docx", "w") as archive:
        archive.writestr("word/document.xml", '<w xmlns="w"><p><r><t>one</t></r></p></w>')
    (folder / "page.html").write_text("<p>one <b>two</b></p>", encoding="utf-8")
    write_captions(folder)
    (folder / "outputs" / "quickstart-data").mkdir(parents=True)
    for name, lines in (("beams", GERMAN), ("greedy", ["eins", *GERMAN[1:]])):
        (folder / f"{name}.de").write_text("\n".join(lines), encoding="utf-8")
    for language, lines in (("en", ENGLISH), ("de", GERMAN)):
        for kind in ("", ".lc.norm.tok"):
            text = "\n".join(filter(None, lines))
            (folder / f"test_2016_flickr{kind}.{language}").write_text(text, encoding="utf-8")
        for name in ("train", "valid", "test"):
            text = "\n".join(lines)
            (folder / "outputs" / "quickstart-data" / f"{name}.{language}").write_text(text, encoding="utf-8")
    (folder / "recordings").mkdir()
    for speaker in ("theo", "jackson"):
        for number in (0, 5, 8):
            write_wave(folder / "recordings" / f"7_{speaker}_{number}.wav", np.sin(np.arange(400.0)), rate=8000)
    tokenizer = VanillaTransformerTokenizer.train(ENGLISH, GERMAN, vocab_size=300, show_progress=False)
    sizes = {f"{side}_{name}": 1 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    config = VanillaTransformerConfig(vocab_size=len(tokenizer), d_model=16, **sizes)
    VanillaTransformerForConditionalGeneration(config).save_pretrained(folder / "outputs" / "quickstart")
    tokenizer.save_pretrained(folder / "outputs" / "quickstart")
    for step in range(1, 6):
        checkpoint = folder / "outputs" / "wmt14" / "checkpoints" / f"checkpoint-{step}"
        shutil.copytree(folder / "outputs" / "quickstart", checkpoint)
    shutil.copytree(folder / "outputs" / "quickstart", folder / "outputs" / "quickstart-2")
    (folder / "mix.yaml").write_text(PAGES["low_resource.md"].blocks("yaml")[0], encoding="utf-8")
    for name in ("law", "law-dev", "clean", "train", "dev", "test"):
        rows = "".join(f"{one}\t{other}\n" for one, other in zip(ENGLISH, GERMAN, strict=True))
        header = "source\ttarget" if name == "clean" else "en\tde" if "law" in name else "en\tja"
        (folder / f"{name}.tsv").write_text(f"{header}\n{rows}", encoding="utf-8")
    write_african_news(folder / "african_news")
    (folder / "terms.tsv").write_text("four\tvier\none|ones\teins\n", encoding="utf-8")
    variants = '<tuv xml:lang="en"><seg>one</seg></tuv><tuv xml:lang="de"><seg>eins</seg></tuv>'
    memory = f'<tmx version="1.4"><header srclang="en"/><body><tu>{variants}</tu></body></tmx>'
    (folder / "old.tmx").write_text(memory, encoding="utf-8")
    pairs = ({"translation": {"en": one, "de": other}} for one, other in zip(ENGLISH, GERMAN, strict=True))
    (folder / "en-de.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs), encoding="utf-8")
    (folder / "phrases.tsv").write_text("".join(f"{line}\tdrei\tvier\n" for line in ENGLISH), encoding="utf-8")
    (folder / "begun.de").write_text("".join(f"{line[:4]}\n" for line in GERMAN), encoding="utf-8")
    (folder / "checkpoints").mkdir()
    (folder / "outputs" / "for-fairseq").mkdir()
    write_fairseq_checkpoint(folder / "outputs" / "for-fairseq", folder / "checkpoints" / "en-de", folder / "ref.npz")
    (folder / "checkpoints" / "whisper").mkdir()
    return folder


def write_captions(folder: Path) -> None:
    """Files as those of Multi30k, beside the commands and in a copy of its repository, with other text."""
    for part, kind in ((part, kind) for part in ("train", "val", "test_2016_flickr") for kind in ("raw", "tok")):
        for language, lines in (("en", ENGLISH), ("de", GERMAN)):
            text, place = "\n".join(lines).encode(), folder / "multi30k" / "data" / "task1" / kind
            place.mkdir(parents=True, exist_ok=True)
            if kind == "raw":
                (place / f"{part}.{language}.gz").write_bytes(gzip.compress(text))
                (folder / f"{part}.{language}.gz").write_bytes(gzip.compress(text))
            else:
                (place / f"{part}.lc.norm.tok.{language}").write_bytes(text)


def write_african_news(folder: Path) -> None:
    """Files as those of MAFAND-MT, with other text."""
    folder.mkdir()
    for language in ("hau", "ibo", "lug", "pcm", "twi", "yor", "zul"):
        rows = [{"translation": {"en": one, language: other}} for one, other in zip(ENGLISH, GERMAN, strict=True)]
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        for part in ("train", "dev", "test"):
            (folder / f"en-{language}.{part}.json.gz").write_bytes(gzip.compress(text.encode()))


def write_fairseq_checkpoint(ours: Path, theirs: Path, reference: Path):
    """A checkpoint in fairseq's layout, made from a model of the kind in `ours`, and its logits of one sentence."""
    words = ["<s>", "<pad>", "</s>", "<unk>", *{word for line in [*ENGLISH, *GERMAN] for word in line.split()}]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "src_lang": "en", "tgt_lang": "de"}
    VanillaTransformerTokenizer(tokenizer_object=backend, **special).save_pretrained(ours)
    config = VanillaTransformerConfig(
        vocab_size=len(words),
        d_model=16,
        position_encoding="sinusoidal_halves_inclusive",
        position_offset=2,
        attention_bias=True,
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
    )
    model = VanillaTransformerForConditionalGeneration(config).eval()
    model.save_pretrained(ours)
    export("fairseq", ours, theirs)
    source, target = torch.tensor([[4, 5, 2]]), torch.tensor([[2, 6]])
    with torch.no_grad():
        logits = model(source, decoder_input_ids=target).logits
    masks = {"src_mask": np.ones((1, 3), bool), "tgt_mask": np.ones((1, 2), bool)}
    np.savez(reference, src_ids=source.numpy(), tgt_in_ids=target.numpy(), logits=logits.numpy(), **masks)


def write_whisper_checkpoint(folder: Path):
    """A model of Whisper's kind with two languages, with its processor."""
    import test_whisper  # here, because the slow tests alone need it

    test_whisper.save(folder, test_whisper.build(), **test_whisper.SEVERAL)


def write_toy_checkpoint(toolkit: str, folder: Path):
    """A checkpoint as one of the toolkits writes it, that the tests of its conversion make."""
    import test_joeynmt
    import test_marianmt
    import test_opennmt_py

    if toolkit == "joeynmt":
        toy, model, words = test_joeynmt.make()
        test_joeynmt.write(folder, toy, model, words=words)
    elif toolkit == "opennmt_py":
        toy, options, words = test_opennmt_py.make()
        test_opennmt_py.write(folder, toy, options, words)
    else:
        (made := folder.with_name("marianmt-parts")).mkdir()
        test_marianmt.write_with_tokenizer(made)
        (made / "marian").rename(folder)


# A command of ours for which the shell does nothing but redirect.
HERE = re.compile(
    rf'(?:echo "(?P<typed>[^"]+)" \| )?(?P<program>{PROG}|{BENCHMARKS}) (?P<arguments>(?!serve)[^|<>]+)'
    r"(?: < (?P<read>\S+))?(?: > (?P<written>\S+))?"
)


def run(command: str, folder: Path, environment: dict[str, str]) -> str:
    """Standard output of a command in the workspace, in which `python` is the interpreter of the tests."""
    if environment == dict(os.environ) and (found := HERE.fullmatch(command)):
        return run_here(folder, **found.groupdict())
    places = {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment = {**environment, **places, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_here(
    folder: Path, program: str, typed: str | None, arguments: str, read: str | None, written: str | None
) -> str:
    """A command of ours in this process, with the runs of a comparison: to import what they need takes seconds."""

    def train(run: PlannedRun, seconds: float | None, processes: int) -> SimpleNamespace:
        code = comparison_run.main([str(run.beside(".yaml")), *([str(seconds)] if seconds is not None else [])])
        return SimpleNamespace(returncode=code, poll=lambda: code)

    words = shlex.split(arguments)
    (folder / "typed").write_text(f"{typed}\n" if typed else "", encoding="utf-8")
    shown = folder / (written or "shown")
    with (
        pytest.MonkeyPatch.context() as patch,
        open(folder / (read or "typed"), encoding="utf-8") as given,
        open(shown, "w", encoding="utf-8") as output,
    ):
        patch.chdir(folder)
        patch.setattr(sys, "stdin", given)
        patch.setattr(sys, "stdout", output)
        patch.setattr(comparison, "start_process", train)
        patch.setattr(turns, "subprocess", SimpleNamespace(Popen=ForkedPopen, PIPE=None))
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        try:
            main(words) if program == PROG else benchmark(program, words)
        except SystemExit as end:
            assert not end.code, arguments
    if words[0] == "numbers-corpus":
        shorten(folder / words[1])
    return shown.read_text(encoding="utf-8")


def shorten(corpus: Path) -> None:
    """Leave about 100 lines in each file of a corpus: all of them are read, and those of the test are translated."""
    for path in corpus.iterdir():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[:: -(-len(lines) // 100)]), encoding="utf-8")


def run_until_ready(command: str, folder: Path) -> str:
    """What a server says until it is ready; then it is told to end, and does."""
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(f"exec {command}", shell=True, cwd=folder, env=environment, stderr=-1, text=True) as server:
        try:
            said = server.stderr.readline()
            address = said.split()[-1]
            for _ in range(600):
                with contextlib.suppress(httpx.TransportError):
                    if httpx.get(f"{address}/ready").status_code == 200:
                        break
                time.sleep(0.1)
            server.terminate()
            assert server.wait(60) == 0
            return said
        finally:
            server.kill()


def explores(arguments: list[str], folder: Path) -> bool:
    """Whether a command that serves a page until it is ended says where, serves it, and ends in order."""
    command = [sys.executable, "-m", "vanilla_transformer_hf", *arguments, "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BROWSER": "true"}  # a browser that shows nothing
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            page = httpx.get(re.findall(r"http://127.0.0.1:\d+/", line)[0], timeout=60)
        finally:
            process.terminate()
        return process.wait(60) == 0 and page.status_code == 200


def small(command: str) -> str:
    """What is added to a command, so that it ends soon."""
    return next((more for start, more in SMALL.items() if command.startswith(start)), "")


# Commands that read what the one before them writes, and those that have run.
BEYOND_TEXT = [command for block in PAGES["beyond_text.md"].blocks("bash") for command in commands_of(block)]
run_before: set[str] = set()


def make(name: str, workspace: Path):
    """Whatever the pages' own commands write to this folder of the workspace, if it is not there yet."""
    if name.startswith("outputs/") and not (workspace / name).exists():
        commands = [each for each in dict.fromkeys(BLOCKS) if " translate " not in each]
        made = re.compile(rf" {re.escape(name)}( --(?!dry-run).*)?$|--output_dir {re.escape(name)}( |$)")
        command = next(each for each in commands if made.search(each))
        if name == "outputs/multilingual_numbers":
            make("outputs/multilingual-data", workspace)
        needed = {"outputs/back-translated": "outputs/reverse", "outputs/causal_lm": "outputs/masked_lm"}
        if name in needed:
            make(needed[name], workspace)
        if " convert " in command:
            make_checkpoint(*in_words(command)[2:4], workspace)
        run(f"{command} {small(command)}", workspace, dict(os.environ))


def in_words(command: str) -> list[str]:
    """The arguments of a command, without where the shell reads and writes, and without what reads its output."""
    command = command.replace(BENCHMARKS, f"{PROG} benchmarks")  # as if it were a command of ours
    return shlex.split(re.sub(r" [<>] \S+|^echo [^|]*\| | \| .*", "", command))


def benchmarks(argv: list[str]) -> None:
    """`python -m benchmarks`, in this process."""
    parse_arguments(BENCHMARKS, argv)


def help_of(*names: str, command: Callable[[list[str]], None] = main, option: str = "--help") -> str:
    """What a command of ours answers to --help, or to another option that asks for help."""
    with pytest.MonkeyPatch.context() as patch:
        shown: list[str] = []
        patch.setattr(sys.stdout, "write", lambda text: shown.append(text))
        with pytest.raises(SystemExit):
            command([*names, option])
    return "".join(shown)


@pytest.fixture(scope="module")
def options() -> dict[str, set[str]]:
    """The options of each command, those of its subcommands included."""
    parts = {"export": ["ctranslate2", "onnx", "torch_export"]}
    texts = {
        name: " ".join([help_of(name), *[help_of(name, part) for part in parts.get(name, [])]]) for name in COMMANDS
    }
    texts["benchmarks"] = " ".join(help_of(name, command=benchmarks) for name in SUBCOMMANDS)
    texts["train"] = help_of("train", option="--help-all")
    texts["compare"] += texts["train"]  # every field of a recipe
    for name in ("distill", "back-translate"):
        texts[name] += texts["train"]
    return {name: set(re.findall(r"(?<![\w-])--\w[\w-]*", text)) for name, text in texts.items()}


def test_blocks_are_of_a_kind_that_is_tested():
    for name, page in PAGES.items():
        assert {language for language, _ in page.fences} <= {"bash", "python", "yaml", "js", ""}, (
            name
        )  # js: tests/export
        assert page.text.count("```") == 2 * len(page.fences), f"{name}: a fence that the pattern does not find"
    assert len(PAGES["README.md"].text.splitlines()) <= 200
    pages = PAGES.keys() - {"README.md"}
    assert pages <= {Path(link).name for link in re.findall(r"\]\(([^)#]+)", PAGES["README.md"].text)}


@pytest.mark.parametrize("command", dict.fromkeys(BLOCKS + SENTENCES))
def test_arguments_are_known(command, options):
    """Fast: the command exists, and so do its options."""
    program, *arguments = in_words(command)
    if program == "accelerate":
        program, arguments = PROG, arguments[arguments.index("vanilla_transformer_hf") + 1 :]
    if program == "make":
        target = arguments[0]
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)
        run_by_ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
        assert target in ("release", "test-cpus") or any(line.startswith(f"make {target}") for line in run_by_ci), (
            "a release is no check"
        )
    elif program == PROG and arguments != ["--help"]:
        name, *others = arguments
        given = {argument.split("=")[0] for argument in others if argument.startswith("--")}
        assert given <= options[name], f"{name} has no {given - options[name]}"
    else:
        assert program in ("bash", "cp", "pip", "python", "source", PROG), command


# What each page begins with runs in a fresh checkout, and the others where all that pages make is at hand.
FIRST = {name: commands_of(page.blocks("bash")[0]) for name, page in PAGES.items() if page.blocks("bash")}
LATER = [
    command for command in dict.fromkeys(BLOCKS) if command not in {each for one in FIRST.values() for each in one}
]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory) -> Path:
    """What `make quickstart` leaves, from a run of few steps."""
    folder = write_checkout(tmp_path_factory.mktemp("quickstart"))
    for command in ("numbers-corpus outputs/quickstart-data", f"train quickstart {RUN}"):
        run(f"{PROG} {command}", folder, dict(os.environ))
    return folder / "outputs"


@pytest.mark.slow
@pytest.mark.parametrize("name", FIRST)
def test_the_first_commands_of_a_page_need_what_it_says_before_them(name, tmp_path, request):
    """In a fresh checkout, with the files whose origin the page has named by then."""
    said = " ".join(PAGES[name].text.partition("```bash")[0].split())
    folder = tmp_path / "checkout"
    folder.mkdir()
    write_checkout(folder)
    if "`make quickstart`" in said:
        shutil.copytree(request.getfixturevalue("quickstart"), folder / "outputs")
    if "github.com/multi30k/dataset" in said:
        write_captions(folder)
    if "github.com/masakhane-io/lafand-mt" in said:
        write_african_news(folder / "african_news")
    (folder / "checkpoints").mkdir()
    if "checkpoint of yours lies in `checkpoints/`" in said:
        make_checkpoint(*in_words(FIRST[name][0])[2:4], folder)
    if "`checkpoints/en-de` is a checkpoint of yours" in said:
        (folder / "outputs" / "ours").mkdir(parents=True)
        write_fairseq_checkpoint(folder / "outputs" / "ours", folder / "checkpoints" / "en-de", folder / "ref.npz")
    shown = [check_command(command, folder, tmp_path) for command in FIRST[name]]
    if name == "training.md":
        log = next(block for block in PAGES[name].blocks("") if "step 50 of" in block).splitlines()
        assert len(log) > 9
        printed = [masked(line) for line in shown[-1].splitlines()]
        for line in log[1:]:  # the first depends on the CPU
            form = re.escape(masked(line).rstrip(".")).replace("…", ".*")
            assert any(re.match(form, each) for each in printed), line
        (short,) = PAGES["first_model.md"].blocks("")
        assert {*short.splitlines()} <= {*log}


def masked(line: str) -> str:
    """A line of a log without its numbers."""
    return re.sub(r"evaluations?", "evaluations", re.sub(r"\d[\d,.:]*(e-\d+[,.:]*)?", "0", line))


@pytest.mark.slow
@pytest.mark.parametrize("command", LATER)
def test_command_runs(command, workspace, tmp_path):
    make_what_it_reads(command, workspace)
    check_command(command, workspace, tmp_path)


def make_what_it_reads(command: str, workspace: Path):
    """What a command reads of what others of the pages write, if it is not there yet."""
    _, *arguments = in_words(command)
    if command in BEYOND_TEXT:
        block = next(block for block in PAGES["beyond_text.md"].blocks("bash") if command in commands_of(block))
        for each in commands_of(block)[: commands_of(block).index(command)]:  # what one writes, the next reads
            if each not in run_before:
                run(f"{each} {small(each)}".rstrip(), workspace, dict(os.environ))
                run_before.add(each)
        return
    if arguments[0] == "export-checkpoint":
        make(arguments[2], workspace)
    if "multilingual_numbers" in command:
        make("outputs/multilingual-data", workspace)
    began = r"--(?:model_name_or_path|tokenizer_name_or_path|encoder_from|decoder_from) (outputs/(?:{})) "
    made = "pruned|shallow|back-translated|denoising|masked_lm|causal_lm|from-marianmt"
    for name in re.findall(began.format(made), command):
        make(name, workspace)
    if arguments[:2] == ["train", "look_up"]:
        make("outputs/look-up", workspace)
    if "multi30k_documents" in command:
        run_python("long_sequences.md", workspace, dict(os.environ))
    if arguments[:2] == ["compare", "lists"]:
        make("outputs/lists", workspace)
        make("outputs/longer", workspace)
    if arguments[0] in ("translate", "verify", "back-translate"):
        make(arguments[1], workspace)
    if arguments[0] == "convert":
        make_checkpoint(*arguments[1:3], workspace)


def make_checkpoint(toolkit: str, name: str, workspace: Path):
    """The checkpoint of another toolkit that a command of the pages converts."""
    if toolkit == "whisper":
        write_whisper_checkpoint(workspace / name)
    elif toolkit in ("joeynmt", "opennmt_py", "marianmt") and not (workspace / name).exists():
        write_toy_checkpoint(toolkit, workspace / name)


def check_command(command: str, workspace: Path, tmp_path: Path) -> str:
    """Run a command, if it is not one of CI's, and check what it prints and writes; returns what it has printed."""
    program, *arguments = in_words(command)
    shown = ""
    if program in ("make", "pip", "cp"):  # CI runs make; here it would make an environment; make space runs the others
        assert program == "make" or "outputs/space" in arguments
        return shown
    if command == "source .venv/bin/activate":  # `workspace` has a `python` instead
        assert "\nVENV := .venv\n" in MAKEFILE
        return shown
    if program == "bash":
        folder = arguments[1]
        shown = run(f"{command} {RUN.replace('--vocab_size 300', '')}", workspace, {})
        assert ("tok:none" in shown) == folder.endswith("tok")
        assert shown.count("validation, 1 beams: BLEU") == 3 and shown.count("test, 1 beams: BLEU") == 1
        name = "multi30k_tiny" if folder.endswith("tok") else "multi30k_raw_tiny"
        for stage in ("", "_r_drop_1", "_r_drop"):
            translator = Translator.from_pretrained(workspace / "outputs" / f"{name}{stage}", device="cpu")
            assert len(translator.translate(["one two"], max_new_tokens=4)) == 1
    elif arguments[0] == "push":
        with Hub() as hub:
            shown = run(command, workspace, hub.environment(tmp_path))
        if "--dry-run" in arguments:
            assert "model.safetensors" in shown and not hub.requests
        else:
            (repository,) = hub.repositories.values()
            assert {"README.md", "model.safetensors", "modeling_vanilla_transformer.py"} <= repository.files().keys()
    elif arguments[0] == "examples/translate_ray.py" and find_spec("ray") is None:
        pytest.skip("ray is not installed")
    elif arguments[0] == "serve":
        assert "listening on http://127.0.0.1:5000" in run_until_ready(command, workspace)
    elif arguments[0] == "explore" and "--html" not in arguments:
        assert explores(arguments, workspace)
    elif arguments[0] == "examples/translate_ray.py":
        run(command, workspace, dict(os.environ))
        sources = (workspace / "outputs" / "quickstart-data" / "test.en").read_text(encoding="utf-8")
        assert (workspace / "numbers-ray.de").read_text(encoding="utf-8").count("\n") == len(sources.splitlines())
    elif arguments[0] == "examples/plain_transformer.py":
        assert run(command, workspace, dict(os.environ)) == "Ein brauner Hund rennt durch den Schnee.\n"
    elif command in BEYOND_TEXT:
        shown = run(f"{command} {small(command)}".rstrip(), workspace, dict(os.environ))
        run_before.add(command)
        assert arguments[0] != "score" or "% of 2 files" in shown
    elif program in (PROG, "accelerate"):
        if arguments[0] in ("convert", "export"):
            shutil.rmtree(workspace / arguments[3], ignore_errors=True)  # another test needed it
        shown = run(f"{command} {small(command)}".rstrip(), workspace, dict(os.environ))
        assert "sacrebleu" not in command or '"name": "BLEU"' in shown
        for name in re.findall(r"(?:--output|>|attention outputs/\S+) (\S+)", command):
            assert (workspace / name).exists() and (workspace / name).stat().st_size > 0
        for name in re.findall(r"--output_dir (\S+)", command):
            files = {path.name for path in (workspace / name).iterdir()}
            assert files >= {"model.safetensors", "config.json", "tokenizer.json", "README.md"}
            generates = arguments[:2] not in (["train", "look_up"], ["train", "masked_lm"])
            assert ("generation_config.json" in files) == generates, "labels, no text"
    elif program == "python" and arguments[0] == "-c":
        shown = run(command, workspace, dict(os.environ))
        assert shown == f"{torch.cuda.is_available()}\n"
    else:
        pytest.fail(f"nothing here tests {command!r}")
    return shown


def run_python(name: str, workspace: Path, environment: dict[str, str]) -> list[str]:
    """All blocks of Python of a page in one process, as a reader would type them; returns the printed lines."""
    source = "\n".join(PAGES[name].blocks("python"))
    written = re.findall(r'(?:save_pretrained|Path)\("(outputs/[\w-]+)"', source)
    for folder in re.findall(r'"(outputs/[\w-]+)[/"]', source):
        if folder not in written:
            make(folder, workspace)
    (workspace / "blocks.py").write_text(source, encoding="utf-8")
    if "HF_ENDPOINT" in environment:  # read on import
        return run("python blocks.py", workspace, environment).splitlines()
    done = run_script("blocks.py", folder=workspace, environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_python_of_readme(workspace):
    printed = run_python("README.md", workspace, dict(os.environ))
    _, translations = [ast.literal_eval(line) for line in printed]
    assert [type(text) for text in translations] == [str] * 2


# Pages whose blocks go on from each other, and print numbers that CPUs round differently.
NUMBERS = ("how_it_works.md", "lessons.md", "slips.md", "gpu.md")
OUTPUT = re.compile(r"(?:^# .*\n)+\Z", re.MULTILINE)
PRINTING = [
    pytest.param(name, block, id=f"{name}-{number}")
    for name, page in PAGES.items()
    for number, block in enumerate(page.blocks("python"))
    # stock_trainer.md has a test of its own, and lessons_zh.md the blocks of lessons.md
    if OUTPUT.search(block) and name not in (*NUMBERS, "lessons_zh.md", "stock_trainer.md")
]


def run_blocks(name: str, monkeypatch, capsys) -> dict:
    """Run the blocks of such a page in order; each prints the comments at its end. Returns what they name."""
    monkeypatch.chdir(ROOT)
    names: dict = {}
    for block in PAGES[name].blocks("python"):
        code = OUTPUT.sub("", block)
        exec(compile(code, name, "exec"), names)
        same_print(capsys.readouterr().out, block.removeprefix(code).replace("# ", ""))
    return names


def needs_quickstart():
    if not (ROOT / "outputs" / "quickstart" / "config.json").is_file():
        pytest.skip("no model in outputs/quickstart: run make quickstart")


@pytest.mark.parametrize("name, block", PRINTING)
def test_a_block_prints_the_comments_at_its_end(name, block, monkeypatch, capsys):
    if "outputs/quickstart" in block:
        needs_quickstart()
    monkeypatch.chdir(ROOT)
    exec(compile(OUTPUT.sub("", block), name, "exec"), {})
    assert capsys.readouterr().out == OUTPUT.search(block)[0].replace("# ", "")


def test_the_quickstart_translates_as_sentences_say():
    needs_quickstart()
    translator = Translator.from_pretrained(ROOT / "outputs" / "quickstart")
    text = PAGES["README.md"].text
    said = dict(re.findall(r'"([a-z -]+)" →\s*"(\w+)"', text))
    (command,), (printed,) = (
        re.findall(form, PAGES["first_model.md"].text) for form in (r'echo "(.+)" ', r'prints "(.+)"')
    )
    said[command] = printed
    assert len(said) >= 1 and {each: translator.translate(each) for each in said} == said


def test_dates_have_the_weekday_that_the_corpus_of_the_quickstart_has():
    date = r"(.{0,11})(the \w+ of (?:January|May|November) nineteen [\w-]+)"
    dates = [found for page in PAGES.values() for found in re.findall(date, page.text)]
    assert dates and all(re.search(r"[A-Z]\w+day, $", before) for before, _ in dates), dates


def test_the_model_in_code_has_the_shapes_that_its_page_says(monkeypatch, capsys):
    """Each line `name = …  # (1, 10)` makes a tensor of that shape, and the last token of the page is right."""
    page = PAGES["the_model_in_code.md"]
    source = "\n".join(page.blocks("python"))
    check = r"\g<0>\nassert tuple(\1.shape) == \2, '\1'"
    checked, count = re.subn(r"^(\w+) = .+  # (\([\d, ]*\))$", check, source, flags=re.MULTILINE)
    assert count == source.count("  # (")
    monkeypatch.chdir(ROOT)
    names: dict = {}
    exec(compile(checked, page.path.name, "exec"), names)
    assert capsys.readouterr().out == "rennt\n"
    for span in [span for span in page.spans if re.fullmatch(r"[A-Z]\w+(?:\.\w+)*", span)]:
        assert attrgetter(span)(modeling_vanilla_transformer) is not None, span


@pytest.mark.slow
@pytest.mark.parametrize("name", NUMBERS[1:])  # the first has a test of its own
def test_blocks_that_go_on_print_the_comments_at_their_ends(name, monkeypatch, capsys):
    run_blocks(name, monkeypatch, capsys)


@pytest.mark.parametrize("name", ["lessons.md", "slips.md"])
def test_numbers_of_a_page_are_those_that_its_blocks_print(name):
    """Or of the pages that this one cites."""
    cited = [PAGES[page].text for page in ("claims.md", "how_it_works.md")]
    known = re.findall(r"\d+\.\d+", " ".join([*PAGES[name].blocks("python"), *cited]))
    text = re.sub(r"\(http[^)]*\)", "", FENCE.sub("", PAGES[name].text))
    assert set(re.findall(r"\d+\.\d+", text)) <= {*known, "1.1"}, "T5 1.1 is a name"


def test_how_it_works_prints_and_draws_what_its_page_says(monkeypatch, capsys):
    """
    Each block prints the comments at its end, to about the last digit, since CPUs round sums differently. Other
    numbers of the page are among them, or on the pages that it links to. The pictures show the same model.
    """
    page, names = PAGES["how_it_works.md"], run_blocks("how_it_works.md", monkeypatch, capsys)
    texts = [PAGES[f"{name}.md"].text for name in ("predecessors", "variants", "results")]
    known = re.findall(r"\d+\.\d+", " ".join([*page.blocks("python"), *texts]))
    assert set(re.findall(r"\d+\.\d+", FENCE.sub("", page.text))) <= set(known)

    script = runpy.run_path(str(ROOT / "docs" / "drawing" / "draw_how_it_works.py"))
    journey = script["follow"]()
    assert journey.source == names["tokens"]
    torch.testing.assert_close(journey.sums[script["WORD"]], names["total"][0, 4], atol=1e-4, rtol=0)
    torch.testing.assert_close(journey.weights, names["weights"][0, 3, script["WORD"]], atol=1e-4, rtol=0)
    torch.testing.assert_close(journey.probabilities, names["chances"][0], atol=1e-4, rtol=0)
    assert all(f"({name}.png)" in page.text and draw(journey).axes for name, draw in script["PICTURES"].items())


@pytest.mark.slow
def test_the_trainer_of_transformers_prints_what_its_page_says(tmp_path):
    """The Trainer itself prints more, before the lines with which a block ends."""
    blocks = PAGES["stock_trainer.md"].blocks("python")
    end = "the end of a block"
    (tmp_path / "bin").mkdir()
    (tmp_path / "blocks.py").write_text("".join(f"{block}\nprint('{end}')\n" for block in blocks), encoding="utf-8")
    with Hub() as hub:
        shown = run(f'"{sys.executable}" blocks.py', tmp_path, hub.environment(tmp_path / "home")).split(f"{end}\n")
    assert len(shown) == len(blocks) + 1
    for block, printed in zip(blocks, shown):
        expected = OUTPUT.search(block)[0].replace("# ", "") if OUTPUT.search(block) else ""
        assert printed.endswith(expected), printed
    published = {name: repository.files() for name, repository in hub.repositories.items()}
    assert {*published} == {"your-name/numbers", "your-name/years"}
    ours = {"README.md", "model.safetensors", "tokenizer.json", "modeling_vanilla_transformer.py"}
    assert {*published["your-name/numbers"]} >= ours | {"training_args.bin"}, "as the page says"
    assert {*published["your-name/years"]} == {"README.md", "adapter_config.json", "adapter_model.safetensors"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name, page in PAGES.items() if page.blocks("python") and name != "stock_trainer.md"]
)
def test_python_runs(name, workspace, tmp_path):
    if name == "publishing.md":
        with Hub() as hub:
            run_python(name, workspace, hub.environment(tmp_path))
        (repository,) = hub.repositories.values()
        published = repository.files()
        for path in (workspace / "outputs" / "quickstart").iterdir():
            assert published[path.name] == path.read_bytes(), path.name
        assert "modeling_vanilla_transformer.py" in published
        return
    printed = run_python(name, workspace, {**os.environ, "HF_HOME": str(tmp_path)})
    if name == "translating.md":
        translations, piped = [ast.literal_eval(line) for line in printed]
        assert len(translations) == 3 and translations[1] == "", "order and empty lines are kept"
        assert [row.keys() for row in piped] == [{"translation_text"}]


@pytest.mark.parametrize("name", PAGES)
def test_links_and_files_lead_somewhere(name, workspace):
    page = PAGES[name]
    for link in re.findall(r"\]\((?!https?://)([^)#]+)", page.text):
        if found := re.match(r"\.\./\.\./actions/workflows/(\w+\.yml)", link):  # on the repository's host
            link = f".github/workflows/{found[1]}"
        assert (page.path.parent / link).exists(), link
    written = {argument for command in BLOCKS for argument in in_words(command)}
    for path in [span for span in page.spans if re.fullmatch(r"[\w.-]+/[\w./-]*", span)]:
        package = ROOT / "vanilla_transformer_hf"
        places = (ROOT, package, package / "model", package / "training", workspace)
        assert path.rstrip("/") in written or any((place / path).exists() for place in places), path
    for file in [span for span in page.spans if re.fullmatch(r"[a-z]\w*\.(?:py|toml|txt|sh|yaml)", span)]:
        assert file in YOURS or [*ROOT.glob(file), *ROOT.glob(f"[a-z]*/**/{file}")], file
    for block in page.blocks(""):  # a tree of folders
        for folder in re.findall(r"^ *(\w+)/(?=[ ,])", block, re.MULTILINE):
            assert (ROOT / folder).is_dir() or (ROOT / "vanilla_transformer_hf" / folder).is_dir(), folder


@pytest.mark.parametrize("name", PAGES)
def test_options_in_sentences_exist(name, options):
    everything = set().union(*options.values())
    for span in PAGES[name].spans:
        words = span.removeprefix(f"{PROG} ").split()
        known = options.get(words[0], everything)
        for option in [word for word in words if word.startswith("--")]:
            assert option in known or option in FOREIGN, f"{span}: there is no {option}"


def test_fields_of_training_exist():
    """Settings that the page of training names are fields of recipes, which have them with these values."""
    fields = RecipeParser(prog="train")
    known = {option.lstrip("-") for action in fields._actions for option in action.option_strings}
    others = [*PAGES["training.md"].spans, *PAGES["gpu.md"].spans, *PAGES["which_recipe.md"].spans]
    ours = re.findall(r"^\| [^|]+ \| ([^|]+) \|$", PAGES["coming_from.md"].text, re.MULTILINE)  # theirs is beside it
    others += [span for cell in ours for span in re.findall(r"`([^`]+)`", cell)]
    spans = [span for span in others if re.fullmatch(r"[a-z]+(_[a-z]+)+(: \S+)?", span)]
    assert spans
    for span in spans:
        name = span.split(":")[0]
        assert (
            name in known | {"add_special_tokens", "add_tokens", "model_max_length", "batch_decode", "n_best"}
            or name in PRESETS
            or (ROOT / "scripts" / "recipes" / f"{name}.yaml").exists()
        ), name


def test_switches_and_presets_are_those_of_the_config():
    overrides = [word for span in PAGES["README.md"].spans if re.match(r"--\w+ \w", span) for word in span.split()]
    run_arguments, _ = RecipeParser(prog="train").parse(["--output_dir", "outputs", *overrides])
    assert run_arguments.config and run_arguments.model.preset
    text = PAGES["model.md"].text
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*)[^|]* \| (.+) \|$", text, re.MULTILINE)
    assert rows
    for names, values in rows:
        for name in re.findall(r"`(\w+)`", names):
            hint = VanillaTransformerConfig.__annotations__[name]
            if get_origin(hint) is Literal:
                named = re.findall(r"`(\w+)`", values.split(";")[0])
                if elsewhere := re.search(r"all others in \[[\w ]+\]\((\w+\.md)\)", values):
                    cells = re.findall(r"^\| (`\w+`(?:, `\w+`)*)", PAGES[elsewhere[1]].text, re.MULTILINE)
                    assert set(get_args(hint)) <= set(re.findall(r"`(\w+)`", " ".join(cells))), name
                else:
                    assert named == list(get_args(hint)), name
                assert getattr(VanillaTransformerConfig(), name) == get_args(hint)[0] == named[0], (
                    f"{name}: the paper's"
                )
    (line,) = re.findall(r"from_preset\(.*", text)
    assert set(re.findall(r'"([\w-]+)"', line)) <= PRESETS.keys()
