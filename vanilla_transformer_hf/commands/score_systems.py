"""
Compare translations of one text: BLEU, chrF and TER with 95 % confidence intervals, and whether a system differs from
the first by more than chance, by sacreBLEU's paired bootstrap and approximate randomization.

    vanilla-transformer score-systems --reference test.de --source test.en first.de second.de
    vanilla-transformer score-systems --reference test.de --source test.en --page differences.html a.de b.de c.de
    vanilla-transformer score-systems --reference test.de --format json --output scores.json a.de b.de
    vanilla-transformer score-systems --reference test.de --comet comet.json a.de b.de

Texts are UTF-8, a sentence on each line, also .gz. The page has the 20 sentences whose scores differ most, with both
translations marked. COMET needs an environment of its own, because it works with transformers below 5 alone; there,
comet-score -s test.en -r test.de -t a.de b.de --to_json comet.json writes its scores of the sentences.
"""

import json
from dataclasses import asdict
from pathlib import Path

from ..common.command_line import make_parser


def main(prog: str, argv: list[str]) -> None:
    parser = make_parser(prog, __doc__)
    parser.add_argument(
        "systems", nargs="+", metavar="SYSTEM", help="translations; the others are compared with the first"
    )
    parser.add_argument(
        "--reference",
        action="append",
        required=True,
        metavar="FILE",
        help="the right translations; give it again for further ones of each sentence",
    )
    parser.add_argument("--source", metavar="FILE", help="the text that was translated, for the page")
    parser.add_argument("--page", metavar="FILE", help="write the sentences that differ most as one HTML file")
    parser.add_argument(
        "--comet", metavar="FILE", help="COMET's scores of the sentences, which comet-score --to_json has written"
    )
    parser.add_argument("--target_lang", metavar="LANG", help="language, whose tokenizer BLEU takes, such as ja")
    parser.add_argument(
        "--tokenize", metavar="NAME", help="sacreBLEU's tokenizer for BLEU, such as none (default: 13a)"
    )
    parser.add_argument("--format", default="text", choices=["text", "json"], help="text: a table (default); or json")
    parser.add_argument("--output", metavar="FILE", help="file for the scores (default: standard output)")
    arguments = parser.parse_args(argv)
    from ..common.files import output_or_stdout, refuse_overwriting, write_text
    from ..common.lines import read_lines
    from ..evaluation.systems import compare_systems, page_of_differences, read_comet

    if len(arguments.systems) < 2:
        raise ValueError(
            f"{arguments.systems[0]} alone: expected two systems or more; sacrebleu has the scores of one"
        )
    if len({Path(path).resolve() for path in arguments.systems}) < len(arguments.systems):
        raise ValueError(f"{', '.join(arguments.systems)}: expected each system once")
    inputs = [*arguments.systems, *arguments.reference, *([arguments.source] if arguments.source else [])]
    outputs = [path for path in (arguments.output, arguments.page) if path is not None]
    for path in outputs:
        refuse_overwriting(path, [*inputs, *([arguments.comet] if arguments.comet else [])])
    if len({Path(path).resolve() for path in outputs}) < len(outputs):
        raise ValueError(f"{arguments.page} is --page and --output: name two files")
    texts = {path: list(read_lines(path)) for path in inputs}
    first = arguments.reference[0]
    for path, lines in texts.items():
        if not lines:
            raise ValueError(f"{path} is empty: expected a sentence on each line")
        if len(lines) != len(texts[first]):
            raise ValueError(f"{path} has {len(lines):,} lines, {first} has {len(texts[first]):,}: expected as many")
    systems = {path: texts[path] for path in arguments.systems}
    references = [texts[path] for path in arguments.reference]
    comet = read_comet(arguments.comet, systems) if arguments.comet else None
    found = compare_systems(systems, references, arguments.target_lang, arguments.tokenize, comet)
    if arguments.page:
        page = page_of_differences(systems, references, texts.get(arguments.source), comet)
        write_text(arguments.page, page)
    text = str(found) if arguments.format == "text" else json.dumps(asdict(found), ensure_ascii=False, indent=2) + "\n"
    with output_or_stdout(arguments.output) as file:
        file.write(text.encode())
