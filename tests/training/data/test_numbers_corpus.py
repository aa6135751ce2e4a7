"""The quickstart's corpus."""

import pytest


pytest.importorskip("num2words")
pytest.importorskip("babel")

from vanilla_transformer_hf.training.data import numbers_corpus


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(numbers_corpus, "NUMBERS", ((0, 999, 60), (100_000, 999_999, 60)))
    monkeypatch.setattr(numbers_corpus, "DATES", (*numbers_corpus.DATES[:2], 60))
    monkeypatch.setattr(numbers_corpus, "HELD_OUT", {"valid": 20, "test": 30})


def read(folder):
    return {path.name: path.read_text(encoding="utf-8").split("\n")[:-1] for path in folder.iterdir()}


def test_the_same_seed_gives_the_same_disjoint_parts(small, tmp_path):
    assert numbers_corpus.write_numbers_corpus(tmp_path / "a") == {"valid": 20, "test": 30, "train": 130}
    numbers_corpus.write_numbers_corpus(tmp_path / "b")
    numbers_corpus.write_numbers_corpus(tmp_path / "c", seed=1)
    files = read(tmp_path / "a")
    assert files == read(tmp_path / "b") != read(tmp_path / "c")
    assert sorted(files) == ["test.de", "test.en", "train.de", "train.en", "valid.de", "valid.en"]
    for language in ("en", "de"):
        pairs = numbers_corpus.make_pairs()[:-50]  # the last are held out
        phrases = {pair[language == "de"] for pair in pairs}
        lines = files.pop(f"train.{language}")
        assert all(line.startswith(phrase) for line, phrase in zip(lines, [pair[language == "de"] for pair in pairs]))
        assert sum(line.endswith(".") for line in lines) > 20 and sum(len(line.split(". ")) > 1 for line in lines) > 1
        parts = [phrases] + [set(files[f"{part}.{language}"]) for part in ("valid", "test")]
        assert sum(map(len, parts)) == len(set.union(*parts)) == 180


def test_numbers_and_dates_are_spelled_as_german_does():
    assert numbers_corpus._number_pair(345_678) == (
        "three hundred and forty-five thousand, six hundred and seventy-eight",
        "dreihundertfünfundvierzigtausendsechshundertachtundsiebzig",
    )
    day = numbers_corpus.datetime.date(1987, 3, 13)
    assert numbers_corpus._date_pair(day) == (
        "Friday, the thirteenth of March nineteen eighty-seven",
        "Freitag, der dreizehnte März neunzehnhundertsiebenundachtzig",
    )


def test_numbers_that_the_library_misspells_are_left_out():
    assert "einstausend" in numbers_corpus._number_pair(101_000)[1]
    misspelled = [
        number
        for number in range(0, 1_000_000, 500)
        if numbers_corpus._is_well_spelled(number) and "einstausend" in numbers_corpus._number_pair(number)[1]
    ]
    assert not misspelled


def test_lists_have_so_many_numbers_of_so_many_digits(monkeypatch, tmp_path):
    monkeypatch.setattr(numbers_corpus, "HELD_OUT", {"valid": 20, "test": 30})
    monkeypatch.setattr(numbers_corpus, "LISTS", 200)
    sizes = numbers_corpus.write_numbers_corpus(tmp_path, numbers_per_line=(2, 4), digits=2)
    assert sizes == {"valid": 20, "test": 30, "train": 150}
    files = read(tmp_path)
    english, german = ([line for part in sizes for line in files[f"{part}.{side}"]] for side in ("en", "de"))
    spelled = dict(numbers_corpus._number_pair(number) for number in range(100))
    assert len(set(english)) == 200
    assert {line.count(";") for line in english} == {1, 2, 3}
    assert german == ["; ".join(spelled[number] for number in line.split("; ")) for line in english]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"numbers_per_line": (3, 2)}, "lists of 3 to 2 numbers: expected 1 <= fewest <= most <= 100"),
        ({"numbers_per_line": (1, 2), "digits": 7}, "digits=7: must be from 1 to 6"),
        ({"numbers_per_line": (1, 2), "digits": 1}, "too few different lists of up to 2 numbers of up to 1 digits"),
        ({"digits": 3}, "digits=3 has no effect without numbers_per_line"),
    ],
)
def test_lists_that_cannot_be_made_are_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        numbers_corpus.write_numbers_corpus(tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_classes_say_what_words_count(small, tmp_path):
    """Each word at its place: the sum of what they count is the number."""
    assert numbers_corpus.place_values("three hundred and forty-five thousand, six hundred and seventy-eight") == (
        "hundred_thousands other other thousands other hundreds other other ones"
    )
    sizes = numbers_corpus.write_labelled_corpus(tmp_path)
    files, factors = read(tmp_path), {"ones": 1, "hundreds": 100, "thousands": 1_000, "hundred_thousands": 100_000}
    factors["other"] = 0
    numbers = {numbers_corpus._number_pair(number)[0]: number for number in range(100)}
    spelled = set()
    for part in sizes:
        for text, classes in zip(files[f"{part}.en"], files[f"{part}.class"], strict=True):
            words = text.replace(",", "").split()
            number = sum(
                factors[kind] * numbers.get(word, 0) for word, kind in zip(words, classes.split(), strict=True)
            )
            assert numbers_corpus._number_pair(number)[0] == text
            spelled.add(text)
    assert len(spelled) == sum(sizes.values())


@pytest.mark.slow
def test_classes_say_what_divides_a_number(small, tmp_path):
    assert numbers_corpus.write_labelled_corpus(tmp_path, 3) == {"valid": 20, "test": 30, "train": 9_950}
    files = read(tmp_path)
    spelled = {numbers_corpus._number_pair(number)[0]: number for number in range(0, 10_000, 37)}
    found = dict(zip(files["train.en"], files["train.class"], strict=True))
    known = {spelled[text]: label for text, label in found.items() if text in spelled}
    assert len(known) > 200
    assert all(label == ("not divisible" if number % 3 else "divisible") for number, label in known.items())
    assert not set(files["train.en"]) & {*files["valid.en"], *files["test.en"]}
    with pytest.raises(ValueError, match="divisible_by=1: must be from 2"):
        numbers_corpus.make_labelled(1)


def test_a_look_up_asks_at_the_end_for_what_stands_at_the_begin(monkeypatch, tmp_path):
    monkeypatch.setattr(numbers_corpus, "HELD_OUT", {"valid": 20, "test": 30})
    monkeypatch.setattr(numbers_corpus, "LOOK_UPS", 250)
    sizes = numbers_corpus.write_labelled_corpus(tmp_path / "a", look_up=640)
    assert sizes == {"valid": 20, "test": 30, "train": 200}
    numbers_corpus.write_labelled_corpus(tmp_path / "b", look_up=640)
    files = read(tmp_path / "a")
    assert files == read(tmp_path / "b") and sorted(files)[0] == "test.class"
    letters = set(numbers_corpus.LETTERS)
    for part in sizes:
        for text, classes in zip(files[f"{part}.en"], files[f"{part}.class"], strict=True):
            words, found = text.split(), classes.split()
            table = {entry[0]: entry[1] for entry in words[: len(letters)]}
            assert table.keys() == letters and set(table.values()) <= set(numbers_corpus.VALUES)
            assert found == ["entry"] * len(letters) + [table[word] for word in words[len(letters) :]]
    assert {len(text.split()) for part in ("valid", "test") for text in files[f"{part}.en"]} == {640}
    assert {len(text.split()) for text in files["train.en"]} == {640, 320, 160, 80, 40, 32}


@pytest.mark.parametrize("words", [31, 100_001])
def test_a_look_up_of_a_wrong_length_is_refused(words, tmp_path):
    with pytest.raises(ValueError, match=f"look_up={words}: must be from 32 to 100,000 words"):
        numbers_corpus.write_labelled_corpus(tmp_path / "out", look_up=words)
    assert not (tmp_path / "out").exists()
