"""README is run: every command and every line of Python in it, on files as small as they can be."""

import ast
import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from hub_server import ROOT, Hub
from tokenizers import Tokenizer, models

from vanilla_transformer_hf import (
    PRESETS,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer_hf.conversion.targets import export
from vanilla_transformer_hf.training.recipe import RecipeParser


README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
FENCES = re.findall(r"^```(\S*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)  # (language, text)
SPANS = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL))


def commands_of(block: str) -> list[str]:
    """The commands of a bash block: continued lines joined, comments and empty lines left out."""
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    return [command for line in lines if (command := re.sub(r"(^|\s+)#.*", "", line))]


# Those inside a sentence too, such as `make lint`.
COMMANDS = [command for language, text in FENCES if language == "bash" for command in commands_of(text)]
COMMANDS += [span for span in SPANS if span.split()[0] in ("make", "pip", "python")]

# How a command begins -> what is added to it, so that it ends soon.
SMALL = {
    "python scripts/benchmark.py generate": "--loads natural --rounds 1 --seconds 0 --threads 1 --dtypes bfloat16"
    " --beams 1 --against marian",
    "python scripts/benchmark.py train": "--presets smoke --rounds 1 --block 1 --threads 1 --dtypes float32"
    " --loads step --against torch",
    "python scripts/train.py": "--max_steps 2 --vocab_size 300 --max_source_length 16 --max_target_length 16"
    " --num_beams 1",
}
ENGLISH = ["one two", "", "three four", "two one three", "four"]
GERMAN = ["eins zwei", "", "drei vier", "zwei eins drei", "vier"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A folder with all that README's lines read: scripts/, a model in outputs/quickstart, text; and `python`."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("readme")
    (folder / "scripts").symlink_to(ROOT / "scripts")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (folder / "bin" / "python").chmod(0o755)
    (folder / "numbers.en").write_text("\n".join(ENGLISH), encoding="utf-8")
    (folder / "numbers.de").write_text("\n".join(GERMAN), encoding="utf-8")
    for name in ("train", "val"):
        for language, lines in (("en", ENGLISH), ("de", GERMAN)):
            (folder / f"{name}.{language}.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    tokenizer = VanillaTransformerTokenizer.train(ENGLISH, GERMAN, vocab_size=300, show_progress=False)
    sizes = {f"{side}_{name}": 1 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    config = VanillaTransformerConfig(vocab_size=len(tokenizer), d_model=16, **sizes)
    VanillaTransformerForConditionalGeneration(config).save_pretrained(folder / "outputs" / "quickstart")
    tokenizer.save_pretrained(folder / "outputs" / "quickstart")
    for step in range(1, 6):
        checkpoint = folder / "outputs" / "wmt14" / "checkpoints" / f"checkpoint-{step}"
        shutil.copytree(folder / "outputs" / "quickstart", checkpoint)
    shutil.copytree(folder / "outputs" / "quickstart", folder / "outputs" / "quickstart-2")
    (folder / "phrases.tsv").write_text("".join(f"{line}\tdrei\tvier\n" for line in ENGLISH), encoding="utf-8")
    (folder / "begun.de").write_text("".join(f"{line[:4]}\n" for line in GERMAN), encoding="utf-8")
    (folder / "checkpoints").mkdir()
    (folder / "outputs" / "for-fairseq").mkdir()
    write_fairseq_checkpoint(folder / "outputs" / "for-fairseq", folder / "checkpoints" / "en-de", folder / "ref.npz")
    return folder


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


def run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    """Standard output of a command in the workspace, in which `python` is the interpreter of the tests."""
    places = {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment = {**environment, **places, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_block_is_of_a_kind_that_is_tested():
    assert {language for language, _ in FENCES} == {"bash", "python", "yaml", ""}
    assert README.count("```") == 2 * len(FENCES), "a fence that the pattern above does not find"
    assert [language for language, _ in FENCES].count("") == 1, "the tree of files"


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_command(command, workspace, tmp_path):
    program, *arguments = shlex.split(command)
    if program == "make":  # CI runs it; here it would make an environment
        (target,) = arguments
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)
        assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    elif command == "source .venv/bin/activate":  # `workspace` has a `python` instead
        assert "\nVENV := .venv\n" in MAKEFILE
    elif command == "pip install .":  # CI does, with extras
        assert re.search(r'pip install .*"\.\[demo,test\]"$', MAKEFILE, re.MULTILINE)
    elif program == "bash":
        script, folder = arguments
        (workspace / folder).mkdir(parents=True)
        for part in ("train", "val", "test_2016_flickr"):
            for language, lines in (("en", ENGLISH), ("de", GERMAN)):
                file = workspace / folder / f"{part}.lc.norm.tok.{language}.gz"
                file.write_bytes(gzip.compress("\n".join(lines).encode()))
        small = SMALL["python scripts/train.py"].replace("--vocab_size 300", "")
        shown = run(["bash", script, folder, *small.split()], workspace, {})
        assert shown.count("validation, 1 beams: BLEU") == 3 and shown.count("test, 1 beams: BLEU") == 1
    elif arguments[0] == "scripts/push_to_hub.py":
        with Hub() as hub:
            shown = run(["bash", "-ec", command], workspace, hub.environment(tmp_path))
        if "--dry-run" in arguments:
            assert "model.safetensors" in shown and not hub.requests
        else:
            (repository,) = hub.repositories.values()
            assert {"README.md", "model.safetensors", "modeling_vanilla_transformer.py"} <= repository.files().keys()
    elif program == "python":
        if arguments[0] == "scripts/export_checkpoint.py" and not (workspace / arguments[2]).exists():
            (first,) = [other for other in COMMANDS if other.endswith(f" {arguments[2]}")]
            run(["bash", "-ec", first], workspace, dict(os.environ))
        if arguments[0] == "scripts/convert.py" and (workspace / arguments[3]).exists():
            shutil.rmtree(workspace / arguments[3])  # the way back needed it already
        if arguments[0] == "scripts/export.py" and (workspace / arguments[3]).exists():
            shutil.rmtree(workspace / arguments[3])  # so did the lines of Python
        small = next((more for start, more in SMALL.items() if command.startswith(f"{start} ")), "")
        run(["bash", "-ec", f"{command} {small}"], workspace, dict(os.environ))
        for name in re.findall(r"(?:--output|>|draw_attention.py \S+) (\S+)", command):
            assert (workspace / name).stat().st_size > 0
        for name in re.findall(r"--output_dir (\S+)", command):
            files = {path.name for path in (workspace / name).iterdir()}
            assert files >= {
                "model.safetensors",
                "config.json",
                "generation_config.json",
                "tokenizer.json",
                "README.md",
            }
    else:
        pytest.fail(f"nothing here tests {command!r}")


def test_python(workspace, tmp_path):
    """All blocks of Python in one process, from top to bottom, as a reader would type them."""
    blocks = [text for language, text in FENCES if language == "python"]
    if not (workspace / "outputs" / "quickstart-ct2").exists():
        (export_command,) = [
            command for command in COMMANDS if command.startswith("python scripts/export.py ctranslate2")
        ]
        run(["bash", "-ec", export_command], workspace, dict(os.environ))
    (workspace / "blocks.py").write_text("\n".join(blocks), encoding="utf-8")
    with Hub() as hub:
        printed = run(["python", "blocks.py"], workspace, hub.environment(tmp_path))
    batch, translations, piped = [ast.literal_eval(line) for line in printed.splitlines()]
    assert [type(text) for text in batch] == [str, str]
    assert len(translations) == 3 and translations[1] == "", "order and empty lines are kept"
    assert [row.keys() for row in piped] == [{"translation_text"}]
    (repository,) = hub.repositories.values()
    published = repository.files()
    for path in (workspace / "outputs" / "quickstart").iterdir():
        assert published[path.name] == path.read_bytes(), path.name
    assert "modeling_vanilla_transformer.py" in published


def test_links_and_paths_lead_somewhere(workspace):
    links = re.findall(r"\]\((?!https?://)([^)#]+)", README)
    paths = [span for span in SPANS if re.fullmatch(r"[\w.-]+/[\w./-]*", span)]
    for name in links + paths:
        assert (ROOT / name).exists() or (workspace / name).exists(), name
    for name in [span for span in SPANS if re.fullmatch(r"[a-z]\w*\.(?:md|py|toml|txt|yaml)", span)]:
        assert [*ROOT.glob(name), *ROOT.glob(f"*/{name}"), *ROOT.glob(f"*/*/{name}")], name


def test_the_tree_of_files_is_the_repository():
    package, *folders = re.split(r"\n(?=\S)", dict(FENCES)[""].rstrip())
    name, *lines = package.splitlines()
    modules = {path.name for path in (ROOT / name).glob("*.py")}
    packages = {f"{path.parent.name}/" for path in (ROOT / name).glob("*/__init__.py")}
    assert {line.split()[0] for line in lines} == modules | packages
    for line in folders:
        name, text = line.split(maxsplit=1)
        scripts = re.findall(r"\w+(?=, )", text) if name == "scripts/" else []
        for mentioned in [f"{script}.py" for script in scripts] + re.findall(r"\w+(?:/|\.py)", text):
            assert (ROOT / name / mentioned).exists(), name + mentioned


def test_fields_and_presets_are_those_of_the_config():
    overrides = [word for span in SPANS if span.startswith("--") for word in span.split()]
    run_arguments, _ = RecipeParser(prog="train.py").parse(["--output_dir", "outputs", *overrides])
    assert run_arguments.config and run_arguments.model.preset
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*)[^|]* \| (.+) \|$", README, re.MULTILINE)
    assert rows
    for names, values in rows:
        for name in re.findall(r"`(\w+)`", names):
            hint = VanillaTransformerConfig.__annotations__[name]
            if get_origin(hint) is Literal:
                assert re.findall(r"`(\w+)`", values.split(";")[0]) == list(get_args(hint)), name
                assert getattr(VanillaTransformerConfig(), name) == get_args(hint)[0], f"{name}: the paper's first"
    (line,) = re.findall(r"from_preset\(.*", README)
    assert set(re.findall(r'"([\w-]+)"', line)) <= PRESETS.keys()
