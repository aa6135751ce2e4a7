"""Import every module of the package: what CI does on systems without the whole suite."""

import pkgutil
import sys
from importlib import import_module
from importlib.util import find_spec

import vanilla_transformer_hf
from vanilla_transformer_hf.common.command_line import make_parser, run


def main() -> None:
    """Import all modules but those of extras that are not installed."""
    extras = {"ray", "starlette", "uvicorn", "ctranslate2", "onnx", "onnxruntime"}
    absent = {name for name in extras if find_spec(name) is None}
    count = 0
    for module in pkgutil.walk_packages(vanilla_transformer_hf.__path__, "vanilla_transformer_hf."):
        if module.name.endswith("__main__"):  # runs the command line
            continue
        try:
            import_module(module.name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in absent:
                raise
        count += 1
    for name in vanilla_transformer_hf.__all__:
        getattr(vanilla_transformer_hf, name)
    print(f"imported {count} modules on {sys.platform}, without {', '.join(sorted(absent)) or 'no extra'}")


def command() -> None:
    make_parser("import_all.py", __doc__).parse_args()
    main()


if __name__ == "__main__":
    run(command)
