"""The training text has the rate that was asked for; nothing is left out."""

import pytest

from vanilla_transformer_hf.training.synthetic.mixing import again, amounts, evenly, parse_rate


@pytest.mark.parametrize(
    "real, synthetic, rate, expected",
    [
        (29, 145, "1:1", (145, 145)),
        (29, 145, "1:4", (36, 145)),
        (29, 145, "1:10", (29, 290)),
        (100, 10, "1:1", (100, 100)),
        (29, 145, "natural", (29, 145)),
        (10, 10, "2:1", (20, 10)),
    ],
)
def test_the_side_of_which_there_is_too_little_is_repeated(real, synthetic, rate, expected):
    assert amounts(real, synthetic, parse_rate(rate)) == expected


@pytest.mark.parametrize("text", ["1", "1:0", "a:b", "1:2:3", "-1:2", ""])
def test_other_rates_are_refused(text):
    with pytest.raises(ValueError, match="expected two whole numbers"):
        parse_rate(text)


def test_both_kinds_are_mixed_evenly():
    mixed = list(evenly(again(lambda: iter("ab")), again(lambda: iter("xyz")), 4, 8))
    assert mixed == ["x", "y", "a", "z", "x", "b", "y", "z", "a", "x", "y", "b"]
