"""
A small translation task that needs no download: numbers and dates, spelled out in English and German.

German turns units and tens around and writes a number as one word: "three hundred and forty-five thousand, six hundred
and seventy-eight" is "dreihundertfünfundvierzigtausendsechshundertachtundsiebzig".
"""

import datetime
import os
import random
from pathlib import Path

from ...common.files import write_text


# Smallest and largest number, and how many numbers of this range are in the corpus.
NUMBERS = ((0, 999, 1_000), (1_000, 9_999, 3_000), (10_000, 99_999, 6_000), (100_000, 999_999, 12_000))
DATES = (datetime.date(1800, 1, 1), datetime.date(2099, 12, 31), 8_000)
HELD_OUT = {"valid": 500, "test": 1_000}
# One in this many training lines has a full stop, and one is a list of up to this many phrases: a model that has never
# seen them could not translate them in texts.
FULL_STOP_EVERY, LIST_EVERY, LONGEST_LIST = 4, 6, 3
BETWEEN_PHRASES = (". ", "; ", ", ", " ")
LISTS = 12_000  # lines of a corpus of lists of numbers
# Texts of the look-up, the letters of its table, and their values. An entry such as "cx" becomes one token; one with a
# digit would not, and then an entry takes two steps to read.
LOOK_UPS, LETTERS, VALUES = 3_500, "abcdefghijklmnop", "wxyz"


def _is_well_spelled(number: int) -> bool:
    """Whether num2words writes the number as German does: it makes 101,000 an "einhunderteinstausend"."""
    return number < 2_000 or number // 1_000 % 100 != 1


def _number_pair(number: int) -> tuple[str, str]:
    from num2words import num2words

    return num2words(number, lang="en"), num2words(number, lang="de")


def _date_pair(date: datetime.date) -> tuple[str, str]:
    from babel.dates import format_date
    from num2words import num2words

    def spelled(language: str, between: str) -> str:
        weekday, month = (format_date(date, form, locale=language) for form in ("EEEE", "MMMM"))
        day, year = num2words(date.day, lang=language, to="ordinal"), num2words(date.year, lang=language, to="year")
        return between.format(weekday, day, month, year)

    return spelled("en", "{}, the {} of {} {}"), spelled("de", "{}, der {} {} {}")


def make_pairs(seed: int = 0) -> list[tuple[str, str]]:
    """(English, German) pairs in random order, each number and each date once; the same for the same seed."""
    rng = random.Random(seed)
    numbers = []
    for low, high, count in NUMBERS:
        numbers += rng.sample([number for number in range(low, high + 1) if _is_well_spelled(number)], count)
    first, last, count = DATES
    days = rng.sample(range((last - first).days + 1), count)
    pairs = [_number_pair(number) for number in numbers]
    pairs += [_date_pair(first + datetime.timedelta(days=day)) for day in days]
    rng.shuffle(pairs)
    return pairs


def make_lists(fewest: int, most: int, digits: int = 6, seed: int = 0) -> list[tuple[str, str]]:
    """(English, German) lists of numbers, each list once; numbers of each length up to `digits` are as frequent."""
    if not 1 <= fewest <= most <= 100:
        raise ValueError(f"lists of {fewest} to {most} numbers: expected 1 <= fewest <= most <= 100.")
    if not 1 <= digits <= 6:
        raise ValueError(f"digits={digits}: must be from 1 to 6.")
    if 10 ** (digits * most) < 5 * LISTS:
        raise ValueError(
            f"there are too few different lists of up to {most} numbers of up to {digits} digits: the corpus "
            f"has {LISTS:,} lines; take more digits or longer lists."
        )
    rng = random.Random(seed)
    lists: dict[tuple[int, ...], None] = {}
    while len(lists) < LISTS:
        size = rng.randint(fewest, most)
        numbers = [rng.randrange(10 ** rng.randint(1, digits)) for _ in range(size)]
        if all(map(_is_well_spelled, numbers)):
            lists[tuple(numbers)] = None
    spelled = [[_number_pair(number) for number in numbers] for numbers in lists]
    return [tuple("; ".join(side) for side in zip(*pairs)) for pairs in spelled]  # type: ignore[misc]


def make_labelled(divisor: int, seed: int = 0) -> list[tuple[str, str]]:
    """(English, class) of the numbers from 0 to 9,999 in random order; the class is "divisible" or "not divisible"."""
    if not 2 <= divisor <= 5_000:
        raise ValueError(f"divisible_by={divisor}: must be from 2 to 5,000.")
    from num2words import num2words

    numbers = random.Random(seed).sample(range(10_000), 10_000)
    return [(num2words(number), "not divisible" if number % divisor else "divisible") for number in numbers]


def place_values(spelled: str) -> str:
    """What the digits of each word of an English number count, such as `hundreds`; `other` for "hundred", "and"."""
    words = spelled.replace(",", "").split()
    thousand = words.index("thousand") if "thousand" in words else -1
    found = []
    for place, word in enumerate(words):
        kinds = (
            ("hundreds", "hundred_thousands") if words[place + 1 : place + 2] == ["hundred"] else ("ones", "thousands")
        )
        found.append("other" if word in ("hundred", "thousand", "and") else kinds[place < thousand])
    return " ".join(found)


def make_tagged(seed: int = 0) -> list[tuple[str, str]]:
    """(English, classes of its words) of the corpus's numbers in random order, as `place_values` says."""
    from num2words import num2words

    rng = random.Random(seed)
    numbers = [number for low, high, count in NUMBERS for number in rng.sample(range(low, high + 1), count)]
    rng.shuffle(numbers)
    return [(spelled, place_values(spelled)) for spelled in map(num2words, numbers)]


def make_look_up(words: int, seed: int = 0) -> list[tuple[str, str]]:
    """(text, classes of its words) of texts that begin with a table, which says what the letters behind it mean."""
    # A table of all letters in random order, each with a value, such as "cz aw by", then letters, whose classes are
    # their values; the class of an entry is "entry". Held-out texts have so many words; those for training 1/32 to all
    # of them: the task is learnt from short texts.
    fewest = 2 * len(LETTERS)
    if not fewest <= words <= 100_000:
        raise ValueError(f"look_up={words}: must be from {fewest} to 100,000 words.")
    rng = random.Random(seed)
    found = []
    for place in range(LOOK_UPS):
        is_held_out = place >= LOOK_UPS - sum(HELD_OUT.values())  # the last ones are
        size = words if is_held_out else max(fewest, words >> rng.randrange(6))
        table = {letter: rng.choice(VALUES) for letter in rng.sample(LETTERS, len(LETTERS))}
        asked = rng.choices(LETTERS, k=size - len(table))
        entries = [letter + value for letter, value in table.items()]
        classes = ["entry"] * len(table) + [table[letter] for letter in asked]
        found.append((" ".join([*entries, *asked]), " ".join(classes)))
    return found


def write_labelled_corpus(
    folder: str | os.PathLike[str], divisor: int | None = None, seed: int = 0, look_up: int | None = None
) -> dict[str, int]:
    """Write `train`, `valid` and `test`, without common numbers, as `.en` and `.class` files; return the sizes."""
    # A class says whether a number is divisible by `divisor`, or without one what each word counts; with `look_up` the
    # texts are those of `make_look_up`.
    if look_up is not None:
        pairs = make_look_up(look_up, seed)
    else:
        pairs = make_tagged(seed) if divisor is None else make_labelled(divisor, seed)
    return _write_parts(folder, _held_out(pairs) | {"train": pairs}, ("en", "class"))


def _held_out(pairs: list[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """The last pairs, which are taken out, for validation and test."""
    return {name: [pairs.pop() for _ in range(size)] for name, size in HELD_OUT.items()}


def _write_parts(
    folder: str | os.PathLike[str], parts: dict[str, list[tuple[str, str]]], suffixes: tuple[str, str]
) -> dict[str, int]:
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        for suffix, sentences in zip(suffixes, zip(*part)):
            write_text(folder / f"{name}.{suffix}", "".join(f"{sentence}\n" for sentence in sentences))
    return {name: len(part) for name, part in parts.items()}


def _as_lines(pairs: list[tuple[str, str]], seed: int) -> list[tuple[str, str]]:
    """A line for each pair: the pair alone, with a full stop, or followed by other pairs."""
    rng = random.Random(seed)
    lines = []
    for pair in pairs:
        phrases, end = [pair], "." if rng.randrange(FULL_STOP_EVERY) == 0 else ""
        between = rng.choice(BETWEEN_PHRASES)
        if rng.randrange(LIST_EVERY) == 0:
            phrases += rng.sample(pairs, rng.randint(1, LONGEST_LIST - 1))
            end = "." if between == ". " else end
        english, german = (between.join(side) + end for side in zip(*phrases))
        lines.append((english, german))
    return lines


def write_numbers_corpus(
    folder: str | os.PathLike[str],
    seed: int = 0,
    both_directions: bool = False,
    numbers_per_line: tuple[int, int] | None = None,
    digits: int = 6,
) -> dict[str, int]:
    """Write `train`, `valid` and `test`, without common phrases, as `.en` and `.de` files; return the sizes."""
    # Some lines of `train` end with a full stop, and some hold two or three phrases. With `numbers_per_line`, fewest
    # and most, the lines are lists (`make_lists`). With `both_directions` the files are `.source` and `.target`, and
    # hold each pair twice: from English, with the tag <2de> before the source, and from German, with <2en>.
    if numbers_per_line is None and digits != 6:
        raise ValueError(f"digits={digits} has no effect without numbers_per_line.")
    pairs = make_pairs(seed) if numbers_per_line is None else make_lists(*numbers_per_line, digits, seed)
    parts = _held_out(pairs) | {"train": _as_lines(pairs, seed) if numbers_per_line is None else pairs}
    if not both_directions:
        return _write_parts(folder, parts, ("en", "de"))
    for name, part in parts.items():
        both = [(f"<2de> {english}", german) for english, german in part]
        both += [(f"<2en> {german}", english) for english, german in part]
        random.Random(seed).shuffle(both)
        parts[name] = both
    return _write_parts(folder, parts, ("source", "target"))
