"""Translations of parts, joined to that of the text."""

import pytest

from vanilla_transformer_hf.translation.results import Translation, join_parts, join_texts
from vanilla_transformer_hf.translation.text.splitting import Part
from vanilla_transformer_hf.translation.text.texts import without_empty


def parts(*before, after=""):
    found = [Part("x", [5], before=each) for each in before]
    found[-1].after = after
    return found


@pytest.mark.parametrize(
    ("before", "translations", "expected"),
    [
        (("", None), ("One.", "Two."), "One. Two."),
        (("", None), ("我是人。", "他走了。"), "我是人。他走了。"),
        (("", None), ("我用 Python", "他走了。"), "我用 Python 他走了。"),
        (("", None), ("안녕", "하세요"), "안녕 하세요"),
        (("", None), ("Hi 😀", "Two."), "Hi 😀 Two."),
        ((" ", None, "\r\n\r\n", None), ("", "Two.", "", ""), " Two.\r\n\r\n"),
        (("", None, None), ("One.", "", "Three."), "One. Three."),
    ],
)
def test_what_stands_between_parts(before, translations, expected):
    text, starts = join_texts(parts(*before), translations)
    assert text == expected
    assert [text[start : start + len(each)] for start, each in zip(starts, translations)] == list(translations)


def test_parts_whose_translations_have_no_tokens_have_the_score_of_an_empty_line():
    """A model that writes nothing but padding has such translations; their sum was divided by no tokens."""
    empty = [[Translation("", -3.0)]] * 2
    (joined,) = join_parts("a b", parts("", " "), empty, penalty=lambda length: length.float())
    assert not joined.strip() and joined.score == 0 and joined.tokens == []


def test_white_space_before_parts_without_tokens_is_kept():
    first, empty, last = parts(" ", "\n", "\n\n")
    empty.ids = []
    kept, rest = without_empty([first, empty, last])
    assert ([each.before for each in kept], rest) == ([" ", "\n\n\n"], "")
    last.ids = []
    assert without_empty([first, last]) == ([first], "\n\n\n")
    assert without_empty([empty])[0] == []
