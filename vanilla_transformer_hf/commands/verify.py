"""
Compare the files of a folder with the checksums that it holds: SHA256SUMS, or what the Hub's cache has of a download.

    vanilla-transformer verify outputs/en-de
    vanilla-transformer verify outputs/en-de --write
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
    arguments = parser.parse_args(argv)
    if arguments.write:
        write_checksums(arguments.folder)
    found = verify_folder(arguments.folder)
    for name in found.wrong:
        print(f"wrong or missing: {name}", file=sys.stderr)
    for name in found.unknown:
        print(f"no checksum: {name}", file=sys.stderr)
    if found.wrong:
        raise ValueError(f"{len(found.wrong)} of {len(found.right) + len(found.wrong)} files are not as they were")
    print(f"{len(found.right)} files are as they were")
