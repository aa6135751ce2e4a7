"""White space in the texts of users."""

import sys

import pytest

from vanilla_transformer_hf.common.white_space import EDGES, LINE_ENDS, line_spans, normalize_space, word_starts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" \ttwo  dogs\u00a0run\r\n", "two dogs run"),
        ("\ufefftwo\u3000dogs\u200b \u2003run\u2028", "two dogs run"),
        ("soft\u00adhyphen, zero\u200bwidth, \u200fmarks\u200e", "softhyphen, zerowidth, marks"),
        ("می\u200cخواهم 👩\u200d🚒 ന്\u200d", "می\u200cخواهم 👩\u200d🚒 ന്\u200d"),  # joiners are letters
        ("\u200b \u00a0", ""),
        ("as it is", "as it is"),
    ],
)
def test_a_model_gets_single_spaces(text, expected):
    assert normalize_space(text) == expected


def test_lines_end_where_python_says():
    assert {chr(code) for code in range(sys.maxunicode + 1) if not normalize_space(chr(code))} == {*EDGES}
    every = [chr(code) for code in range(sys.maxunicode + 1) if len(f"a{chr(code)}b".splitlines()) == 2]
    assert sorted(every) == sorted(LINE_ENDS)
    assert all(character in EDGES for character in every)
    for end in (*every, "\r\n"):
        text = f" a b{end}{end}\t{end}c "
        assert [text[start:stop] for start, stop in line_spans(text)] == ["a b", "c"]


def test_words_that_nobody_sees_do_not_count():
    assert word_starts(" a\u00a0b \u200b c") == [1, 3, 7]
