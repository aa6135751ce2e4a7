"""The arguments that all commands on streams of lines have. Nothing heavy is imported, so that --help is quick."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that all commands on streams of lines have."""
    parser.add_argument("--output", metavar="FILE", help="takes this name when it is whole (default: standard output)")
    parser.add_argument("--restart", action="store_true", help="begin FILE anew, whatever a killed run has left of it")
    parser.add_argument(
        "--batch_tokens",
        type=int,
        metavar="N",
        help="most tokens that go through the model together (default: 2048, or any with --batch_size)",
    )
    parser.add_argument(
        "--batch_size", type=int, metavar="N", help="most lines that do (default: 128, or any with --batch_tokens)"
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
        help="tokens of the longest source line that goes through the model at once (default: the model's positions)",
    )
    parser.add_argument(
        "--processes", type=int, default=1, metavar="N", help="each with a model and its share of threads"
    )
    parser.add_argument("--device", help="cpu, cuda, cuda:1, mps, … (default: an accelerator if there is one)")
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16", "float16"],
        help="floating-point type of the weights (default: the one they were saved in)",
    )
    parser.add_argument(
        "--matmul",
        default="auto",
        choices=["auto", "default", "onednn"],
        help="library of float32 matrix products on a processor (default: the fastest that does not round)",
    )
