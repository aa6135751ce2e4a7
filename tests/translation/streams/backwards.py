"""A translator that answers at once: its translation of a line is the line backwards."""

from vanilla_transformer_hf.translation.text.tally import Tally
from vanilla_transformer_hf.translation.translator import Translation


class Backwards:
    """What the streams use of a `Translator`; `seen` are the windows that it was given."""

    def __init__(self):
        self.seen = []

    def translate_stream(self, items, tally: Tally, window, **options):
        self.seen.append(list(items))
        for item in items:
            if item == "fail":
                raise ValueError("told to fail")
            tally.add(sentences=1, tokens=len(item.split()), too_long="long" in item)
            yield [Translation(item[::-1], -0.5, item[::-1].split())]
