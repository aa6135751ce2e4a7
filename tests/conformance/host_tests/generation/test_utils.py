"""Stand-in for the module of the same name, which the source distribution of transformers leaves out."""


class GenerationTesterMixin:
    """Holds no tests: those of transformers are not distributed. Ours for `generate()` are in tests/."""
