"""
The console command `vanilla-transformer`, which is also `python -m vanilla_transformer_hf`.

Each command is a module of this folder with `main(prog, argv)`; only the one that is called is imported.
"""

import argparse
import atexit
import gc
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from ..common.command_line import run
from ..common.process import keep_few_kernels, wait_briefly
from ..model.config.release import VERSION


PROG = "vanilla-transformer"
# These open no model, or register where they do: `translate` may have a copy that is enough for it.
WITHOUT_MODELS = {"clean", "numbers-corpus", "score-systems", "translate", "verify"}

# Name of a command -> what it does. Its module has the same name, with underscores.
COMMANDS = {
    "train": "train a model from a recipe, or fine-tune one",
    "compare": "train variants of a recipe and compare them in a table",
    "translate": "translate text, one sentence per line",
    "serve": "translate over HTTP, the requests of all clients together",
    "score": "log-probability and perplexity of given translations",
    "score-systems": "whether translations are better than others by more than chance",
    "align": "align the words of sentences with those of their translations",
    "attention": "draw the attention weights of every head for one sentence",
    "explore": "look at every number of a model in the browser",
    "convert": "convert a checkpoint of another toolkit to this model",
    "export": "export a model for CTranslate2, ONNX Runtime or torch.export",
    "export-checkpoint": "write a model as a MarianMT, BART or fairseq checkpoint",
    "back-translate": "learn from text of one language, which a model translates",
    "distill": "train a student on the translations of its teacher",
    "prune": "remove attention heads and feed-forward units that matter least",
    "quantize": "write the folder of a model with int8 weights, a quarter of the size",
    "average": "average the weights of checkpoints",
    "verify": "compare a folder with the checksums that it holds",
    "push": "publish the folder of a model on the Hugging Face Hub",
    "clean": "leave out pairs of a corpus that would harm training",
    "tokenizer": "train a tokenizer on text files",
    "numbers-corpus": "write the quickstart's corpus of spelled-out numbers",
}

EXAMPLES = f"""examples:
  {PROG} numbers-corpus outputs/quickstart-data
  {PROG} train quickstart
  {PROG} translate outputs/quickstart < numbers.en > numbers.de
  {PROG} train --help
"""


def asks_for_help(argv: Sequence[str]) -> bool:
    """Whether a parser of arguments will print the help, or an error."""
    options = argv[: argv.index("--")] if "--" in argv else argv
    return "-h" in options or "--help" in options


def call(name: str, prog: str, argv: Sequence[str]) -> None:
    """Call a command by its name, and end the process as all commands do; `prog` is how its messages begin."""
    wait_briefly()
    keep_few_kernels()
    # Imports make 400,000 objects that stay: to look for cycles among them after every 700 took a quarter of their
    # time, and to free them one by one at the end a second.
    gc.set_threshold(20_000)
    atexit.register(gc.freeze)
    warnings.formatwarning = lambda message, *_: f"Warning: {message}\n"  # no place in the code, which is Python's
    module = import_module(f".{name.replace('-', '_')}", __package__)

    def main() -> None:
        if name not in WITHOUT_MODELS and not asks_for_help(argv):
            from .. import registration  # with transformers, which takes seconds

            registration.register(for_programs=False)
        module.main(prog, list(argv))

    run(main, prog)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line: the name of a command and its arguments."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in COMMANDS:
        return call(argv[0], f"{PROG} {argv[0]}", argv[1:])
    # Anything else is a question about the commands, or a mistake.
    parser = argparse.ArgumentParser(
        prog=PROG,
        description='Encoder–decoder Transformers of "Attention Is All You Need": train, translate, convert, publish.',
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text)
    parser.parse_args(argv)


def run_script(name: str) -> None:
    """Run a command for a file in scripts/; its messages begin with the file's name."""
    call(name, os.path.basename(sys.argv[0]), sys.argv[1:])
