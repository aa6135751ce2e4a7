"""Systems beside each other: intervals and p-values, which are sacreBLEU's, and the page of what differs most."""

import json
import random
import re
import subprocess
import sys

import numpy as np
import pytest

from vanilla_transformer_hf.evaluation.systems import compare_systems, page_of_differences, read_comet


WORDS = ["der", "Hund", "die", "Katze", "läuft", "schläft", "im", "Park", "auf", "einem", "Stuhl", "schnell"]


@pytest.fixture(scope="module")
def texts():
    """References of 40 sentences, and three systems that get a word in 20, in 5, and in 4 wrong."""
    draw = random.Random(0)
    references = [" ".join(draw.choices(WORDS, k=draw.randint(4, 9))) + "." for _ in range(40)]

    def worse(share):
        return [re.sub(r"\w+", lambda word: "x" if draw.random() < share else word[0], line) for line in references]

    return {"reference": references, "a": worse(0.05), "b": worse(0.2), "c": worse(0.25)}


def systems_of(texts, *names):
    return {name: texts[name] for name in names}


def test_scores_intervals_and_p_values_are_those_that_sacrebleu_prints(texts, tmp_path):
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    found = compare_systems(systems_of(texts, "b", "a", "c"), [texts["reference"]], resamples=200, trials=300)
    for test, number, p_value in (("bs", 200, "p_bootstrap"), ("ar", 300, "p_randomization")):
        argv = ["reference", "-i", "b", "a", "c", "-m", "bleu", "chrf", "ter", "--format", "text", "--width", "4"]
        command = [sys.executable, "-m", "sacrebleu", *argv, f"--paired-{test}", f"--paired-{test}-n", str(number)]
        printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
        numbers = [[float(each) for cell in row for each in re.findall(r"\d+\.\d+", cell)] for row in rows[1:]]
        expected = []  # sacreBLEU has the p-values in a row below the scores
        for scores in found.systems.values():
            names = ("score", "mean", "interval") if test == "bs" else ("score",)
            expected.append([getattr(score, name) for score in scores.values() for name in names])
            expected.append([getattr(score, p_value) for score in scores.values()])
        expected.remove([None] * 3)
        assert len(numbers) == len(expected) == 5
        for theirs, ours in zip(numbers, expected, strict=True):
            assert ours == pytest.approx(theirs, abs=6e-5)
    better, worse = (found.systems[name]["chrF"] for name in "ac")
    assert max(better.p_bootstrap, better.p_randomization) < 0.05 and str(better).endswith(" *")
    assert worse.p_bootstrap < 0.05 < worse.p_randomization and not str(worse).endswith(" *")  # both decide
    assert found.sentences == 40 and "|bs:200|" in found.signatures["TER"] and "|ar:300|" in found.signatures["TER"]


def test_comet_is_the_mean_of_its_sentences_with_the_same_tests(texts):
    comet = {"a": [80 + place % 7 for place in range(40)], "b": [79.5 + place % 5 for place in range(40)]}
    found = compare_systems(systems_of(texts, "a", "b"), [texts["reference"]], None, None, comet, 500, 500)
    one, other = (found.systems[name]["COMET"] for name in "ab")
    old, new = (np.array(comet[name], dtype=float) for name in "ab")
    drawn = np.random.default_rng(12345).choice(40, size=(500, 40), replace=True)
    means, gains = new[drawn].mean(1), (new - old)[drawn].mean(1)
    low, high = np.sort(means)[[12, 487]]
    assert (other.score, other.mean, other.interval) == pytest.approx((new.mean(), means.mean(), (high - low) / 2))
    away = np.abs(gains) - np.abs(gains).mean()
    assert other.p_bootstrap == pytest.approx((1 + (away > abs(new.mean() - old.mean())).sum()) / 501)
    assert one.p_bootstrap is None and 0 < other.p_randomization < 1


def test_equal_scores_have_no_p_value(texts):
    """Of them, sacreBLEU's is 1 / (n + 1), as of a sure difference, because it counts what is greater than nothing."""
    found = compare_systems({"a": texts["a"], "same": texts["a"], "b": texts["b"]}, [texts["reference"]], trials=20)
    assert {score.p_randomization for score in found.systems["same"].values()} == {None}
    assert "p " not in str(found.systems["same"]["BLEU"]) and "*" not in str(found.systems["same"]["BLEU"])
    assert found.systems["b"]["BLEU"].p_bootstrap < 0.05


def test_several_references_and_the_language_count(texts):
    both = [texts["reference"], texts["a"]]
    found = compare_systems(systems_of(texts, "a", "b"), both, "ja", "char", resamples=20, trials=20)
    assert found.systems["a"]["BLEU"].score == pytest.approx(100) and "nrefs:2" in found.signatures["chrF"]
    assert "tok:char" in found.signatures["BLEU"]


def test_the_page_has_the_largest_differences_marked_and_loads_nothing():
    reference = [f"Satz {number} ist gut & richtig" for number in range(30)]
    first = [f"{line} <b>" for line in reference]
    second = [*first[:3], *(line.replace("gut", "x" * (30 - number)) for number, line in enumerate(first[3:]))]
    page = page_of_differences({"a<": first, "b": second}, [reference], [f"s{number}&" for number in range(30)])
    assert "<h2>b beside a&lt;</h2><p>27 of 30 translations differ; chrF: 0 are better, 27 worse.</p>" in page
    shown = re.findall(r"<h3>Sentence (\d+): (-[\d.]+)</h3>", page)
    assert len(shown) == 20 and [float(gain) for _, gain in shown] == sorted(float(gain) for _, gain in shown)
    assert "ist <mark>gut</mark> &amp; richtig &lt;b&gt;" in page and "ist <mark>xxx" in page
    assert "s3&amp;</td>" in page and "<b>" not in page and not re.search("https?:|src=|href=|<script|@import", page)


def test_texts_without_spaces_are_marked_by_characters_and_long_ones_not_at_all():
    page = page_of_differences({"a": ["私は犬です"], "b": ["私は猫です"]}, [["私は犬です"]])
    assert "私は<mark>犬</mark>です" in page and "私は<mark>猫</mark>です" in page
    long = "ein " * 5000
    assert "<mark>" not in page_of_differences({"a": [long], "b": [long + "Hund"]}, [["ein"]])


def test_scores_of_comet_are_read_for_the_translations_that_they_are_of(tmp_path):
    path, systems = tmp_path / "comet.json", {"a.de": [" eins ", "zwei"], "b.de": ["ein", "zwei"]}
    rows = [{"src": "one", "mt": "eins", "ref": "eins", "COMET": 0.75}, {"src": "two", "mt": "zwei", "COMET": 0.5}]
    for content, message in (
        ({"x": rows}, "has no scores of the translations in b.de: give comet-score this file, too"),
        ({"x": rows[:1]}, "has no scores of the translations in a.de"),
        ({"x": [{**rows[0], "COMET": float("nan")}, rows[1]]}, "comet.json"),
        ({"x": [{"mt": "eins"}]}, "is not what comet-score --to_json writes"),
        ([rows], "is not what comet-score --to_json writes"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=message):
            read_comet(str(path), systems)
    path.write_text(json.dumps({"x": rows, "y": [{**rows[0], "mt": "ein", "COMET": 0.25}, rows[1]]}))
    assert read_comet(str(path), systems) == {"a.de": [75, 50], "b.de": [25, 50]}
