"""BPE-dropout: the algorithm's probabilities, its extremes, and that it can be repeated."""

import copy
from collections import Counter

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.training.data.collators import BpeDropout, BpeDropoutCollator


TEXTS = ["one red dog", "two dogs, and three 77 cats", "ein Hündchen </s> läuft", ""]


@pytest.fixture(scope="module")
def tokenizer():
    return VanillaTransformerTokenizer.train(TEXTS[:3] * 9, vocab_size=300, show_progress=False)


def test_the_pieces_have_the_probabilities_of_the_algorithm():
    merges = [("a", "b"), ("ab", "c"), ("b", "c")]
    vocabulary = {piece: number for number, piece in enumerate(["a", "b", "c", "ab", "abc", "bc"])}
    segment = BpeDropout(Tokenizer(models.BPE(vocabulary, merges)), p := 0.3)
    rounds = 20_000
    counts = Counter(tuple(ids) for ids in segment(["abc"] * rounds, [str(number) for number in range(rounds)]))
    # Each of the two possible merges of "a b c" is passed over with probability p, then the only one of what is left.
    expected = {("abc",): (1 - p) ** 2, ("ab", "c"): (1 - p) * p, ("a", "bc"): p * (1 - p), ("a", "b", "c"): p * p}
    assert len(counts) == 4
    for pieces, probability in expected.items():
        share = counts[tuple(vocabulary[piece] for piece in pieces)] / rounds
        assert abs(share - probability) < 4 * (probability * (1 - probability) / rounds) ** 0.5


def test_nothing_dropped_is_the_tokenizer_and_everything_dropped_is_bytes(tokenizer):
    backend = tokenizer.backend_tokenizer
    keys = [""] * len(TEXTS)
    assert BpeDropout(backend, 0)(TEXTS, keys) == tokenizer(TEXTS)["input_ids"]
    for ids, text in zip(BpeDropout(backend, 1)(TEXTS, keys), TEXTS):
        special = {tokenizer.eos_token}
        assert all(len(piece) == 1 for piece in tokenizer.convert_ids_to_tokens(ids) if piece not in special)
        assert tokenizer.decode(ids[:-1]) == text and ids[-1] == tokenizer.eos_token_id


def test_the_pieces_depend_on_the_key_and_always_give_the_text(tokenizer):
    segment = BpeDropout(tokenizer.backend_tokenizer, 0.5)
    one, again, other = (segment(TEXTS, [key] * len(TEXTS)) for key in ("1", "1", "2"))
    assert one == again != other
    for ids, text in zip(other, TEXTS):
        assert tokenizer.decode(ids[:-1]) == text


def test_words_end_as_the_model_marks_it_and_unknown_words_stay():
    model = models.BPE({"<unk>": 0, "l": 1, "o</w>": 2, "o": 3, "lo</w>": 4}, [("l", "o</w>")], unk_token="<unk>")
    model.end_of_word_suffix = "</w>"
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    segment = BpeDropout(tokenizer, 1.0)
    assert segment(["lo x olo"], [""]) == [[1, 2, 0, 3, 1, 2]]


def test_added_tokens_stay(tokenizer):
    tagged = copy.deepcopy(tokenizer)
    tagged.add_tokens(["<2de>"])
    (ids,) = BpeDropout(tagged.backend_tokenizer, 1.0)(["<2de> one"], ["key"])
    assert ids[0] == tagged.convert_tokens_to_ids("<2de>") == len(tokenizer)
    assert tagged.decode(ids) == tagged.decode(tagged("<2de> one")["input_ids"])


def test_tags_are_read_as_without_dropout(tokenizer):
    """The recipes' tags are special tokens, of which a backend cuts all or none."""
    tagged = copy.deepcopy(tokenizer)
    tagged.add_special_tokens({"additional_special_tokens": ["<2de>"]})
    collator = BpeDropoutCollator(
        tagged, probability=0.0, source_vocab_size=len(tagged), target_vocab_size=len(tagged)
    )
    text = "<2de> one </s> dog"
    batch = collator([{"source": text, "target": text, "line": 0}])
    assert batch["input_ids"].tolist() == batch["labels"].tolist() == [tagged(text)["input_ids"]]


def test_unknown_characters_and_bytes_are_not_spelled_out():
    vocabulary = {piece: number for number, piece in enumerate(["<unk>", "a", "b", "ab", "<", "u", "n", "k", ">"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert BpeDropout(tokenizer, 1.0)(["ab aéb"], ["key"]) == [[1, 2, 1, 0, 2]]
    vocabulary |= {"<0xC3>": 9, "<0xA9>": 10}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b")], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert BpeDropout(tokenizer, 1.0)(["ab aéb"], ["key"]) == [[1, 2, 1, 9, 10, 2]]


def test_tokens_of_merges_that_the_vocabulary_lacks_are_not_written():
    """Tokenizers of other toolkits have them behind their vocabulary: their ids have no row in the model."""
    vocabulary = {piece: number for number, piece in enumerate(["<pad>", "<unk>", "a", "b", "c", "abc", "ab"])}
    backend = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("ab", "c")], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "unk_token": "<unk>"}
    tokenizer = VanillaTransformerTokenizer(tokenizer_object=backend, listed_pieces=6, **special)
    collator = BpeDropoutCollator(tokenizer, probability=0.5, source_vocab_size=6, target_vocab_size=6)
    batch = collator([{"source": "abc ab", "target": "abc", "line": line} for line in range(99)])
    found = {tuple(index for index in ids if index) for ids in batch["input_ids"].tolist()}
    assert found == {(*word, *other) for word in [(5,), (2, 3, 4)] for other in [(1,), (2, 3)]}


@pytest.mark.parametrize(
    "probability, kind, message", [(0.1, "wordpiece", "is WordPiece"), (1.5, "bpe", "from 0 to 1")]
)
def test_what_cannot_be_dropped_out_is_refused(probability, kind, message):
    tokenizer = VanillaTransformerTokenizer.train(TEXTS[:3], vocab_size=300, model=kind, show_progress=False)
    with pytest.raises(ValueError, match=message):
        BpeDropout(tokenizer.backend_tokenizer, probability)


def test_the_collator_segments_anew_in_each_epoch(tokenizer):
    collate = BpeDropoutCollator(
        tokenizer, source_vocab_size=300, target_vocab_size=300, probability=0.5, limits=(20, 6), seed=3
    )
    pairs = [{"source": TEXTS[1], "target": TEXTS[0], "line": 7}, {"source": TEXTS[0], "target": TEXTS[2], "line": 8}]
    epochs = []
    for epoch in (0, 0, 1):
        collate.set_epoch(epoch)
        epochs.append(collate(pairs))
    assert epochs[0]["input_ids"].tolist() == epochs[1]["input_ids"].tolist() != epochs[2]["input_ids"].tolist()
    for batch in epochs:
        assert batch["line"].tolist() == [7, 8] and batch["labels"].shape[1] <= 6 and batch["input_ids"].shape[1] <= 20
        assert tokenizer.decode(batch["input_ids"][1], skip_special_tokens=True) == TEXTS[0]
        assert (batch["labels"] == tokenizer.eos_token_id).sum(dim=1).ge(1).all()
