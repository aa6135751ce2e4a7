"""What pyproject.toml cannot express: a wheel has the files of saved models, joined from the modules."""

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithSavedFiles(build_py):
    """An editable installation joins them when a model is saved, so that they are those of the checkout."""

    def run(self):
        super().run()
        if not self.editable_mode:
            place = Path("vanilla_transformer_hf", "model")
            folder = Path(self.build_lib, place, "saved_files")
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in runpy.run_path(str(place / "saving" / "bundle.py"))["join_modules"]().items():
                (folder / name).write_text(text, encoding="utf-8")


setup(cmdclass={"build_py": BuildWithSavedFiles})
