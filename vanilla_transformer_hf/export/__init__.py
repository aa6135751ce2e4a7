"""
Exports of our model to engines that run it without this package: one file per engine, one procedure (`export.py`) for
all. The other way out, into the checkpoints of other training toolkits, is `conversion/targets.py`.

Nothing heavy is imported here: a command that has a kept copy reads it without torch.
"""


class ExportError(ValueError):
    """The reasons why a model cannot be exported, for the user: one line, or a list with a line for each."""
