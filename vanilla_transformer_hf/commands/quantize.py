"""
Write the folder of a translation model with int8 weights: about a quarter of the size of float32.

    vanilla-transformer quantize outputs/quickstart --output_dir outputs/quickstart-int8
    vanilla-transformer translate outputs/quickstart-int8 < numbers.en > numbers.de

Each matrix is rounded to int8 with one step for each output. The folder opens as all others do and searches in int8.
It cannot be trained or exported: keep the model it was made from.
"""

from pathlib import Path

from ..common.command_line import make_parser


def main(prog: str, argv: list[str]) -> None:
    parser = make_parser(prog, __doc__)
    parser.add_argument("model", help="folder of a model, or the id of a Hub repository")
    parser.add_argument(
        "--output_dir", type=Path, required=True, help="new folder; renamed from a temporary name when complete"
    )
    arguments = parser.parse_args(argv)
    from transformers.utils import logging

    from ..export.int8_folder import quantize_folder

    logging.disable_progress_bar()
    sizes = quantize_folder(arguments.model, arguments.output_dir)
    print(f"saved in {arguments.output_dir}: {sizes}")
