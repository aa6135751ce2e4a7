"""
Write a model in the layout of another toolkit: marianmt or bart (folders of transformers), or fairseq.

    vanilla-transformer export-checkpoint marianmt outputs/en-de outputs/en-de-marianmt
    vanilla-transformer export-checkpoint fairseq outputs/en-de outputs/en-de-fairseq

For engines that only run the model, such as CTranslate2, there is vanilla-transformer export.
"""

from ..common.command_line import make_parser


def main(prog: str, argv: list[str]) -> None:
    parser = make_parser(prog, __doc__)
    parser.add_argument("target", help="marianmt, bart or fairseq")
    parser.add_argument("model", help="folder of a model")
    parser.add_argument("output", help="new folder; renamed from a temporary name when complete and compared")
    arguments = parser.parse_args(argv)
    from transformers.utils import logging

    from ..conversion.targets import export

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    done = export(arguments.target, arguments.model, arguments.output)
    print(f"saved in {arguments.output}")
    print(f"opened from there, its logits differ by {done.difference:.1e}")
    for note in done.notes:
        print(f"note: {note}")
