"""Subtitles: numbers and times stay, the lines of one are translated together."""

import time

import pytest

from vanilla_transformer_hf.translation.documents.document import Reading, read_document
from vanilla_transformer_hf.translation.documents.subtitles import balanced_lines
from vanilla_transformer_hf.translation.results import Translation


SUBTITLES = """\ufeff1
00:00:01,000 --> 00:00:02,500 X1:10
<i>one two
three</i> four & five

2
00:00:03,000 --> 00:00:04,000
{\\an8}- six
- seven <3

3
00:00:05.000 --> 00:00:06.000

note
"""


def test_subtitles(shout):
    expected = SUBTITLES.replace("one two\nthree", "ONE TWO THREE").replace("</i> four & five", "</i>\nFOUR & FIVE")
    expected = expected.replace("six", "SIX").replace("seven", "SEVEN").replace("note", "NOTE")
    for end in ("\n", "\r\n", "\r"):
        content = SUBTITLES.replace("\n", end).encode()
        assert shout(content, "a.srt").decode() == expected.replace("\n", end)


TIMES = "00:00:01,000 --> 00:00:02,000\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        # Of two speakers, the second alone has a dash; one speaks two lines.
        (f"{TIMES}is it so?\n- no\n", f"{TIMES}IS IT SO?\n- NO\n"),
        (f"{TIMES}- one two three\nfour\n- yes\n", f"{TIMES}- ONE TWO\nTHREE FOUR\n- YES\n"),
        (f"{TIMES}<i>is it so?</i>\n<i>- no</i>\n", f"{TIMES}<i>IS IT SO?</i>\n<i>- NO</i>\n"),
        (f"{TIMES}<i>- one\n\u2012two</i>\n", f"{TIMES}<i>- ONE\n\u2012TWO</i>\n"),
        # A blank line inside of a subtitle, and none between two.
        (f"1\n{TIMES}one\n\ntwo\n", f"1\n{TIMES}ONE\n\nTWO\n"),
        (f"1\n{TIMES}one\n2\n{TIMES}two\n", f"1\n{TIMES}ONE\n2\n{TIMES}TWO\n"),
        (f"{TIMES}one\n{TIMES}two", f"{TIMES}ONE\n{TIMES}TWO"),
        (f"1\n{TIMES}42\nmen\n2\n{TIMES}two\n", f"1\n{TIMES}42\nMEN\n2\n{TIMES}TWO\n"),
        # Codes that show as a line break.
        (f"{TIMES}one\\Ntwo\n", f"{TIMES}ONE\\NTWO\n"),
    ],
)
def test_speakers_and_blank_lines(shout, content, expected):
    for end in ("\n", "\r\n", "\r"):
        assert shout(content.replace("\n", end).encode(), "a.srt").decode() == expected.replace("\n", end)


@pytest.mark.parametrize(
    "times",
    [
        *(
            "00:00:01, 000 --> 00:00:02, 000",
            "0:00:01.5-->0:00:02",
            "00:01,000 -> 00:02,000",
            "00:00:01:00 → 00:00:02:00",
        ),
        *("00 : 00 : 01,000 - -> 00 : 00 : 02,000", "-00:00:01,000 --> 00:00:02,000 X1:1", "1.5 --> 2.5", "a --> b"),
    ],
)
def test_times_as_programs_and_people_write_them(shout, times):
    assert shout(f"1\n{times}\none\n".encode(), "a.srt").decode() == f"1\n{times}\nONE\n"


def test_lines_are_balanced_and_end_outside_of_tags():
    assert balanced_lines('<font color="a b c d">one two</font> three four', 2) == [
        '<font color="a b c d">one two</font>', "three four"
    ]  # fmt: skip
    assert balanced_lines("one", 3) == ["one"] and balanced_lines("", 2) == [""]
    assert len(balanced_lines("a b c d e f", 3)) == 3


def test_hostile_subtitles_take_time_that_grows_with_their_length(shout):
    began = time.process_time()
    times = "00:00:01,000 --> 00:00:02,000\n"
    for content in ("\n" * 100_000, times * 5_000, "{" * 50_000, "a\n" * 20_000, "1:" * 50_000, "- a\n" * 9_000):
        shout((times + content).encode(), "a.srt")
    assert time.process_time() - began < 5


def test_dashes_of_speakers_do_not_reach_the_model():
    content = "00:00:01,000 --> 00:00:02,000\n- one - two\n<i>–three</i>\n".encode()
    document = read_document(content, Reading("a.srt"))
    assert document.texts == ["one - two", "three"]
    assert (
        document.translated([[Translation("eins")], [Translation("drei")]], lambda pairs: [None] * len(pairs))
        .decode()
        .endswith("\n- eins\n<i>–drei</i>\n")
    )
