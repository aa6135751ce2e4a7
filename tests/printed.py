"""What code prints, beside what a page says that it prints."""

import re

import pytest


NUMBER = re.compile(r"-?\d+(?:\.(\d+))?")


def same_print(printed: str, shown: str, off: float = 1.01):
    """
    The words are equal, and the numbers to about the last digit, since CPUs round sums differently: `off` is by how
    many of its units a number may differ.
    """
    assert NUMBER.sub("0", printed).split() == NUMBER.sub("0", shown).split()
    for one, other in zip(NUMBER.finditer(printed), NUMBER.finditer(shown), strict=True):
        # A number without a point is a count, unless more may differ.
        unit = 10.0 ** -len(other[1]) if other[1] else float(off > 2)
        assert float(one[0]) == pytest.approx(float(other[0]), abs=off * unit, rel=0), f"{one[0]}: {other[0]}"
