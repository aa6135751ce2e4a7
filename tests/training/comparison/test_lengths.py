"""Translations of a comparison: their scores over the length of the sources, and which are better than by chance."""

import re

from vanilla_transformer_hf.evaluation.scores import read_predictions, write_predictions
from vanilla_transformer_hf.training.comparison.comparison import MeasuredRun, PlannedRun
from vanilla_transformer_hf.training.comparison.report import (
    differences_table,
    lengths_table,
    read_translations,
    split_by_length,
)
from vanilla_transformer_hf.training.comparison.run import FINISHED


def finished(place, variant, rows, role="test", seed=1):
    """A run that has translated these rows."""
    (place / variant).mkdir()
    write_predictions(place / variant / f"predictions.{role}.tsv", rows)
    return MeasuredRun(PlannedRun(variant, seed, place / variant, {"target_lang": "de"}), {"status": FINISHED})


def test_rows_are_split_into_ranges_of_about_equal_size():
    rows = [("a " * length, "", "") for length in [1, 1, 1, 1, 2, 3, 4, 5, 6, 30]]
    ranges = {name: [len(source.split()) for source, *_ in part] for name, part in split_by_length(rows).items()}
    assert ranges == {"1": [1, 1, 1, 1], "2–3": [2, 3], "4–5": [4, 5], "6–30": [6, 30]}


def test_a_variant_that_fails_on_long_sentences_is_seen(tmp_path):
    runs = []
    for name, longest in (("good", 99), ("short", 2)):
        rows = [("w " * n, "x y z z" if n <= longest else "q", "x y z z") for n in (1, 2, 8, 9) for _ in range(5)]
        runs.append(finished(tmp_path, name, rows))
    table = lengths_table(runs)
    assert "| words of the source | 1 | 2 | 8 | 9 |\n" in table and "| sentences | 5 | 5 | 5 | 5 |" in table
    assert "| `good`, exact match, % | 100.0 | 100.0 | 100.0 | 100.0 |" in table
    assert "| `short`, exact match, % | 100.0 | 100.0 | 0.0 | 0.0 |" in table
    assert lengths_table([]) == ""


def test_variants_that_differ_by_more_than_chance_are_marked(tmp_path):
    references = [f"Satz {number} von {chr(97 + number)} ist hier" for number in range(26)]
    rows = {
        "plain": [
            ("s", text.replace("ist", "x") if place % 2 else text, text) for place, text in enumerate(references)
        ],
        "same": [
            ("s", text.replace("ist", "x") if place % 2 else text, text) for place, text in enumerate(references)
        ],
        "good": [("s", text, text) for text in references],
    }
    runs = [finished(tmp_path, name, own) for name, own in rows.items()]
    runs.append(finished(tmp_path, "later", rows["good"], seed=2))
    runs.append(MeasuredRun(PlannedRun("broken", 1, tmp_path, {}), {"status": "failed"}))
    table = differences_table(runs)
    assert table.startswith(
        "The test text, one seed; the chance of seeds is in the deviations of table.md.\n\n| system |"
    )
    found = {name: cells.count(" *") for name, cells in re.findall("^\\| `(.+?)` (.*)$", table, re.MULTILINE)}
    assert found == {"plain": 0, "same": 0, "good": 3}
    assert differences_table(runs[:1]) == differences_table([]) == ""


def test_exchanged_sides_are_scored_in_their_own_language(tmp_path):
    """The words of Chinese are its characters, to which English would not be split."""
    measured = finished(tmp_path, "reverse", [("一", "a dog", "a dog")])
    for reverse, language in ((False, "zh"), (True, "en")):
        measured.run.settings.update(source_lang="en", target_lang="zh", reverse=reverse)
        assert read_translations([measured])[2] == (language, None)


def test_predictions_are_read_as_they_were_written(tmp_path):
    rows = [("a\tb", "c\\n\n", "d\r\\"), ("", "", "")]
    write_predictions(tmp_path / "rows.tsv", rows)
    assert read_predictions(tmp_path / "rows.tsv") == rows
