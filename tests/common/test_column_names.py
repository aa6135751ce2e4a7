"""Names of columns in any spelling, and rows that are not names."""

import pytest
from machine import is_linear, seconds_of

from vanilla_transformer_hf.common.column_names import find_columns, is_header


def names(source=None, target=None):
    return (source or "source", "source"), (target or "target", "target")


@pytest.mark.parametrize(
    "columns",
    [
        *(["DE", "EN"], ["de-DE", "en-US"], ["deu_Latn", "eng_Latn"], ["ger", "eng"], ["German", "English"]),
        *(["Deutsch", "Englisch"], ["allemand", "anglais"], ['"German"', " 'English' "], ["# German", "English:"]),
        *(["text_de", "text_en"], ["German sentence", "ENGLISH SENTENCE"], ["German (Germany)", "English (US)"]),
        *(["Target", "Source"], ["trg", "src"], ["target text", "source text"]),
    ],
)
def test_names_in_any_spelling_are_found_and_tell_the_direction(columns):
    assert is_header(columns, names("en", "de"))
    assert find_columns("a.tsv", columns, names("en", "de")) == columns[::-1]
    assert find_columns("a.tsv", ["id", *columns[::-1]], names("en", "de")) == columns[::-1]


@pytest.mark.parametrize(
    "source, target, columns",
    [
        ("en", "yor", ["English", "Yoruba"]),
        ("en", "yo", ["english", "YORÙBÁ"]),
        ("en", "yo", ["English", "Èdè Yorùbá"]),
        ("zh", "no", ["Chinese (Simplified)", "Norwegian Bokmål"]),
        ("zh", "sw", ["cmn", "Kiswahili"]),
        ("pt-BR", "pt-PT", ["pt_br", "pt_pt"]),
    ],
)
def test_languages_of_many_names(source, target, columns):
    assert is_header(columns, names(source, target))
    assert find_columns("a.tsv", columns, names(source, target)) == columns


@pytest.mark.parametrize(
    "source, target, columns, message",
    [
        (None, None, ["English", "Yoruba"], "no column 'source' for the source text; there are: English, Yoruba"),
        (None, None, ["sentence1", "sentence2"], "no column 'source'.* Name it by source_lang or source_column"),
        ("en", "de", ["English", "Yoruba"], "no column 'de' or 'target'.* Name it by target_column"),
        ("en", "de", ["en-US", "en-GB", "de"], "several columns could be 'en' or 'source'.*: 'en-US', 'en-GB'"),
        ("en", "de", ["en", "de", "de"], "several columns could be 'de'"),
        ("en", "en", ["en", "de"], "source and target are the same column 'en'"),
    ],
)
def test_probable_headers_that_do_not_say_the_sides_are_asked_about(source, target, columns, message):
    assert is_header(columns, names(source, target))
    with pytest.raises(ValueError, match=message):
        find_columns("a.tsv", columns, names(source, target))


@pytest.mark.parametrize(
    "cells", [["one", "ein"], ["is it so?", "ist es so?"], ["English is hard", "Deutsch ist schwer"], ["", ""]]
)
def test_texts_are_not_headers(cells):
    assert not is_header(cells, names("en", "de"))
    assert not is_header(cells, names())


def test_a_long_first_line_is_read_once():
    assert is_linear(lambda size: seconds_of(lambda: is_header(["a dog " * size, "ein"], names("en", "de"))), 4000)
