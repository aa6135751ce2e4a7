"""
Translate text, one sentence per line.

    python scripts/translate.py outputs/quickstart < numbers.en > numbers.de
    python scripts/translate.py outputs/quickstart --input numbers.en --output numbers.de --num_beams 4
    python scripts/translate.py outputs/quickstart --input numbers.en --n_best 4    # line, score and text as TSV
"""

import argparse
import os
import sys
from contextlib import nullcontext


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder saved by scripts/train.py, or the id of a Hub repository")
    parser.add_argument("--input", metavar="FILE", help="UTF-8 text (default: standard input)")
    parser.add_argument("--output", metavar="FILE", help="takes this name when it is whole (default: standard output)")
    parser.add_argument("--num_beams", type=int, help="beams of the search (default: what the model was saved with)")
    parser.add_argument("--n_best", type=int, metavar="N", help="write N translations per line, with number and score")
    parser.add_argument("--batch_size", type=int, default=32, help="lines translated together (default: 32)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, mps, … (default: an accelerator if there is one)")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    parser.add_argument(
        "--matmul",
        default="auto",
        choices=["auto", "default", "onednn"],
        help="library of float32 matrix products on a processor (default: the fastest that does not round)",
    )
    return parser.parse_args()


def main(arguments: argparse.Namespace) -> None:
    from transformers.utils import logging

    from vanilla_transformer_hf.matmul import describe_matmul
    from vanilla_transformer_hf.text_files import open_output
    from vanilla_transformer_hf.translation import Translator, translate_lines

    logging.set_verbosity_error()
    logging.disable_progress_bar()  # of loading weights; the one for sentences stays
    # Both files before the model, which takes longer to open.
    with (
        open(arguments.input, "rb") if arguments.input else nullcontext(sys.stdin.buffer) as source,
        open_output(arguments.output) if arguments.output else nullcontext(sys.stdout.buffer) as target,
    ):
        translator = Translator.from_pretrained(
            arguments.model, device=arguments.device, dtype=arguments.dtype, matmul_backend=arguments.matmul
        )
        if translator.matmul_rows:
            print(describe_matmul(translator.matmul, translator.matmul_rows), file=sys.stderr)
        translate_lines(
            translator,
            source,
            target,
            n_best=arguments.n_best,
            batch_size=arguments.batch_size,
            num_beams=arguments.num_beams,
        )


if __name__ == "__main__":
    try:
        main(parse_arguments())
    except BrokenPipeError:  # the reader of standard output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, ValueError) as error:
        print(f"translate.py: {error}", file=sys.stderr)
        sys.exit(2)
