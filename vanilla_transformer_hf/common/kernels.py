"""How many compiled kernels are kept. Nothing heavy is imported: oneDNN reads it at its first product."""

import os


# oneDNN compiles a kernel for each shape, of some 20 KB, and keeps 1,024. A search has another number of rows at most
# steps, and another number of tokens in each batch of sources; it comes back to few of them. So does training on long
# sentences: 24 steps of `low_resource` took 2.0 GB with all kernels and 1.9 with so many, at the same speed.
KERNELS = 128
# The variable of oneDNN's documentation.
SETTING = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


def keep_few_kernels() -> None:
    """Let this process and its children keep `KERNELS` of them, unless the environment sets another number."""
    os.environ.setdefault(SETTING, str(KERNELS))
