"""How many compiled kernels are kept. Nothing heavy is imported: oneDNN and torch read it at their first product."""

import os


# Kernels are compiled for each shape, and oneDNN and torch's layer above it keep 1,024 each. A search has another
# number of rows at most steps, training on long sentences another number of tokens in each batch; both come back to
# few. With all kernels, what `low_resource` has in use grew by 6 MiB a step; with few it stays, at the same speed.
SETTINGS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "64"}


def keep_few_kernels() -> None:
    """Let this process and its children keep few of them, unless the environment sets other numbers."""
    for name, kernels in SETTINGS.items():
        os.environ.setdefault(name, kernels)
