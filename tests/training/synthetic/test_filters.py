"""Each rule drops what it names, counts it and shows it."""

import pytest

from vanilla_transformer_hf.training.synthetic.synthetic_text import (
    RULES,
    Candidate,
    Dropped,
    PairFilter,
    facts_of,
    kept_pairs,
)


TEXT = "a man walks his dog"
GOOD = [
    Candidate(number, f"{TEXT} {number}", f"ein mann mit hund {number}", score=-number / 10) for number in range(1, 11)
]
BAD = {
    "held_out": Candidate(11, "secre\u0301t", "geheim"),  # in the other form of letters with accents
    "empty": Candidate(12, TEXT, " "),
    "copied": Candidate(13, f"{TEXT} \u00e9", TEXT.replace(" ", "  ") + " e\u0301"),
    "unfinished": Candidate(14, TEXT, "ein mann", finished=False),
    "repetition": Candidate(15, TEXT, "ein mann ein mann ein mann ein mann"),
    "length": Candidate(16, "a dog", "ein hund, von dem es heißt, dass er den ganzen tag am ufer liegt"),
    "score": Candidate(17, TEXT, "ein mann", score=-9.0),
    "round_trip": Candidate(18, TEXT, "ein mann", round_trip=12.0),
}


def test_each_rule_drops_counts_and_shows_its_kind():
    assert BAD.keys() == RULES.keys()
    pairs = [*GOOD, *BAD.values()]
    facts = facts_of(pairs, PairFilter(min_score=-2, min_round_trip=30), frozenset(["secr\u00e9t"]))
    dropped = Dropped()
    assert list(kept_pairs(pairs, facts, dropped)) == GOOD
    assert (dropped.read, dropped.kept) == (18, 10) and dropped.counts == dict.fromkeys(RULES, 1)
    assert all(dropped.examples[rule] == [pair] for rule, pair in BAD.items())
    told = list(dropped.lines())
    assert told[0] == "10 of 18 pairs kept" and len(told) == 1 + len(RULES)
    assert "1 far too long or too short left out (length), such as line 16: 'a dog' -> 'ein hund, von" in "".join(told)


def test_without_a_reason_nothing_is_dropped():
    originals = [
        Candidate(1, "no no no no", "nein nein nein nein"),  # the original repeats, too
        Candidate(2, "who", "weltgesundheitsorganisation"),  # short
        Candidate(3, TEXT, "ein mann"),
    ]
    facts = facts_of(originals, PairFilter())
    assert list(kept_pairs(originals, facts, Dropped())) == originals


def test_a_language_may_be_longer_than_the_other():
    pairs = [Candidate(number, "狗在跑步" * 5, "the dog is running " * 5 + str(number)) for number in range(3)]
    pairs = [Candidate(one.line, one.original, "".join(dict.fromkeys(one.translation))) for one in pairs]
    assert len(list(kept_pairs(pairs, facts_of(pairs, PairFilter()), Dropped()))) == 3


def test_rules_can_be_switched_off():
    pairs = [*GOOD, BAD["empty"], BAD["copied"]]
    kept = list(kept_pairs(pairs, facts_of(pairs, PairFilter(keep=("empty",))), Dropped()))
    assert kept == [*GOOD, BAD["empty"]]
    with pytest.raises(ValueError, match="keep='words': expected one of held_out, empty"):
        PairFilter(keep=("words",))


def test_the_worst_share_is_dropped():
    facts = facts_of(GOOD, PairFilter(drop_worst=0.2))
    assert list(kept_pairs(GOOD, facts, Dropped())) == GOOD[:8]


@pytest.mark.parametrize(
    "wrong", [{"max_length_ratio": 0.5}, {"drop_worst": 1}, {"min_round_trip": 101}, {"min_score": 1}]
)
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match="="):
        PairFilter(**wrong)
