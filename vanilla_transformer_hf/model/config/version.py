"""Which version of this code wrote a config."""

import re
from typing import Any


VERSION_FIELD = "vanilla_transformer_hf_version"


def check_version(written: Any, current: str) -> None:
    """
    Raises:
        ValueError: It is not a valid version, or its first two numbers are newer than those of `current`.
    """
    numbers = [re.match(r"(\d+)\.(\d+)(?!\d)", str(version)) for version in (written, current)]
    theirs, ours = [tuple(map(int, found.groups())) if found else None for found in numbers]
    if theirs is None:
        raise ValueError(f"{VERSION_FIELD}={written!r}: must be a version, such as {current!r}")
    if ours is not None and theirs > ours:
        raise ValueError(
            f"vanilla_transformer_hf {written} wrote this config, and {current} would not understand all of it: "
            "upgrade the package; or, in a process that does not import it, open the model with "
            "trust_remote_code=True, which takes the code that came with it"
        )
