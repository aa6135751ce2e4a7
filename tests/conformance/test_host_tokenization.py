"""The suite of transformers for tokenizers, on ours and, to compare, on BART's, which has the same backend.

Marian's tokenizer is no measure here: it has another backend, and needs a sentencepiece model to start from.
"""

import functools
import json
import shutil
import tempfile
import unittest
from pathlib import Path

from host_tests.test_tokenization_common import TokenizerTesterMixin
from host_tests.test_tokenizers_backend_mixin import TokenizersBackendTesterMixin
from tokenizers import ByteLevelBPETokenizer, Tokenizer
from transformers import BartTokenizer

from vanilla_transformer_hf import VanillaTransformerTokenizer


CORPUS = [
    "This is a test of a tokenizer, and these are its inputs.",
    "It was born in a small house at the end of the street; the house is very old.",
    "Hey, how are you doing? She is very happy, but she is running to the other house.",
    "The following words should be whole: Wonderful no inspiration example with subtoken.",
] * 3


class TokenizationSuite(TokenizerTesterMixin, TokenizersBackendTesterMixin):
    """Both mixins, on a tokenizer that is trained here and saved to a folder, where the suite expects a name."""

    hosts: tuple[type[unittest.TestCase], ...] = ()

    @classmethod
    def setUpClass(cls):
        cls.trained = Path(tempfile.mkdtemp(), "trained")
        cls.train().save_pretrained(cls.trained)
        cls.from_pretrained_id = str(cls.trained)
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        shutil.rmtree(cls.trained.parent)


class BartTokenizationTest(TokenizationSuite, unittest.TestCase):
    tokenizer_class = BartTokenizer

    @classmethod
    def train(cls) -> BartTokenizer:
        backend = ByteLevelBPETokenizer()
        backend.train_from_iterator(CORPUS, 400, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
        model = json.loads(backend.to_str())["model"]
        return BartTokenizer(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]])


class VanillaTransformerTokenizationTest(TokenizationSuite, unittest.TestCase):
    hosts = (BartTokenizationTest,)
    tokenizer_class = VanillaTransformerTokenizer
    # The backend is built by training or read whole from its file, never put together from a list of pieces.
    test_tokenizer_from_extractor = False

    @classmethod
    def train(cls) -> VanillaTransformerTokenizer:
        return VanillaTransformerTokenizer.train(CORPUS, vocab_size=400, show_progress=False)

    @classmethod
    def setUpClass(cls):
        """What the suite's long text becomes, by the backend alone; and it must come back as it was."""
        super().setUpClass()
        text = cls.integration_test_input_string
        encoding = Tokenizer.from_file(str(cls.trained / "tokenizer.json")).encode(text, add_special_tokens=False)
        cls.integration_expected_tokens = encoding.tokens
        cls.integration_expected_token_ids = encoding.ids
        cls.integration_expected_decoded_text = text

    def test_tokenize_special_tokens(self):
        """Only where `split_special_tokens` is off, as it is by default in transformers, are they found in a text."""
        self.get_tokenizer = functools.partial(self.get_tokenizer, split_special_tokens=False)
        super().test_tokenize_special_tokens()
