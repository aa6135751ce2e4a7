"""
Write a model in the layout of another toolkit: marianmt or bart (folders of transformers), or fairseq.

    python scripts/export_checkpoint.py marianmt outputs/en-de outputs/en-de-marianmt
    python scripts/export_checkpoint.py fairseq outputs/en-de outputs/en-de-fairseq

For engines that only run the model, such as CTranslate2, there is scripts/export.py.
"""

import argparse

from vanilla_transformer_hf.common.command_line import run


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="marianmt, bart or fairseq")
    parser.add_argument("model", help="folder of a model")
    parser.add_argument("output", help="new folder; takes its name when it is whole and compared")
    return parser.parse_args()


def main(arguments: argparse.Namespace) -> None:
    from transformers.utils import logging

    from vanilla_transformer_hf.conversion.targets import export

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    done = export(arguments.target, arguments.model, arguments.output)
    print(f"saved in {arguments.output}")
    print(f"opened from there, its logits differ by {done.difference:.1e}")
    for note in done.notes:
        print(f"note: {note}")


if __name__ == "__main__":
    run(lambda: main(parse_arguments()))
