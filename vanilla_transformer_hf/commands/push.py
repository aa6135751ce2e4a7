"""
Publish the folder of a model on the Hub, in one commit: what training, averaging or conversion wrote.

    vanilla-transformer push outputs/en-de your-name/en-de --license cc-by-4.0
    vanilla-transformer push outputs/en-de your-name/en-de --onnx
    vanilla-transformer push outputs/en-de your-name/en-de --dry-run

Without a token (`hf auth login`, or HF_TOKEN) it is a dry run: files with sizes and the card; nothing is sent.
"""

import tempfile
from pathlib import Path

from ..common.command_line import make_parser


PLACE = ("private", "revision", "create_pr", "tag", "message", "strict")


def main(prog: str, argv: list[str]) -> None:
    parser = make_parser(prog, __doc__)
    parser.add_argument("folder", help="folder that training, averaging or conversion wrote")
    parser.add_argument("repo_id", help="owner/name, or only a name for your own account")
    parser.add_argument("--dry-run", action="store_true", help="list files and show the card; send and write nothing")
    parser.add_argument("--strict", action="store_true", help="end with an error if the card lacks metadata")
    parser.add_argument(
        "--onnx", action="store_true", help="export it for transformers.js, and publish onnx/ beside the weights"
    )
    there = parser.add_argument_group("place")
    there.add_argument("--private", action="store_true", default=None, help="make a new repository private")
    there.add_argument("--revision", help="branch to commit to; created if missing (default: the main branch)")
    there.add_argument("--create_pr", action="store_true", help="open a pull request instead")
    there.add_argument("--tag", help="tag the commit with this name")
    there.add_argument("--message", default="Upload model", help="message of the commit (default: %(default)s)")
    card = parser.add_argument_group("metadata of the card, which is never guessed")
    card.add_argument("--license", help="the Hub's identifier, such as cc-by-4.0; or other, with name and link")
    card.add_argument("--license_name")
    card.add_argument("--license_link")
    card.add_argument("--source_lang", help="code, such as en")
    card.add_argument("--target_lang", help="code, such as de")
    card.add_argument("--corpus", help="name of the training data")
    card.add_argument("--datasets", nargs="+", metavar="ID", help="ids of the training data on the Hub")
    card.add_argument("--base_model", metavar="ID", help="the model that was fine-tuned or converted")
    card.add_argument("--base_model_relation", help="finetune, quantized, merge or adapter (default: as it was made)")
    card.add_argument("--project_url", help="https address of the repository of git that holds this package")
    card.add_argument("--example", help="source sentence of the usage example")
    arguments = parser.parse_args(argv)
    from huggingface_hub import get_token

    from ..publishing.hub import publish_folder
    from ..publishing.upload_plan import plan_upload

    options = {name: value for name, value in vars(arguments).items() if value is not None}
    folder, repo_id, dry_run, onnx = [options.pop(name) for name in ("folder", "repo_id", "dry_run", "onnx")]
    if dry_run or not get_token():
        plan = plan_upload(folder, repo_id, **{name: value for name, value in options.items() if name not in PLACE})
        print(plan)
        if onnx:
            print("with onnx/, exported for transformers.js when it is published")
        if arguments.strict and plan.missing:
            raise ValueError("--strict: the card lacks the facts above")
        why = "" if dry_run else ": no Hub token was found (`hf auth login`, or HF_TOKEN)"
        print(f"\nThis was a dry run{why}.")
        return
    with tempfile.TemporaryDirectory() as place:
        beside: dict[str, Path | bytes] = {}
        if onnx:
            from ..export.export import export_for

            export_for("onnx", folder, Path(place, "model"), layout="transformers.js")
            beside = {f"onnx/{path.name}": path for path in sorted(Path(place, "model", "onnx").iterdir())}
        done = publish_folder(folder, repo_id, beside=beside, **options)
    tag = f", tag {done.tag}" if done.tag else ""
    print(f"published: {done.pull_request or done.url} (commit {done.commit}{tag})")
