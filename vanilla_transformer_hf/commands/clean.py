"""
Leave out the pairs of a corpus that would harm training, and report how many and which:

    vanilla-transformer clean corpus.tmx --source_lang en --target_lang yo --dry-run
    vanilla-transformer clean train.en train.de --output clean.en clean.de --held_out test.en test.de
    vanilla-transformer clean corpus.xlsx --source_lang en --target_lang yo --output clean.tsv --report clean.json
    vanilla-transformer clean corpus.jsonl --source_lang en --target_lang zu --output clean.jsonl --check_language

Left out are pairs that have an empty side, are identical, too long or of unequal lengths, in the wrong script or
language, repeated, or in the test text. Each is counted under the first of these rules that it breaks, and examples
are shown. Pairs are read from every format that train reads, and written with single spaces between words.
"""

import gzip
import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..common.command_line import make_parser


SHOWN = 70  # characters of a text in an example


def main(prog: str, argv: list[str]) -> None:
    parser = make_parser(prog, __doc__)
    parser.add_argument(
        "source", help="a file that holds both sides, or plain text; also .gz; what train_source takes"
    )
    parser.add_argument("target", nargs="?", help="the translations of plain text, line by line")
    parser.add_argument(
        "--output",
        nargs="+",
        metavar="FILE",
        help="one file for both sides (.tsv, .jsonl) or two of plain text; also .gz; replaced if they exist",
    )
    parser.add_argument("--dry-run", action="store_true", help="write no pairs, only report what would be left out")
    parser.add_argument("--report", metavar="FILE", help="write counts and examples as JSON")
    parser.add_argument(
        "--source_lang", metavar="CODE", help="source language, such as en; names a column and a script"
    )
    parser.add_argument("--target_lang", metavar="CODE", help="target language")
    parser.add_argument(
        "--source_column", metavar="NAME", help="column of the source text, if not named by its language"
    )
    parser.add_argument("--target_column", metavar="NAME", help="column of the target text, likewise")
    parser.add_argument("--split", default="train", help="split of a saved folder or of the Hub (default: train)")
    parser.add_argument(
        "--max_length", type=int, default=1000, metavar="N", help="most characters of a side (default: 1000)"
    )
    parser.add_argument(
        "--max_length_ratio",
        type=float,
        default=3.0,
        metavar="X",
        help="how many times longer a side may be than usual for the other, in characters; usual is the median of the "
        "first 10,000 pairs; pairs of sides under 20 characters are not compared (default: 3)",
    )
    parser.add_argument(
        "--held_out",
        nargs="+",
        default=[],
        metavar="FILE",
        help="test and validation text: plain files, or files that hold both sides; pairs with one of their sentences "
        "on a side are left out",
    )
    parser.add_argument(
        "--check_language",
        action="store_true",
        help="identify the language of each text, which takes some milliseconds (extra clean)",
    )
    parser.add_argument(
        "--keep", nargs="+", default=[], metavar="RULE", help="rules that are not applied, such as identical"
    )
    arguments = parser.parse_args(argv)
    if arguments.dry_run == (arguments.output is not None):
        parser.error("one of --output and --dry-run is needed")
    from ..common.corpus_files import holds_both_sides, kind_of
    from ..common.files import open_output, refuse_overwriting, write_text
    from ..common.lines import read_lines
    from ..training.data.cleaning import CleaningOptions, CleaningReport, clean_pairs, held_out_sentences
    from ..training.data.corpus import has_splits, iterate_rows

    outputs = [Path(path) for path in arguments.output or []]
    written = [*outputs, *([Path(arguments.report)] if arguments.report else [])]
    if len(outputs) > 2 or len({path.resolve() for path in written}) < len(written):
        raise ValueError("--output takes one file, or two different ones for source and target; --report another one.")
    if len(outputs) == 1 and kind_of(str(outputs[0])) not in (".tsv", ".jsonl"):
        raise ValueError(
            f"--output {outputs[0]}: one file for both sides is .tsv or .jsonl (or .gz of these); or name two."
        )
    for path in written:
        refuse_overwriting(path, [arguments.source, arguments.target or arguments.source, *arguments.held_out])
    languages = {"source_lang": arguments.source_lang, "target_lang": arguments.target_lang}
    held_out = frozenset[str]()
    for path in arguments.held_out:
        lines = ({"text": line} for line in read_lines(path))
        texts: Any = iterate_rows(path, **languages) if holds_both_sides(path) else lines
        held_out |= held_out_sentences(texts)
    options = CleaningOptions(
        **languages,
        max_length=arguments.max_length,
        max_length_ratio=arguments.max_length_ratio,
        keep=tuple(arguments.keep),
        held_out=held_out,
        check_language=arguments.check_language,
    )
    columns = {"source_column": arguments.source_column, "target_column": arguments.target_column}
    if arguments.split != "train" and not has_splits(arguments.source):
        raise ValueError(f"--split {arguments.split} has no effect: {arguments.source} has no splits; leave it out.")
    if arguments.target is not None and any(columns.values()):
        raise ValueError("--source_column and --target_column have no effect on two plain files; leave them out.")
    rows = iterate_rows(arguments.source, arguments.target, **columns, **languages, split=arguments.split)
    report = CleaningReport()
    with ExitStack() as stack:  # files are complete or not written at all
        files: list[Any] = [stack.enter_context(open_output(path)) for path in outputs]
        for place, path in enumerate(outputs):
            if path.suffix.lower() == ".gz":  # the same bytes in every run
                files[place] = stack.enter_context(gzip.GzipFile("", "wb", 6, fileobj=files[place], mtime=0))
        is_table = len(files) == 1 and kind_of(str(outputs[0])) == ".tsv"
        if is_table:
            files[0].write(b"source\ttarget\n")
        for source, target in clean_pairs(rows, options, report):
            if len(files) == 2:
                files[0].write(f"{source}\n".encode())
                files[1].write(f"{target}\n".encode())
            elif is_table:
                files[0].write(f"{source}\t{target}\n".encode())
            elif files:
                content = json.dumps({"source": source, "target": target}, ensure_ascii=False)
                files[0].write(f"{content}\n".encode())
        if not report.kept:
            print(describe(report), flush=True)
            raise ValueError(f"{arguments.source}: no pair is left; nothing is written.")
    if arguments.report:
        settings = {name: value for name, value in vars(arguments).items() if name not in ("report", "dry_run")}
        content = json.dumps(asdict(report) | {"settings": settings}, ensure_ascii=False, indent=2)
        write_text(arguments.report, f"{content}\n")
    print(describe(report))
    if outputs:
        print(f"{', '.join(map(str, outputs))}: written.")


def describe(report: Any) -> str:
    """The report in lines: what each rule left out, with examples."""
    from ..training.data.cleaning import RULES

    lines = [f"{report.read:,} pairs read, {report.kept:,} kept, {report.read - report.kept:,} left out."]
    lines += [f"  {count:,} {reason} in the file: no pair." for reason, count in sorted(report.units.items())]
    for rule, count in report.left_out.items():
        if count:
            lines.append(f"  {count:,} {rule}: {RULES[rule]}.")
            for each in report.examples[rule]:
                texts = (each[side] for side in ("source", "target"))
                shown = " | ".join(text if len(text) <= SHOWN else f"{text[:SHOWN]}…" for text in texts)
                lines.append(f"    {each['pair']:,}: {shown}")
    return "\n".join([*lines, *(f"  {note}" for note in report.notes)])
