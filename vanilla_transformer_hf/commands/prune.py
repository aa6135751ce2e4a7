"""
Remove attention heads and feed-forward units that matter least from a translation model, or layers. The model becomes
smaller.

    vanilla-transformer prune outputs/quickstart --heads 0.4 --feed_forward 0.3 \\
        --source valid.en --target valid.de --output_dir outputs/quickstart-pruned
    vanilla-transformer prune outputs/quickstart --feed_forward 0.5 --output_dir outputs/quickstart-pruned
    vanilla-transformer prune outputs/quickstart --decoder_layers 1 --output_dir outputs/quickstart-shallow

Heads are ranked by their importance for the loss of the sentence pairs (Michel et al. 2019, arXiv 1905.10650), units
by the norm of their weights. Layers are kept evenly spaced, from the first (Shleifer and Rush 2020, arXiv 2010.13002).
The result is an ordinary model. Pruning lowers scores; fine-tune the model to recover them:
vanilla-transformer train RECIPE --model_name_or_path outputs/quickstart-pruned
"""

from pathlib import Path

from ..common.command_line import make_parser


def main(prog: str, argv: list[str]) -> None:
    parser = make_parser(prog, __doc__)
    parser.add_argument("model", help="folder of a model, or the id of a Hub repository")
    parser.add_argument(
        "--heads", type=float, default=0.0, metavar="SHARE", help="share of all attention heads to remove, such as 0.4"
    )
    parser.add_argument(
        "--feed_forward",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of the units of each feed-forward to remove, such as 0.3",
    )
    for stack in ("encoder", "decoder"):
        parser.add_argument(f"--{stack}_layers", type=int, metavar="N", help=f"layers of the {stack} to keep")
    parser.add_argument(
        "--source", help="sentence pairs that rank the heads: a text file (with --target), or a file of both sides"
    )
    parser.add_argument("--target", help="the translations of a plain-text --source, line by line")
    parser.add_argument(
        "--sentences", type=int, default=1000, metavar="N", help="pairs of it that are used (default: %(default)s)"
    )
    parser.add_argument(
        "--batch_size", type=int, default=64, metavar="N", help="pairs at the same time (default: %(default)s)"
    )
    parser.add_argument(
        "--output_dir", type=Path, required=True, help="new folder; renamed from a temporary name when complete"
    )
    options = vars(parser.parse_args(argv))
    from ..model.config.stacks import HEAD_FIELDS, heads_of_layers
    from ..training.pruning import prune_folder

    folder, output = options.pop("model"), options.pop("output_dir")
    pruned = prune_folder(folder, output, **options)
    print(f"removed {pruned}")
    for attention in HEAD_FIELDS:
        heads = map(str, heads_of_layers(pruned.model.config, attention))
        print(f"heads of {attention} attention, by layer: {', '.join(heads)}")
    print(f"saved in {output}")
