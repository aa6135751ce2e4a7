"""A tiny model of any config in a folder, with a tokenizer whose pieces are the ids in words."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from vanilla_transformer_hf import VanillaTransformerTokenizer


def words(size: int, side: str) -> Tokenizer:
    """A vocabulary of so many words, the first three of them special; texts get an end."""
    vocabulary = {"<pad>": 0, "</s>": 1, "<unk>": 2, **{f"{side}{index}": index for index in range(3, size)}}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return backend


@pytest.fixture
def save_model(tiny_model, tmp_path):
    """`save_model(**overrides)`: a tiny model, and the folder where it is saved with its tokenizer."""

    def save(**overrides):
        sizes = {"encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 64}
        model = tiny_model(**sizes | overrides)
        model.save_pretrained(tmp_path / "model")
        config = model.config
        source = words(config.source_vocab_size, "s") if config.source_vocab_size else None
        VanillaTransformerTokenizer(
            tokenizer_object=words(config.vocab_size, "t"),
            separate_vocabularies=source is not None,
            source_tokenizer_object=source,
            pad_token="<pad>",
            eos_token="</s>",
            unk_token="<unk>",
        ).save_pretrained(tmp_path / "model")
        return model, tmp_path / "model"

    return save
