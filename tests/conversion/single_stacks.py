"""What the tests of converted encoders and decoders share: tokenizers trained on the spot, and mixed lines."""

import random

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers


WORDS = (
    *("the cat sat on two hats", "Größe und Maß", "naïve café", "don't can't we'll", "日本語 テキスト"),
    *("русский язык", "1234 56.78%", "hello,world!", "(a) [b] {c}", "x = y * z;", "emoji 😀👍", "tab\there"),
    *("Ａｂｃ ﬁ ½", "e\u0301a\u0308", "[MASK]", "<mask>", "<|endoftext|>", "[SEP]", "unaffable", "ÀÉÎ", "한국어"),
    *("العربية", "  two  spaces ", "\u200b\u00a0"),
)


def mixed_lines(count: int = 1000) -> list[str]:
    """Lines of words of many scripts, marks, spaces, and names of special tokens."""
    rng = random.Random(0)
    return [rng.choice((" ", "", ", ", "  ")).join(rng.choices(WORDS, k=rng.randint(0, 7))) for _ in range(count)]


def _trained(tokenizer: Tokenizer, trainer: trainers.Trainer, folder) -> None:
    tokenizer.train_from_iterator([word for word in WORDS if word[0] not in "[<"] * 3, trainer)
    tokenizer.model.save(str(folder))


def write_wordpiece(folder) -> int:
    """`vocab.txt` as BERT has it; its size."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    _trained(tokenizer, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False), folder)
    return tokenizer.get_vocab_size()


def write_byte_bpe(folder, special: list[str]) -> int:
    """`vocab.json` and `merges.txt` as RoBERTa and GPT-2 have them; the size."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    _trained(tokenizer, trainer, folder)
    return tokenizer.get_vocab_size()


def write_gpt1_bpe(folder) -> int:
    """`vocab.json` and `merges.txt` as GPT-1 has them; the size."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    _trained(tokenizer, trainer, folder)
    return tokenizer.get_vocab_size()


def check_tokenizers(ours, theirs) -> None:
    """The same ids, segments and texts of a thousand lines, alone and in pairs."""
    lines = mixed_lines()
    for pair in (None, lines[::-1]):
        found, expected = ours(lines, pair), theirs(lines, pair)
        assert found.keys() == expected.keys()
        for name in expected:
            assert found[name] == expected[name], name
    for skip in (False, True):
        ids = expected["input_ids"]
        found = ours.batch_decode(ids, skip_special_tokens=skip)
        assert found == theirs.batch_decode(ids, skip_special_tokens=skip)
