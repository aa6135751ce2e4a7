"""Real checkpoints made by the toolkits themselves, kept beside the repository; tests on them are skipped without."""

from pathlib import Path

import pytest


PEERS = Path(__file__).parents[3] / "shared" / "peers"


def samples(*patterns: str) -> list:
    """Names of the sample folders that match, as parameters of a test; one that is skipped where there are none."""
    names = sorted(path.name for pattern in patterns for path in PEERS.glob(pattern) if path.is_dir())
    return names or [pytest.param("", marks=pytest.mark.skip(reason=f"no samples {' '.join(patterns)}"))]
