"""The common arguments of commands on streams of lines. Nothing heavy is imported, so that --help is fast."""

import argparse

from ...common.command_line import read_count


def add_device(parser: argparse._ActionsContainer) -> None:
    """Add what a model computes on."""
    parser.add_argument("--device", help="cpu, cuda, cuda:1, mps, … (default: an accelerator if there is one)")
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16", "float16"],
        help="floating-point type of the weights (default: the one they were saved in)",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the common arguments of commands on streams of lines."""
    parser.add_argument("--output", metavar="FILE", help="where to write (default: standard output)")
    parser.add_argument(
        "--restart", action="store_true", help="begin FILE anew, even if an interrupted run could be continued"
    )
    parser.add_argument(
        "--batch_tokens",
        type=int,
        metavar="N",
        help="most tokens in a batch (default: 2048, or unlimited with --batch_size)",
    )
    parser.add_argument(
        "--batch_size",
        type=int,
        metavar="N",
        help="most lines in a batch (default: 128, or unlimited with --batch_tokens)",
    )
    parser.add_argument(
        "--window",
        type=int,
        metavar="N",
        help="lines that are read, sorted by length, and written together (default: 2048); 1 answers each at once, "
        "in one process",
    )
    parser.add_argument(
        "--max_source_length",
        type=int,
        metavar="N",
        help="tokens of the longest source line that goes through the model at once (default: that of training, if "
        "the tokenizer records it, else the model's positions)",
    )
    parser.add_argument(
        "--target_lang_tag",
        metavar="LANG",
        help="for multilingual models: put the tag of this target language, such as de, before each source line",
    )
    parser.add_argument(
        "--on_bad_bytes",
        default="error",
        choices=["error", "replace", "skip"],
        help="input that is not UTF-8: stop before anything is written (default; a pipe is translated as far as it is "
        "valid), replace bad bytes by U+FFFD, or skip them",
    )
    parser.add_argument(
        "--processes",
        type=read_count,
        default=1,
        metavar="N",
        help="at most so many, each with its own model and an equal share of the threads: none that gets fewer than "
        "four windows of lines (with --window: one), which would not be worth its start; auto: as many as lines, "
        "idle cores and memory allow (default: 1)",
    )
    parser.add_argument(
        "--threads",
        type=read_count,
        metavar="N",
        help="threads of all processes together; auto: one for each idle core (default: one for each core; neither "
        "more than OMP_NUM_THREADS)",
    )
    add_device(parser)
    parser.add_argument(
        "--matmul",
        default="auto",
        choices=["auto", "default", "onednn"],
        help="library of float32 matrix products on a CPU (default: torch's own, unless oneDNN is clearly faster on "
        "this CPU, as measured once, and does not round)",
    )
