"""
Look at every number of a model in the browser, while it translates a sentence:

    vanilla-transformer explore outputs/quickstart --open
    vanilla-transformer explore outputs/en-de outputs/en-de-big --port 8001
    vanilla-transformer explore outputs/quickstart --html page.html --text "three hundred and forty-five"
    vanilla-transformer explore --watch outputs/quickstart
    vanilla-transformer explore outputs/spoken-digits --audio one.wav two.wav
    vanilla-transformer explore outputs/digit-strips --html page.html --image strip.png

The page is served on this machine alone (127.0.0.1) and loads nothing from the network. Two models can be
compared on it. With --html nothing is served: the file shows one translation and opens without a server. A model that
reads recordings or images shows the files of --audio or --image, and the page can open others. With --watch the page
shows a training, in progress or finished: its curves, and what each checkpoint makes of one sentence.
"""

from ..common.command_line import make_parser, other_options
from ..common.white_space import text_argument


# What a page in a file depends on.
OPTIONS_OF_HTML = ("models", "html", "text", "audio", "image", "num_beams", "trust_remote_code")


def main(prog: str, argv: list[str]) -> None:
    parser = make_parser(prog, __doc__)
    parser.add_argument("models", nargs="*", metavar="model", help="folder of a model, or the id of a Hub repository")
    parser.add_argument("--watch", metavar="RUN", help="show a training, in progress or finished: its output_dir")
    parser.add_argument("--port", type=int, default=8000, help="port of the page (default: 8000; 0: a free one)")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument("--html", metavar="FILE", help="write a page about --text to this file, and serve nothing")
    parser.add_argument("--text", type=text_argument, metavar="SENTENCE", help="the sentence of --html")
    parser.add_argument("--audio", nargs="+", default=[], metavar="FILE", help="recordings, for models that read them")
    parser.add_argument("--image", nargs="+", default=[], metavar="FILE", help="images, for models that read them")
    parser.add_argument("--allowed_hosts", nargs="+", default=[], metavar="NAME", help="names by which a browser may "
                        "call the page beside localhost and 127.0.0.1, as through a proxy; * allows any")  # fmt: skip
    parser.add_argument("--num_beams", type=int, metavar="N", help="beams of --html (default: the model's own)")
    parser.add_argument("--trust_remote_code", action="store_true", help="run model code that a repository brings")
    arguments = parser.parse_args(argv)
    files = arguments.audio + arguments.image
    if not arguments.models and not arguments.watch:
        parser.error("name a model, or --watch the output_dir of a training")
    if bool(arguments.html) != bool(arguments.text) and not (arguments.html and files):
        parser.error("--html and --text belong together: the file shows the translation of a sentence, or of --audio "
                     "or --image")  # fmt: skip
    if (arguments.text and files) or (arguments.html and len(files) > 1):
        parser.error("--html shows one source: --text, or one file of --audio or --image")
    if arguments.html and (other := other_options(parser, arguments, OPTIONS_OF_HTML)):
        parser.error(f"--html serves nothing: leave out {', '.join(other)}")
    if arguments.num_beams is not None and not arguments.html:
        parser.error("--num_beams is that of --html: a page that is served has its own field; leave it out")
    if not 0 <= arguments.port <= 65535:
        parser.error(f"argument --port: {arguments.port} is not a port: expected 0 to 65535")
    from ..common.files import refuse_overwriting, write_text
    from ..explorer.explorer import Explorer
    from ..explorer.page import page_of
    from ..explorer.requests import Request

    refuse_overwriting(arguments.html, files)
    if not arguments.html:
        try:
            from ..explorer.server import serve
        except ImportError as error:
            raise ValueError(f"{error.name} is not installed: pip install 'vanilla_transformer_hf[serve]'") from error
    explorer = Explorer.open(arguments.models, trust_remote_code=arguments.trust_remote_code)
    if arguments.watch:
        from ..explorer.watching import Watched

        explorer.watched = Watched(explorer, arguments.watch, arguments.trust_remote_code)
        explorer.watched.look()
        if (problem := explorer.watched.run(Request()).problem) and not explorer.subjects:
            raise ValueError(problem)
    for reads, paths in (("speech", arguments.audio), ("image", arguments.image)):
        if paths:
            names = explorer.open_files(reads, paths)
    if arguments.html:
        settings = {} if arguments.num_beams is None else {"num_beams": arguments.num_beams}
        page = page_of(explorer, arguments.text or names[0], settings)
        write_text(arguments.html, page)
        print(f"saved in {arguments.html}")
    else:
        serve(explorer, arguments.port, arguments.open, arguments.allowed_hosts)
