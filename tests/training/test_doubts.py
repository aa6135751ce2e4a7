"""What a run's text does not allow is said in a line each, and nothing of a text that allows it."""

from types import SimpleNamespace

import datasets
import pytest

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.training.data.corpora import CorpusFilter, tokenize_corpus
from vanilla_transformer_hf.training.doubts import FEWEST_SCORED, find_doubts


WORDS = [first + second for first in "bdfgklmn" for second in ("a", "ei", "o", "u")]
GOOD = [(f"{a} {b} {c}", f"{c} {a} {b}") for a in WORDS for b in WORDS[:8] for c in WORDS[:4]]


@pytest.fixture
def doubts(tmp_path, datasets_cache):
    """`doubts(pairs, ...)`: the sentences about a training text of these pairs."""

    def doubts(
        pairs,
        validation=FEWEST_SCORED,
        vocab_size=300,
        model=None,
        test=(),
        task="translation",
        drop_duplicates=False,
        source_tags=None,
        **choices,
    ):
        source, target = ([pair[side] for pair in pairs] for side in (0, 1))
        tokenizer = VanillaTransformerTokenizer.train(
            source, target, vocab_size=vocab_size, show_progress=False, min_frequency=1, **choices
        )
        corpus = datasets.Dataset.from_dict({"source": source, "target": target})
        data = tokenize_corpus(corpus, tokenizer, CorpusFilter(50, 50, "drop")).data
        names = {"model_name_or_path": model, "begins_with": model}
        of_data = {"task": task, "drop_duplicates": drop_duplicates, "source_tags": source_tags}
        run = SimpleNamespace(data=SimpleNamespace(**of_data), model=SimpleNamespace(**names))
        corpora = {"train": corpus}
        if test:
            corpora["test"] = datasets.Dataset.from_dict({"source": test, "target": test})
        return list(find_doubts(run, tokenizer, corpora, {"train": data, "validation": range(validation)}))

    return doubts


@pytest.mark.parametrize("two", [False, True])
def test_nothing_is_said_of_a_good_text(doubts, two):
    assert doubts(GOOD, separate_vocabularies=two) == []


def test_a_vocabulary_with_pieces_that_are_hardly_seen(doubts):
    rare = [(f"{word}xyz{number}", "ba") for number, word in enumerate(WORDS)]
    (said,) = doubts([*GOOD, *rare], vocab_size=420)
    assert "tokens are seen fewer than 5 times in the training text" in said and "lower vocab_size to, say, " in said
    (said,) = doubts([*GOOD, *rare], vocab_size=420, separate_vocabularies=True)
    assert " source tokens are seen fewer than 5 times" in said
    assert doubts([*GOOD, *rare], vocab_size=420, model="trained further") == []


def test_a_text_of_denoising_is_counted_once_not_as_both_sides(doubts):
    texts = [*(text for text, _ in GOOD), *(f"{word}xyz{number}" for number, word in enumerate(WORDS) for _ in "123")]
    (said,) = doubts([(text, text) for text in texts], vocab_size=420, task="denoising")
    assert "tokens are seen fewer than 5 times in the training text" in said


def test_a_validation_text_that_is_too_small_for_its_score(doubts):
    (said,) = doubts(GOOD, validation=FEWEST_SCORED - 1)
    assert said.startswith("the validation text has 299 pairs: scores of so few differ")


def test_held_out_sources_that_stand_in_the_training_text(doubts):
    unseen = [f"unseen {number}" for number in range(198)]
    (said,) = doubts(GOOD, test=[*unseen, GOOD[0][0], GOOD[0][0]])
    assert said.startswith("2 of 200 test pairs have a source that stands in the training text, too")
    assert doubts(GOOD, test=[*unseen, "also unseen", GOOD[0][0]]) == [], "one of 200 may be chance"
    (said,) = doubts([*GOOD, ("b\u00e1 b\u00e8i", "ba bei")], test=[*unseen, "ba\u0301 be\u0300i", GOOD[0][0]])
    assert said.startswith("2 of 200 test pairs"), "letters with accents have two forms"


def test_half_of_the_pairs_are_identical(doubts):
    different = [(source, target) for source, target in GOOD if source != target]
    copies = [(source, source) for source, _ in different]
    (said,) = doubts([*different, *copies])
    assert said.startswith("1,020 of 2,040 training pairs have the same text on both sides")
    assert doubts([*different, *copies[1:]]) == []


def test_half_of_the_pairs_are_repeated(doubts):
    (said,) = doubts([*GOOD, *GOOD])
    assert said.startswith("only 1,024 of 2,048 training pairs are different")
    assert doubts([*GOOD, *GOOD[1:]]) == [] == doubts([*GOOD, *GOOD], drop_duplicates=True)
    assert doubts([*GOOD, *GOOD], source_tags=["<bt>"]) == [], "the rate of synthetic pairs repeats them"
