"""
Train a tokenizer on plain-text files (UTF-8, also .gz), one sentence per line, or on files that hold both sides.

    vanilla-transformer tokenizer outputs/tokenizer --source train.en.gz --target train.de.gz
    vanilla-transformer tokenizer outputs/tokenizer --source a.en b.en --target a.fr b.fr --model wordpiece \\
        --vocab_size 32000 --src_lang en --tgt_lang fr
    vanilla-transformer tokenizer outputs/tokenizer --source memory.tmx --src_lang en --tgt_lang de
"""

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..common.command_line import make_parser


SAMPLE = 10_000  # lines of each side on which tokens per word are counted


def main(prog: str, argv: list[str]) -> None:
    # An option that is not given is not passed on: the defaults stand in VanillaTransformerTokenizer.train.
    parser = make_parser(prog, __doc__, argument_default=argparse.SUPPRESS)
    parser.add_argument("output", type=Path, help="new folder for the tokenizer")
    parser.add_argument(
        "--source",
        nargs="+",
        required=True,
        metavar="FILE",
        help="text of the source language, or files that hold both sides, such as TMX, .xlsx or JSON lines",
    )
    parser.add_argument("--target", nargs="+", default=[], metavar="FILE", help="text of the target language")
    parser.add_argument(
        "--model",
        choices=["bpe", "wordpiece"],
        help="bpe, as the paper's English-German model (default), or wordpiece, as its English-French model",
    )
    parser.add_argument(
        "--vocab_size", type=int, help="most tokens of each vocabulary (default: the paper's English-German number)"
    )
    parser.add_argument("--separate_vocabularies", action="store_true", help="one vocabulary for each language")
    parser.add_argument("--lowercase", action="store_true", help="lower-case all text; decoding cannot undo this")
    parser.add_argument(
        "--unicode_normalization",
        default="NFC",
        choices=["NFC", "NFKC", "NFD", "NFKD", "none"],
        help="Unicode normal form of texts, in training and in use (default: NFC)",
    )
    parser.add_argument("--min_frequency", type=int, help="fewest occurrences of a pair to merge")
    parser.add_argument("--src_lang", help="source language, recorded with the tokenizer; names columns, too")
    parser.add_argument("--tgt_lang", help="target language, likewise")
    parser.add_argument("--source_column", metavar="NAME", help="column of the source in files that hold both sides")
    parser.add_argument("--target_column", metavar="NAME", help="column of the target in files that hold both sides")
    choices: dict[str, Any] = vars(parser.parse_args(argv))
    output, source, target = (choices.pop(name) for name in ("output", "source", "target"))
    from .. import VanillaTransformerTokenizer
    from ..common.corpus_files import holds_both_sides
    from ..common.files import check_new, new_folder
    from ..common.lines import read_lines
    from ..common.white_space import normalize_space
    from ..training.data.corpus import iterate_pairs

    names = {name: choices.pop(name, None) for name in ("source_column", "target_column")}
    names |= {"source_lang": choices.get("src_lang"), "target_lang": choices.get("tgt_lang")}
    both = [path for path in source if holds_both_sides(path)]
    if wrong := [path for path in target if holds_both_sides(path)]:
        raise ValueError(f"{wrong[0]} holds both sides: name it under --source")

    def lines(side: int) -> Iterator[str]:
        pairs = itertools.chain.from_iterable(iterate_pairs(path, **names) for path in both)
        plain = [path for path in (source, target)[side] if path not in both]
        yield from map(normalize_space, itertools.chain.from_iterable(map(read_lines, plain)))
        yield from (pair[side] for pair in pairs)

    check_new(output)
    form = choices.pop("unicode_normalization")
    choices |= {"unicode_normalization": None if form == "none" else form, "normalize_white_space": True}
    tokenizer = VanillaTransformerTokenizer.train(lines(0), lines(1) if target or both else None, **choices)
    with new_folder(output) as unfinished:
        tokenizer.save_pretrained(unfinished)
    sizes = {"source": tokenizer.source_vocab_size or len(tokenizer), "target": len(tokenizer)}
    for number, side in enumerate(sizes):
        if sample := list(itertools.islice(lines(number), SAMPLE)):
            texts = tokenizer(**{"text" if side == "source" else "text_target": sample}, add_special_tokens=False)
            words = max(1, sum(len(line.split()) for line in sample))
            pieces = sum(map(len, texts["input_ids"]))
            print(f"{side}: {sizes[side]:,} tokens in the vocabulary, {pieces / words:.2f} tokens per word")
    print(f"saved in {output}")
