"""
Learn from text of one language: a model translates it, and another is trained on these pairs and the real ones
(back-translation, Sennrich et al. 2016, arXiv 1511.06709).

    vanilla-transformer train multi30k_raw --reverse --output_dir outputs/reverse \\
        --train_source train.en.gz --train_target train.de.gz      # German to English: the sides are exchanged
    vanilla-transformer back-translate outputs/reverse multi30k_raw --target mono.de.gz --search sampling \\
        --rate 1:2 --train_source train.en.gz --train_target train.de.gz --output_dir outputs/forward
    vanilla-transformer back-translate outputs/reverse --target mono.de.gz --search noised_beam --text_dir synthetic
    vanilla-transformer back-translate outputs/forward --source mono.en.gz --text_dir self    # self-training

REVERSE_MODEL translates text of the target language (--target) into synthetic sources; or a forward model text of the
source language (--source) into synthetic targets. With a recipe, the pairs are mixed with its training text, and its
model is trained, as by train, whose fields can be set; without one, only the pairs are written. Suspicious pairs are
left out, counted and shown. The same command continues after an interruption, in the translations or in the training.
"""

import argparse
from pathlib import Path
from typing import Any

from ..common.command_line import make_parser, read_count
from ..translation.streams.arguments import add_device
from .train import find_recipe, train


# Search -> its arguments of `generate()`, and whether it draws random numbers.
SEARCHES: dict[str, tuple[dict[str, Any], bool]] = {
    "beam": ({}, False),
    "greedy": ({"num_beams": 1}, False),
    "sampling": ({"num_beams": 1, "do_sample": True, "top_k": 0}, True),
    "top_k": ({"num_beams": 1, "do_sample": True}, True),
    "noised_beam": ({}, False),
}
# Option -> the searches that read it, and its default there.
OF_SEARCHES: dict[str, tuple[tuple[str, ...], Any]] = {
    "beams": (("beam", "noised_beam"), None),
    "top_k": (("top_k",), 10),
    "temperature": (("sampling", "top_k"), None),
    "search_seed": (("sampling", "top_k", "noised_beam"), 1),
    **dict.fromkeys(("drop_words", "replace_words"), (("noised_beam",), 0.1)),
    "shuffle_words": (("noised_beam",), 3),
}
TAG = "<bt>"


def parse_arguments(prog: str, argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command's own arguments with the recipe, and its fields."""
    usage = f"{prog} MODEL [RECIPE] --target FILE [options] [--field value ...]"
    parser = make_parser(prog, __doc__, usage=usage, allow_abbrev=False)
    parser.add_argument("model", metavar="MODEL", help="folder of the model that translates, or its id on the Hub")
    for side, what in (("target", "text of the target language"), ("source", "text of the source language")):
        parser.add_argument(
            f"--{side}",
            metavar="FILE",
            action="append",
            help=f"{what}, a sentence on each line; give it again for more files",
        )
    parser.add_argument(
        "--text_dir", metavar="DIR", help="folder of the synthetic text (default: OUTPUT_DIR/back_translation)"
    )
    parser.add_argument(
        "--rate",
        default="1:1",
        metavar="R:S",
        help="real to synthetic pairs in the training text; of what there is too little, pairs are repeated; natural: "
        "each once (default: 1:1)",
    )
    parser.add_argument(
        "--tag", default=TAG, help=f"token that synthetic sources begin with; '' for none (default: {TAG})"
    )
    parser.add_argument("--keep_duplicates", action="store_true", help="translate equal lines each time they occur")
    parser.add_argument("--max_lines", type=int, metavar="N", help="use the first N lines only")
    parser.add_argument(
        "--rounds",
        type=int,
        default=1,
        metavar="N",
        help="train N models one after the other, each on the translations of a better reverse model, which learns "
        "from those that the model before has made of --source (default: 1)",
    )
    group = parser.add_argument_group("search of the synthetic side")
    group.add_argument(
        "--search",
        default="beam",
        choices=SEARCHES,
        help="beam: the most likely translation; sampling: one drawn from the model; top_k: drawn from the K most "
        "likely tokens; noised_beam: beam search, then words are dropped, replaced by <blank>, moved (default: beam)",
    )
    group.add_argument("--beams", type=int, metavar="N", help="beams (default: what the model was saved with)")
    group.add_argument("--top_k", type=int, metavar="K", help="for --search top_k (default: 10)")
    group.add_argument("--temperature", type=float, metavar="T", help="for samples: below 1 more likely ones")
    group.add_argument(
        "--samples", type=int, default=1, metavar="N", help="translations of each line: samples, or the best N"
    )
    group.add_argument("--search_seed", type=int, metavar="N", help="of samples and noise (default: 1)")
    for name, kind, what in (
        ("drop_words", float, "probability that a word is dropped"),
        ("replace_words", float, "probability that it is replaced"),
        ("shuffle_words", int, "places that a word may move"),
    ):
        metavar, default = "P" if kind is float else "N", OF_SEARCHES[name][1]
        group.add_argument(f"--{name}", type=kind, metavar=metavar, help=f"noise: {what} (default: {default})")
    group.add_argument(
        "--processes",
        type=read_count,
        default=1,
        metavar="N",
        help="most processes that translate; auto: as many as lines, idle cores and memory allow (default: 1)",
    )
    group.add_argument("--threads", type=read_count, metavar="N", help="as in translate: a number, or auto")
    add_device(group)
    group.add_argument("--quantization", metavar="TYPE", help="int8 or int8_reduced: as in translate")
    group.add_argument("--batch_tokens", type=int, metavar="N", help="most tokens in a batch (default: 2048)")
    group.add_argument(
        "--window", type=int, metavar="N", help="lines that are sorted by length and written together (default: 2048)"
    )
    group = parser.add_argument_group("which pairs are left out, beside empty, copied and repeating ones")
    group.add_argument(
        "--max_ratio",
        type=float,
        default=3.0,
        metavar="R",
        help="translations over R times as long or short, in characters, as is usual in the text (default: 3)",
    )
    group.add_argument(
        "--min_score", type=float, metavar="S", help="translations with a lower score of the search, such as -2"
    )
    group.add_argument("--drop_worst", type=float, default=0.0, metavar="P", help="this share, of the lowest scores")
    group.add_argument(
        "--keep",
        metavar="RULE",
        action="append",
        default=[],
        help="leave out nothing for this reason: held_out, empty, copied, unfinished, repetition or length; again for "
        "further ones",
    )
    group.add_argument("--round_trip", metavar="MODEL", help="model that translates the translations back")
    group.add_argument(
        "--min_round_trip", type=float, metavar="CHRF", help="those whose round trip has a lower chrF, such as 30"
    )
    arguments, others = parser.parse_known_args(argv)
    # An optional positional argument could not stand behind options.
    arguments.recipe = others.pop(0) if others and not others[0].startswith("-") else None
    if arguments.recipe is None and others:
        parser.error(f"{others[0]}: fields of a recipe need a recipe before them")
    if arguments.rounds < 1:
        parser.error(f"--rounds {arguments.rounds}: must be at least 1")
    if arguments.rounds > 1:
        if not (arguments.target and arguments.source and arguments.recipe):
            parser.error(
                f"--rounds {arguments.rounds} needs text of both languages, --target and --source, and a recipe"
            )
        if arguments.text_dir is not None:
            parser.error("--text_dir: each of several rounds has a folder of its own")
    elif bool(arguments.target) == bool(arguments.source):
        parser.error("one of --target and --source is needed: the text that MODEL translates")
    elif arguments.recipe is None and arguments.text_dir is None:
        parser.error("--text_dir is missing: without a recipe, the text has no other folder")
    return arguments, others


def read_wanted(arguments: argparse.Namespace, data: Any) -> Any:
    """The `SyntheticText` of the command line; `data` are the recipe's arguments, or None."""
    from ..training.synthetic.learning import languages_of
    from ..training.synthetic.synthetic_text import Noise, PairFilter, SyntheticText
    from ..training.synthetic.translations import ModelSearch

    options, is_random = SEARCHES[arguments.search]
    of_search = dict[str, Any]()
    for name, (searches, default) in OF_SEARCHES.items():
        value = getattr(arguments, name)
        if arguments.search in searches:
            of_search[name] = default if value is None else value
        elif value is not None:
            raise ValueError(f"{name}={value} has no effect with --search {arguments.search}")
    drawn: dict[str, Any] = {name: of_search[name] for name in ("top_k", "temperature") if name in of_search}
    options = {"num_beams": arguments.beams, **options, **drawn}
    limits = arguments.max_ratio, arguments.min_score, arguments.drop_worst, arguments.min_round_trip
    chosen = PairFilter(*limits, tuple(arguments.keep))
    # A beam search has its scores; for others they take another pass.
    scores = chosen.needs_scores or options.get("num_beams") != 1
    options = {**options, "num_return_sequences": arguments.samples, "return_scores": scores}
    names = ("processes", "threads", "device", "dtype", "quantization", "batch_tokens", "window")
    streams = {name: getattr(arguments, name) for name in names}
    noise = None
    if arguments.search == "noised_beam":
        noise = Noise(*(of_search[name] for name in ("drop_words", "replace_words", "shuffle_words", "search_seed")))
    side: Any = "target" if arguments.target else "source"
    return SyntheticText(
        ModelSearch(arguments.model, options, of_search["search_seed"] if is_random else None, streams),
        tuple(arguments.target or arguments.source),
        side,
        languages_of(arguments.model, side, data),
        chosen,
        noise,
        "" if side == "source" else arguments.tag,
        None if arguments.round_trip is None else ModelSearch(arguments.round_trip, {"num_beams": 1}, streams=streams),
        arguments.keep_duplicates,
        arguments.max_lines,
    )


def main(prog: str, argv: list[str]) -> None:
    arguments, others = parse_arguments(prog, argv)
    from ..training.recipe import OF_TEXT, RecipeParser
    from ..training.synthetic.learning import parse_rate
    from ..training.synthetic.synthetic_text import make_synthetic_text

    arguments.rate = parse_rate(arguments.rate)
    if arguments.recipe is None:
        make_synthetic_text(read_wanted(arguments, None), Path(arguments.text_dir))
        return
    parser, path = RecipeParser(prog=prog), find_recipe(arguments.recipe)
    _, given, unset = parser.read_line(others)
    recipe = parser.override(parser.read(path), given, unset, told=prog)
    run, _ = parser.run(recipe, path)
    if run.data.task != "translation":
        raise ValueError(f"the recipe has task={run.data.task}: only translation models learn from translations")
    if arguments.rounds == 1:
        learn(prog, arguments, parser, recipe)
        return
    # Hoang et al. 2018, aclanthology.org/W18-2703: in each round, the model learns from the reverse model's
    # translations; then the reverse model, by the same recipe with the sides exchanged, from its.
    output, reverse, forward = Path(str(run.training.output_dir)), arguments.model, ""

    def stage(model: str, texts: list[str], is_reversed: bool, folder: Path) -> str:
        fields = {"reverse": is_reversed, "output_dir": str(folder)}
        # The test text is scored once, at the end.
        unscored = [] if folder == output else ["test_source", *OF_TEXT["test_source"]]
        own = argparse.Namespace(**{**vars(arguments), "model": model, "target": texts, "source": None})
        learn(prog, own, parser, parser.override(recipe, fields, unscored))
        return str(folder)

    for number in range(1, arguments.rounds + 1):
        folder = output / "rounds" / str(number)
        if number > 1:
            reverse = stage(forward, arguments.source, not run.data.reverse, folder / "reverse")
        is_last = number == arguments.rounds
        forward = stage(reverse, arguments.target, run.data.reverse, output if is_last else folder / "forward")


def learn(prog: str, arguments: argparse.Namespace, parser: Any, recipe: dict[str, Any]) -> None:
    """Make the synthetic text, mix it with the recipe's, and train its model on both."""
    from ..training.recipe import OF_TEXT
    from ..training.synthetic import learning
    from ..training.synthetic.synthetic_text import make_synthetic_text

    run, _ = parser.run(recipe, arguments.recipe)
    wanted = read_wanted(arguments, run.data)
    folder = Path(str(run.training.output_dir)) / "back_translation"
    real, held_out = learning.read_real(run.data, wanted.side)
    files = make_synthetic_text(wanted, Path(arguments.text_dir or folder), held_out)
    # The synthetic and the real pairs are in one file.
    fields = learning.fields_of_pairs(run.data, real, wanted, files, arguments.rate, folder)
    student, settings = parser.run(parser.override(recipe, fields, OF_TEXT["train_source"]), arguments.recipe)
    train(prog, student, settings, learning.about(wanted, arguments.rate, wanted.texts))
