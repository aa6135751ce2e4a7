"""A tiny model that has learned to count backwards in German."""

import itertools

import torch

from vanilla_transformer_hf import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)


NUMBERS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}
SOURCES = [" ".join(words) for length in (1, 2, 3) for words in itertools.product(NUMBERS, repeat=length)]
TARGETS = [" ".join(NUMBERS[word] for word in reversed(source.split())) for source in SOURCES]
MIXED = ["four five one", "two", "", "three one", " \t ", "five five two", "one two", "three"]
TRANSLATED = ["eins fünf vier", "zwei", "", "eins drei", "", "zwei fünf fünf", "zwei eins", "drei"]
SIZES = {
    **{"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4},
    **{"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "dropout": 0.0},
    "max_position_embeddings": 64,
}


def trained_model(tokenizer: VanillaTransformerTokenizer) -> VanillaTransformerForConditionalGeneration:
    torch.manual_seed(0)
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=len(tokenizer), **SIZES))
    batch = tokenizer(SOURCES, text_target=TARGETS, padding=True, return_tensors="pt")
    batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(250):
        rows = torch.randperm(len(SOURCES))[:64]
        model(**{name: tensor[rows] for name, tensor in batch.items()}).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def saved_model(folder) -> str:
    tokenizer = VanillaTransformerTokenizer.train(SOURCES, TARGETS, vocab_size=300, show_progress=False)
    trained_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
