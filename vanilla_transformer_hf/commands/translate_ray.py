"""
Translate a corpus with Ray Data, on one machine or a cluster: text, JSON lines or Parquet.

    vanilla-transformer translate-ray outputs/quickstart --input numbers.en --output numbers.de --actors 2
    vanilla-transformer translate-ray outputs/quickstart --input part-1.parquet part-2.parquet --column text \\
        --output translations.jsonl --format jsonl
    vanilla-transformer translate-ray outputs/quickstart --input web.jsonl --output web.tsv --format tsv \\
        --address auto

Each actor is a process that opens the model once. The output is complete and in the order of the lines, also if an
actor is killed; a run that was killed leaves whole lines in FILE.partial, and the same command continues it. On a
cluster, every machine needs this package, and the model and the corpus under the same paths.
"""

import argparse
import importlib.util
import sys
from typing import get_args

from ..common.choices import TooLongToTranslate
from ..common.command_line import make_parser
from .translate import add_search_arguments, add_split_sentences, search_options


def parse_arguments(prog: str, argv: list[str]) -> argparse.Namespace:
    parser = make_parser(prog, __doc__)
    parser.add_argument("model", help="folder of a model, or the id of a Hub repository")
    parser.add_argument("--input", nargs="+", required=True, metavar="FILE", help="UTF-8 text, .jsonl or .parquet")
    parser.add_argument("--output", required=True, metavar="FILE", help="where to write")
    parser.add_argument("--column", default="text", metavar="NAME", help="field of the text (default: text)")
    parser.add_argument("--format", default="text", choices=["text", "tsv", "jsonl"], help="as of translate")
    parser.add_argument("--n_best", type=int, metavar="N", help="write the N best translations of each line")
    parser.add_argument("--restart", action="store_true", help="begin FILE anew")
    cluster = parser.add_argument_group("cluster")
    cluster.add_argument("--address", help="a running cluster: auto or HOST:PORT (default: start Ray here)")
    cluster.add_argument("--actors", type=int, metavar="N", help="processes that translate (default: all that fit)")
    cluster.add_argument("--cpus_per_actor", type=int, default=1, metavar="N", help="also its threads (default: 1)")
    cluster.add_argument("--gpus_per_actor", type=float, metavar="N", help="default: 1 if the cluster has any")
    add_search_arguments(parser.add_argument_group("search (default: what the model was saved with)"))
    model = parser.add_argument_group("model")
    model.add_argument(
        "--too_long",
        default="split",
        choices=get_args(TooLongToTranslate),
        help="as of translate (default: split)",
    )
    add_split_sentences(model)
    model.add_argument("--window", type=int, default=2048, metavar="N", help="lines of a task (default: 2048)")
    model.add_argument("--max_source_length", type=int, metavar="N", help="tokens of the longest line")
    model.add_argument("--target_lang_tag", metavar="LANG", help="target language of a multilingual model")
    model.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    return parser.parse_args(argv)


def main(prog: str, argv: list[str]) -> None:
    arguments = parse_arguments(prog, argv)
    if importlib.util.find_spec("ray") is None:
        raise ValueError("Ray is not installed; run pip install 'vanilla_transformer_hf[ray]'")
    from ..common.files import refuse_overwriting
    from ..translation.streams.command import OpenTranslator
    from ..translation.streams.ray_corpus import Cluster, plan, run_corpus
    from ..translation.streams.resumable_output import open_result
    from ..translation.streams.work import LineWork

    work = LineWork("translate", arguments.format, search_options(arguments), arguments.constraints)
    refuse_overwriting(arguments.output, arguments.input)
    windows = plan(arguments.input, arguments.window, arguments.column)
    open_translator = OpenTranslator(
        arguments.model,
        arguments.dtype,
        "default",  # the same on every machine
        arguments.max_source_length,
        tuple(arguments.ensemble),
        arguments.shortlist,
        arguments.target_lang_tag,
        arguments.quantization,
        arguments.engine,
        arguments.without_letters,
    )
    cluster = Cluster(arguments.address, arguments.actors, arguments.cpus_per_actor, arguments.gpus_per_actor)
    with open_result(arguments.output, arguments.restart) as output:
        tally, about = run_corpus(windows, open_translator, work, output, cluster, arguments.output)
    for note in tally.notes(arguments.too_long, about.limits[0]).values():
        print(note, file=sys.stderr)
