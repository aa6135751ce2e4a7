"""
Convert a checkpoint of another toolkit to this model.

    vanilla-transformer convert fairseq runs/en-de outputs/en-de
    vanilla-transformer convert auto checkpoint_best.pt outputs/en-de --reference ref.npz
    vanilla-transformer convert whisper checkpoints/whisper outputs/whisper-de --set language=de

CHECKPOINT is the file, or the folder that holds it with its vocabularies and settings as the toolkit leaves them.
"""

import sys

from ..common.command_line import make_parser


def main(prog: str, argv: list[str]) -> None:
    parser = make_parser(prog, __doc__)
    parser.add_argument("source", help="the toolkit that wrote the checkpoint, or auto to detect it by its files")
    parser.add_argument("checkpoint", help="file or folder")
    parser.add_argument("output", help="new folder; renamed from a temporary name when complete and verified")
    parser.add_argument(
        "--reference", metavar="NPZ", help="logits computed by the toolkit, which the converted model must reproduce"
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an option of the toolkit that the files lack or have wrong, such as nhead=8 or tokenizer=moses; "
        "Whisper's language=de and task=translate",
    )
    parser.add_argument(
        "--i-trust-this-file",
        action="store_true",
        help="use Python's unpickler, which runs any code that the file contains: only for files that you made",
    )
    arguments = parser.parse_args(argv)
    from transformers.utils import logging

    from ..conversion import convert, parse_option

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    done = convert(
        arguments.source,
        arguments.checkpoint,
        arguments.output,
        reference=arguments.reference,
        trust=arguments.i_trust_this_file,
        say=lambda line: print(line, file=sys.stderr),
        options=dict(map(parse_option, arguments.set)),
    )
    print(f"saved in {arguments.output}")
    print(f"the reopened model's logits differ from those before saving by {done.reopened:.1e}")
    if done.reference is not None:
        other = arguments.reference or "transformers' own model"
        print(f"and from {other} by {done.reference:.1e} ({done.reference_tokens:,} target positions)")
    for note in done.notes:
        print(f"note: {note}")
