"""
Write a model for an engine that runs it without this package: ctranslate2, onnx or torch_export.

    vanilla-transformer export ctranslate2 outputs/en-de outputs/en-de-ct2 --quantization int8
    vanilla-transformer export onnx outputs/en-de outputs/en-de-onnx
    vanilla-transformer export onnx outputs/en-de outputs/en-de-web --for transformers.js
    vanilla-transformer export torch_export outputs/en-de outputs/en-de-pt2

For the checkpoints of other training toolkits there is vanilla-transformer export-checkpoint.
"""

from ..common.command_line import make_parser


def main(prog: str, argv: list[str]) -> None:
    parser = make_parser(prog, __doc__)
    engines = parser.add_subparsers(dest="engine", required=True, metavar="ENGINE")
    helps = {
        "ctranslate2": "a folder for ctranslate2.Translator",
        "onnx": "encoder, first and next decoder step for ONNX Runtime, named as optimum does",
        "torch_export": "the same three as programs of torch.export",
    }
    for name, text in helps.items():
        engine = engines.add_parser(name, help=text, description=text)
        engine.add_argument("model", help="folder of a model")
        engine.add_argument("output", help="new folder; renamed from a temporary name when complete and compared")
        if name == "ctranslate2":
            engine.add_argument(
                "--quantization", metavar="TYPE", help="of the weights: int8, int16, float16, bfloat16 …"
            )
            engine.add_argument(
                "--vmap",
                metavar="FILE",
                help="vocabulary map: lines of source tokens, tab, and the target tokens that they allow; "
                "translate_batch.json uses it",
            )
        elif name == "onnx":
            engine.add_argument(
                "--for",
                dest="layout",
                choices=["transformers.js"],
                help="files for browsers and Node: onnx/ with one graph of both decoder steps, and quantized graphs",
            )
    arguments = parser.parse_args(argv)
    from transformers.utils import logging

    from ..export.export import export_for

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    options = vars(arguments).copy()
    done = export_for(*[options.pop(name) for name in ("engine", "model", "output")], **options)
    print(f"saved in {arguments.output}")
    print(f"run from there on random words, its logits differ by {done.difference:.1e} from those in float64")
    print(f"(the model's own in float32 differ by {done.own_error:.1e})")
    for note in done.notes:
        print(f"note: {note}")
