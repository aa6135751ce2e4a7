"""
Publish the folder of a model on the Hub, in one commit.

    python scripts/push_to_hub.py outputs/en-de your-name/en-de --license cc-by-4.0
    python scripts/push_to_hub.py outputs/en-de your-name/en-de --dry-run

Without a token (`hf auth login`, or HF_TOKEN) it is a dry run: it lists what would be sent, and sends nothing.
"""

import argparse
import sys


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="what training, averaging or conversion wrote")
    parser.add_argument("repo_id", help="owner/name, or a name of your own")
    parser.add_argument("--private", action="store_true", help="make the repository private")
    parser.add_argument("--revision", help="branch to change; made if it is not there (default: the main branch)")
    parser.add_argument("--create_pr", action="store_true", help="open a pull request instead")
    parser.add_argument("--tag", help="tag for the commit")
    parser.add_argument("--message", default="Upload model", help="of the commit (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="list files and show the card; send and write nothing")
    parser.add_argument("--strict", action="store_true", help="refuse a card that lacks facts")
    return parser.parse_args()


def main(arguments: argparse.Namespace):
    from huggingface_hub import get_token

    from vanilla_transformer_hf.hub import plan_upload, publish_folder

    options = vars(arguments)
    dry_run = options.pop("dry_run")
    if dry_run or not get_token():
        plan = plan_upload(arguments.folder, arguments.repo_id)
        for file in plan.files:
            print(f"{file.name}\t{file.size}")
        for name, why in plan.left_out.items():
            print(f"{name}\tleft out: {why}")
        return
    done = publish_folder(**options)
    print(f"published: {done.pull_request or done.url} (commit {done.commit})")


if __name__ == "__main__":
    try:
        main(parse_arguments())
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, ValueError) as error:
        sys.exit(print(f"push_to_hub.py: {error}", file=sys.stderr) or 2)
