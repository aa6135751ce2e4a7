"""The command `score-systems`: its table, its JSON, its page, and what it refuses in one line."""

import json
import warnings
from functools import partial

import pytest


@pytest.fixture
def call(command, tmp_path, monkeypatch):
    """`call(*argv)`: exit code, output and errors of the command, in a folder with a text and its translations."""
    monkeypatch.chdir(tmp_path)
    for name, lines in {
        "test.en": ["a dog", "two cats", "three"],
        "test.de": ["ein Hund läuft hier", "zwei Katzen schlafen jetzt", "drei"],
        "a.de": ["ein Hund läuft hier", "zwei Katzen schlafen", "drei"],
        "b.de": ["ein Hund rennt dort", "Katzen", "drei"],
        "same.de": ["ein Hund läuft hier", "zwei Katzen schlafen", "drei"],
        "short.de": ["ein Hund"],
        "empty.de": [],
    }.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    return partial(command, "score-systems", "--reference", "test.de")


def test_the_table_the_json_and_the_page_have_the_same_scores(call, tmp_path):
    code, out, err = call("--source", "test.en", "a.de", "b.de", "--page", "page.html")
    assert (code, err) == (0, "") and out.startswith("| system | BLEU | chrF | TER |\n| --- | ---: | ---: | ---: |\n")
    assert "\n3 sentences. In brackets:" in out and "from `a.de` is by chance" in out
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h2>b.de beside a.de</h2>" in page and '<td dir="auto">two cats</td>' in page
    code, nothing, err = call("a.de", "b.de", "--format", "json", "--output", "scores.json")
    assert (code, nothing, err) == (0, "", "")
    found = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    assert list(found["systems"]) == ["a.de", "b.de"] and found["sentences"] == 3
    for name, scores in found["systems"].items():
        for score in scores.values():
            assert f"{score['score']:.2f} ({score['mean']:.2f} ± {score['interval']:.2f})" in out, name
    assert set(found["systems"]["a.de"]["TER"]) == {"score", "mean", "interval", "p_bootstrap", "p_randomization"}
    for signature in found["signatures"].values():
        assert signature in out
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.name not in ("page.html", "scores.json")) == [
        *([".de"] * 6),
        ".en",
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["a.de"], "a.de alone: expected two systems or more; sacrebleu has the scores of one"),
        (["a.de", "./a.de"], "a.de, ./a.de: expected each system once"),
        (["b.de", "a.de", "a.de"], "b.de, a.de, a.de: expected each system once"),
        (["a.de", "short.de"], "short.de has 1 lines, test.de has 3: expected as many"),
        (["a.de", "b.de", "--source", "short.de"], "short.de has 1 lines, test.de has 3: expected as many"),
        (["a.de", "empty.de"], "empty.de is empty: expected a sentence on each line"),
        (["a.de", "b.de", "--reference", "empty.de"], "empty.de is empty: expected a sentence on each line"),
        (["a.de", "none.de"], "none.de: no such file or directory"),
        (["a.de", ""], "[Errno 2] No such file or directory: ''"),
        (["a.de", "b.de", "--comet", "none.json"], "none.json: no such file or directory"),
        (["a.de", "b.de", "--comet", "a.de"], "a.de cannot be read as JSON: "),
        (["a.de", "b.de", "--tokenize", "my"], "tokenize='my': expected one of "),
        (["a.de", "b.de", "--page", "none/page.html"], "none/page.html: expected a file in a folder that exists"),
        (["a.de", "b.de", "--page", "b.de"], "b.de is also the output (b.de), which would replace it; name another"),
        (["a.de", "b.de", "--output", "test.de"], "test.de is also the output (test.de), which would replace it"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(call, tmp_path, argv, message):
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    code, out, err = call(*argv)
    assert (code, out) == (2, "") and err.startswith(f"vanilla-transformer score-systems: {message}"), err
    assert err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_equal_systems_have_equal_scores_without_tests_and_the_others_theirs(call, tmp_path):
    code, out, err = call("a.de", "same.de", "b.de", "--page", "page.html")
    first, same, other = (line.split(" | ") for line in out.splitlines()[2:5])
    assert (code, err) == (0, "") and first[1:] == same[1:] and "p " not in "".join(same)
    assert all(", p " in score for score in other[1:])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "0 of 3 translations differ; chrF: 0 are better, 0 worse." in page and page.count("<table>") == 2


def test_page_and_scores_are_two_files(call, tmp_path):
    code, _, err = call("a.de", "b.de", "--page", "one", "--output", "./one")
    assert code == 2 and err.count("\n") == 1 and not (tmp_path / "one").exists()


def test_a_warning_is_one_line_and_names_the_option(call, tmp_path):
    for name, line in {"test.de": "ein hund .", "a.de": "ein hund .", "b.de": "ein hund"}.items():
        (tmp_path / name).write_text(f"{line}\n" * 100)
    with pytest.warns(UserWarning, match=r"^many translations end in ' \.'.*--tokenize none") as said:
        assert call("a.de", "b.de")[0] == 0
    assert len(said) == 1 and "\n" not in str(said[0].message)
    assert warnings.formatwarning(said[0].message, UserWarning, "code.py", 1) == f"Warning: {said[0].message}\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call("a.de", "b.de", "--tokenize", "none")[0] == 0
