"""What is too large or not ours to keep in the repository; tests on it are skipped where it is not."""

from pathlib import Path


def kept_beside(*names: str) -> Path:
    """A place in the folder `shared`, which lies in a folder above this one; it need not exist."""
    shared = (parent / "shared" for parent in Path(__file__).resolve().parents)
    return next((path for path in shared if path.is_dir()), Path("shared")).joinpath(*names)
