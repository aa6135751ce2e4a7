"""
Compare the files of a folder with the checksums that it holds: SHA256SUMS, or what the Hub's cache has of a download.

    vanilla-transformer verify outputs/en-de
    vanilla-transformer verify outputs/en-de --write
    vanilla-transformer verify downloads/opus-en-de --card outputs/en-de/README.md
"""

import sys

from ..common.checksums import SUMS_FILE, verify_folder, write_checksums
from ..common.command_line import make_parser


def main(prog: str, argv: list[str]) -> None:
    parser = make_parser(prog, __doc__)
    parser.add_argument("folder", help="of a model, or of a checkpoint of another toolkit")
    parser.add_argument(
        "--write", action="store_true", help=f"write {SUMS_FILE} anew, after files were changed on purpose"
    )
    parser.add_argument(
        "--card",
        metavar="README.md",
        help="compare a checkpoint with the list in the card of the model that was converted from it",
    )
    arguments = parser.parse_args(argv)
    if arguments.write and arguments.card:
        raise ValueError(f"--write and --card exclude each other: {SUMS_FILE} is of the folder itself")
    if arguments.write:
        write_checksums(arguments.folder)
    found = verify_folder(arguments.folder, arguments.card)
    for name in found.wrong:
        print(f"wrong or missing: {name}", file=sys.stderr)
    for name in found.unknown:
        print(f"no checksum: {name}", file=sys.stderr)
    if found.wrong:
        raise ValueError(f"{len(found.wrong)} of {len(found.right) + len(found.wrong)} files are not as they were")
    print(f"{len(found.right)} files are as they were")
