"""The page's texts in every language: the same keys, and the same values in braces."""

import re

import pytest

from vanilla_transformer_hf.explorer.page import page_file, page_names


ENTRY = re.compile(r'^  "([\w.]+)":\s*`([^`]*)`,$', re.MULTILINE)
LANGUAGES = [name[len("texts_") : -len(".js")] for name in page_names() if name.startswith("texts_")]


def texts_of(language):
    text = page_file(f"texts_{language}.js")
    found = ENTRY.findall(text)
    assert len(found) == text.count("`,") and len(dict(found)) == len(found)  # every entry, none twice
    return dict(found)


def test_there_are_two_languages_and_the_page_knows_them():
    assert {"en", "zh"} <= {*LANGUAGES}
    table = page_file("texts.js")
    for language in LANGUAGES:
        assert f'import {{ {language} }} from "./texts_{language}.js"' in table and f"  {language}: {{" in table


@pytest.mark.parametrize("language", [one for one in LANGUAGES if one != "en"])
def test_every_text_is_translated_with_its_values(language):
    english, other = texts_of("en"), texts_of(language)
    assert list(other) == list(english)
    for key, text in english.items():
        values = [set(re.findall(r"\{(\w+)\}", one)) for one in (text, other[key])]
        assert values[0] == values[1], f"{key}: {values}"
        assert other[key].strip(), key
        assert max(map(len, other[key].splitlines())) <= 100


def test_texts_that_the_page_names_exist():
    english = texts_of("en")
    code = "".join(str(page_file(name)) for name in page_names() if name.endswith(".js"))
    for key in re.findall(r'say\("([\w.]+)"', code):
        assert key in english, key
