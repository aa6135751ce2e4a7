"""Scores of a comparison over the length of the sources."""

from types import SimpleNamespace

from vanilla_transformer_hf.evaluation.scores import read_predictions, write_predictions
from vanilla_transformer_hf.training.comparison.report import lengths_table, split_by_length


def test_rows_are_split_into_ranges_of_about_equal_size():
    rows = [("a " * length, "", "") for length in [1, 1, 1, 1, 2, 3, 4, 5, 6, 30]]
    ranges = {name: [len(source.split()) for source, *_ in part] for name, part in split_by_length(rows).items()}
    assert ranges == {"1": [1, 1, 1, 1], "2–3": [2, 3], "4–5": [4, 5], "6–30": [6, 30]}


def test_a_variant_that_fails_on_long_sentences_is_seen(tmp_path):
    runs = []
    for name, longest in (("good", 99), ("short", 2)):
        place = tmp_path / name
        place.mkdir()
        rows = [("w " * n, "x y z z" if n <= longest else "q", "x y z z") for n in (1, 2, 8, 9) for _ in range(5)]
        write_predictions(place / "predictions.test.tsv", rows)
        run = SimpleNamespace(variant=name, place=place, settings={"target_lang": "de"})
        runs.append(SimpleNamespace(run=run, result={"status": "finished"}))
    table = lengths_table(runs)
    assert "| words of the source | 1 | 2 | 8 | 9 |\n" in table and "| sentences | 5 | 5 | 5 | 5 |" in table
    assert "| `good`, exact match, % | 100.0 | 100.0 | 100.0 | 100.0 |" in table
    assert "| `short`, exact match, % | 100.0 | 100.0 | 0.0 | 0.0 |" in table
    assert lengths_table([]) == ""


def test_predictions_are_read_as_they_were_written(tmp_path):
    rows = [("a\tb", "c\\n\n", "d\r\\"), ("", "", "")]
    write_predictions(tmp_path / "rows.tsv", rows)
    assert read_predictions(tmp_path / "rows.tsv") == rows
