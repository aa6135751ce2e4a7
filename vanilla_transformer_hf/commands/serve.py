"""
Translate over HTTP, the requests of all clients together.

    vanilla-transformer serve outputs/quickstart
    vanilla-transformer serve outputs/en-de outputs/de-en --languages en-de de-en --port 5000
    vanilla-transformer serve news=outputs/en-de talks=outputs/en-de-2 --api_keys keys.txt
    vanilla-transformer serve outputs/en-de --quantization int8
    vanilla-transformer serve outputs/en-de --engine ctranslate2 --quantization int8
    vanilla-transformer serve outputs/en-de --workers 2 --host 0.0.0.0    # behind a proxy

    curl http://127.0.0.1:8000/translate -d q=twenty-one
    curl http://127.0.0.1:8000/models/quickstart --json '{"inputs": "twenty-one"}'

POST /translate and /detect, with --suggestions /suggest, GET /languages and /frontend/settings speak LibreTranslate's
protocol, POST / and /models/NAME that of Hugging Face's inference clients; GET /health, /ready, /metrics and
/openapi.json. SIGTERM and Ctrl-C finish the requests that run; with workers, SIGHUP replaces them one after another.
"""

import sys

from ..common.command_line import make_parser
from ..translation.streams.arguments import add_device
from .translate import add_engine_arguments, add_glossary_arguments, add_split_sentences, add_without_letters


# Option -> field of `Limits`, type, what it is called in the help, help.
LIMITS = {
    "--max_characters": ("characters", int, "N", "of its texts (default: 50000)"),
    "--max_texts": ("texts", int, "N", "of a list (default: 128)"),
    "--max_body_bytes": ("body_bytes", int, "N", "of the body (default: 1048576)"),
    "--max_seconds": ("seconds", float, "S", "until it is answered (default: 60)"),
    "--max_file_bytes": ("file_bytes", int, "N", "of a file that is translated; 0: none are (default: 10485760)"),
    "--file_seconds": ("file_seconds", float, "S", "until a translated file is removed (default: 600)"),
    "--max_body_seconds": ("body_seconds", float, "S", "until its body is there (default: 10)"),
}


def main(prog: str, argv: list[str]) -> None:
    parser = make_parser(prog, __doc__)
    parser.add_argument(
        "models",
        nargs="+",
        metavar="[NAME=]MODEL",
        help="folder of a model, or the id of a Hub repository; NAME (default: the last part) is what /models/NAME "
        "calls it, and the first one answers POST /",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine)")
    parser.add_argument(
        "--allowed_hosts",
        nargs="+",
        default=[],
        metavar="NAME",
        help="names by which requests may call the server, as a proxy passes them on; * allows any (default: any, but "
        "on an address of this machine alone localhost, 127.0.0.1, ::1 and --host)",
    )
    parser.add_argument(
        "--allowed_origins",
        nargs="+",
        default=[],
        metavar="ORIGIN",
        help="sites whose pages may send requests and read the answers (CORS), such as https://example.org; * allows "
        "all (default: none but the server's own)",
    )
    parser.add_argument(
        "--port", type=int, default=8000, help="port to listen on; 0: any that is free (default: 8000)"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="processes, each with its own models, its own queue and an equal share of the threads (default: 1)",
    )
    parser.add_argument(
        "--languages",
        nargs="+",
        default=[],
        metavar="PAIR",
        help="language pair of each model, such as en-de (default: that of its tokenizer)",
    )
    add_engine_arguments(parser)
    add_split_sentences(parser)
    add_without_letters(parser)
    add_glossary_arguments(parser)
    add_device(parser)
    parser.add_argument("--batch_size", dest="most_rows", type=int, default=128, metavar="N", help="most sentences "
                        "that are searched together; 1: one after the other (default: 128)")  # fmt: skip
    parser.add_argument("--batch_tokens", dest="most_tokens", type=int, default=2048, metavar="N", help="most source "
                        "tokens that are (default: 2048)")  # fmt: skip
    limits = parser.add_argument_group("limits of a request")
    for option, (field, kind, metavar, text) in LIMITS.items():
        limits.add_argument(option, dest=field, type=kind, metavar=metavar, help=text)
    parser.add_argument(
        "--max_queue",
        dest="most_waiting",
        type=int,
        default=4096,
        metavar="N",
        help="sentences that may wait; more are answered with 429 and Retry-After (default: 4096)",
    )
    parser.add_argument("--api_keys", metavar="FILE", help="keys, one a line, of which a request must bring one")
    parser.add_argument(
        "--suggestions",
        metavar="DIR",
        help="keep what clients suggest (POST /suggest) in files of this folder, such as en-de.jsonl, which `train "
        "corrections` learns from (default: off, nothing is kept)",
    )
    parser.add_argument(
        "--log",
        default="requests",
        choices=["errors", "requests", "texts"],
        help="on standard error: only errors, a line for each request without texts (default), or with its texts",
    )
    parser.add_argument(
        "--seconds_to_finish",
        type=int,
        default=60,
        metavar="S",
        help="what running requests may still take after SIGTERM (default: 60)",
    )
    arguments = parser.parse_args(argv)
    try:
        from ..serving.http import address_of, bind
        from ..serving.protocols import Limits
        from ..serving.server import ServerSettings, serve
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is missing: pip install 'vanilla_transformer_hf[serve]'") from error
    from transformers.utils import logging

    logging.disable_progress_bar()
    if arguments.engine == "ours" and arguments.quantization not in (None, "int8", "int8_reduced"):
        raise ValueError(
            f"--quantization {arguments.quantization}: expected int8 or int8_reduced, or --engine ctranslate2"
        )
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    settings = ServerSettings(
        limits=Limits(**{field: given[field] for field, *_ in LIMITS.values() if field in given}),
        **{name: value for name, value in given.items() if name in ServerSettings.__dataclass_fields__},
    )
    listening = bind(arguments.host, arguments.port)
    print(f"listening on {address_of(listening)}", file=sys.stderr, flush=True)
    serve(settings, listening, arguments.host)
