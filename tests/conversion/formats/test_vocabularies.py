"""Vocabularies of the toolkits: the ids are those that the toolkit's own cutting and looking up give."""

import itertools
import random
from pathlib import Path

import pytest

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.conversion import ConversionError
from vanilla_transformer_hf.conversion.formats.vocabularies import (
    byte_pairs,
    ends_with,
    read_merges,
    sentencepiece,
    words,
)


SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]
TEXTS = [
    *("", "one", "  two   lower  ", "newer and slower rivers flow lower, even now"),
    *("Größe 42 – naïve ünder ½ ﬁne ＡＢＣ", "東京 tower 北京", "a </s> b <pad> <unk> c", "tab\tand\u00a0space"),
    "lowжer 東京 京 жж now",
]


def tokenizer_of(backend, tokens, **kwargs):
    return VanillaTransformerTokenizer(
        tokenizer_object=ends_with(backend, "</s>"),
        listed_pieces=len(tokens),
        split_special_tokens=True,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        **kwargs,
    )


def looked_up(pieces, tokens):
    return [tokens.index(piece) if piece in tokens else 3 for piece in pieces] + [2]


# ------------------------------------------------------------------------------------------------------------- words


def test_words():
    tokens = [*SPECIALS, "lower", "river"]
    tokenizer = tokenizer_of(words(tokens, "<unk>"), tokens)
    assert tokenizer("  river lower\tsea ")["input_ids"] == [5, 4, 3, 2]
    assert tokenizer.decode([5, 4, 2], skip_special_tokens=True) == "river lower"
    with pytest.raises(ConversionError, match="'river' stand more than once"):
        words([*tokens, "river"], "<unk>")


def test_words_that_the_toolkit_cut_before_are_joined_again():
    tokens = [*SPECIALS, "low@@", "er", "riv@@", "@@"]
    tokenizer = tokenizer_of(words(tokens, "<unk>", joiner="@@"), tokens)
    ids = tokenizer("riv@@ er low@@ er er")["input_ids"]
    assert ids == [6, 5, 4, 5, 5, 2]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "river lower er"
    assert tokenizer.decode([6, 5]) == "river"


# -------------------------------------------------------------------------------------------------------- byte pairs


def cut(word, merges):
    """Sennrich et al. 2016, Algorithm 1, with the merges in their order: the pieces of a word, `@@` inside it."""
    symbols = [*word[:-1], word[-1] + "</w>"]
    for left, right in merges:
        place = 0
        while place < len(symbols) - 1:
            if (symbols[place], symbols[place + 1]) == (left, right):
                symbols[place : place + 2] = [left + right]
            place += 1
    return [symbol.removesuffix("</w>") if symbol.endswith("</w>") else f"{symbol}@@" for symbol in symbols]


def learn(texts, count):
    """Merges of the most frequent pairs, as subword-nmt learns them."""
    vocabulary = [[*word[:-1], word[-1] + "</w>"] for text in texts for word in text.split()]
    merges = []
    for _ in range(count):
        pairs = {}
        for symbols in vocabulary:
            for pair in itertools.pairwise(symbols):
                pairs[pair] = pairs.get(pair, 0) + 1
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for symbols in vocabulary:
            place = 0
            while place < len(symbols) - 1:
                if (symbols[place], symbols[place + 1]) == best:
                    symbols[place : place + 2] = ["".join(best)]
                place += 1
    return merges


@pytest.fixture
def merges():
    return learn(["lower slower lowest newer wider river flow now lower lower"], 25)


def test_byte_pairs_are_those_of_the_algorithm(merges, tmp_path):
    (tmp_path / "codes").write_text("#version: 0.2\n" + "\n".join(map(" ".join, [*merges, merges[0]])))
    assert read_merges(tmp_path / "codes") == merges
    # A vocabulary that lacks half of the pieces, so that some lead to others and are unknown themselves.
    seen = sorted({piece for text in TEXTS[:4] for word in text.split() for piece in cut(word, merges)})
    tokens = [*SPECIALS, *seen[::2], "madeupword0000"]
    tokenizer = tokenizer_of(byte_pairs(tokens, merges, "<unk>", SPECIALS), tokens)
    assert len(tokenizer) == tokenizer.vocab_size == len(tokens)
    assert max(tokenizer.get_vocab().values()) == len(tokens) - 1
    generator = random.Random(0)
    letters = "lowernsidvf"
    texts = [
        " ".join("".join(generator.choices(letters, k=generator.randint(1, 9))) for _ in range(6)) for _ in range(99)
    ]
    for text in [*TEXTS, *texts]:
        pieces = [piece for word in text.split() for piece in cut(word, merges)]
        assert tokenizer(text)["input_ids"] == looked_up(pieces, tokens), text
        assert tokenizer([text])["input_ids"] == [looked_up(pieces, tokens)], text
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        if 3 not in ids:
            assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_a_tokenizer_with_unlisted_pieces_is_the_same_after_saving(merges, tmp_path):
    tokens = [*SPECIALS, "l@@", "w@@", "o@@", "er"]
    tokenizer = tokenizer_of(byte_pairs(tokens, merges, "<unk>", SPECIALS), tokens)
    tokenizer.save_pretrained(tmp_path)
    again = VanillaTransformerTokenizer.from_pretrained(tmp_path)
    assert again(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
    assert len(again) == len(tokens)
    assert again.convert_tokens_to_ids(["er</w>", "lower</w>"]) == [7, 3]
    assert again.add_tokens(["<2de>"]) == 1
    new = again.convert_tokens_to_ids("<2de>")
    assert len(again) == new + 1 and again("<2de> lxw")["input_ids"] == [new, 4, 3, 3, 2]
    two = VanillaTransformerTokenizer(
        tokenizer_object=words(SPECIALS, "<unk>"),
        source_tokenizer_object=byte_pairs(tokens, merges, "<unk>", SPECIALS),
        separate_vocabularies=True,
        source_listed_pieces=len(tokens),
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
    )
    assert two("lower")["input_ids"] == [3] and two.source_vocab_size == len(tokens)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("#version: 0.1\na b\n", "codes of version 0.1; 0.2 can be read"),
        ("a b\nb </w>\n", r"line 2: codes of subword-nmt 0.1; learn them again"),
        ("a b c d\n", "line 1: 'a b c d' is not a pair"),
        ("#version: 0.2\nab\n", "line 2: 'ab' is not a pair"),
    ],
)
def test_codes_that_cannot_be_read_are_refused(content, message, tmp_path):
    (tmp_path / "codes").write_text(content)
    with pytest.raises(ConversionError, match=message):
        read_merges(tmp_path / "codes")


def test_codes_of_fast_bpe_are_read(tmp_path):
    (tmp_path / "codes").write_text("l o 12\nlo w</w> 7\n")
    assert read_merges(tmp_path / "codes") == [("l", "o"), ("lo", "w</w>")]


# ----------------------------------------------------------------------------------------------------- SentencePiece


@pytest.fixture(params=["unigram", "bpe", "unigram-bytes", "bpe-identity"])
def model(request, tmp_path):
    """A SentencePiece model, and the library's own reader of it."""
    library = pytest.importorskip("sentencepiece")
    kind, _, variant = request.param.partition("-")
    generator = random.Random(0)
    stock = ["lower", "slower", "newest", "wider", "rivers", "flow", "now", "tower", "ünder", "naïve", "größe"]
    stock += ["dark", "pad"]
    text = tmp_path / "text.txt"
    text.write_text("\n".join(" ".join(generator.choices(stock, k=8)) for _ in range(300)), encoding="utf-8")
    library.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(tmp_path / "spm"),
        vocab_size=330 if variant == "bytes" else 75,
        model_type=kind,
        byte_fallback=variant == "bytes",
        normalization_rule_name="identity" if variant == "identity" else "nmt_nfkc",
        hard_vocab_limit=False,
        user_defined_symbols=["@sep@"],
        minloglevel=2,
    )
    return Path(tmp_path / "spm.model"), library.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))


def test_sentencepiece_cuts_as_the_library_does(model):
    path, library = model
    pieces = [library.id_to_piece(index) for index in range(library.get_piece_size())]
    kept = [piece for piece in pieces if piece not in SPECIALS][::-1]
    # As a toolkit keeps them: another order, some missing, some that only the other language's model makes.
    tokens = [*SPECIALS, *(piece for index, piece in enumerate(kept) if index % 7), "▁fremd", "fr", "ж", "京"]
    tokenizer = tokenizer_of(sentencepiece(path, tokens, "<unk>"), tokens)
    generator = random.Random(1)
    texts = [" ".join("".join(generator.choices("lowernstidü", k=5)) for _ in range(5)) for _ in range(99)]
    for text in [*TEXTS, *texts, "now @sep@ even"]:
        expected = looked_up(library.encode(text, out_type=str), tokens)
        assert tokenizer(text)["input_ids"] == expected, text
        if 3 not in expected:
            assert tokenizer.decode(expected, skip_special_tokens=True) == library.decode(library.encode(text)), text
    assert tokenizer.decode([tokens.index("▁fremd"), tokens.index("fr")]) == "fremdfr"


def test_a_damaged_sentencepiece_model_is_refused(model, tmp_path):
    path, _ = model
    (tmp_path / "cut.model").write_bytes(path.read_bytes()[:-7])
    (tmp_path / "text.model").write_text("no model\n")
    (tmp_path / "empty.model").write_bytes(b"")
    for name in ("cut", "text", "empty"):
        with pytest.raises(ConversionError, match=f"{name}.model is no"):
            sentencepiece(tmp_path / f"{name}.model", SPECIALS, "<unk>")
