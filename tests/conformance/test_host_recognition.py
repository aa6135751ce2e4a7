"""The suite of transformers on a model of each front end, and, to compare, on Speech2Text."""

import unittest
from typing import Any

import torch
from host_tests.generation.test_utils import GenerationTesterMixin
from host_tests.test_configuration_common import ConfigTester
from host_tests.test_memory_cleanup_mixin import MemoryCleanupMixin
from host_tests.test_modeling_common import ModelTesterMixin, floats_tensor, ids_tensor
from transformers import PreTrainedConfig, Speech2TextConfig, Speech2TextForConditionalGeneration, Speech2TextModel

from vanilla_transformer_hf import (
    VanillaTransformerConfig,
    VanillaTransformerForImageTextToText,
    VanillaTransformerForSpeechSeq2Seq,
    VanillaTransformerModel,
)


SIZES = {
    **{"vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4},
    **{"decoder_attention_heads": 4, "encoder_ffn_dim": 37, "decoder_ffn_dim": 37, "dropout": 0.1},
    "attention_dropout": 0.1,
}
MEL = 12


class RecognitionTester:
    """The tiny configuration and batch that the suite asks for: 7 positions of a source, 7 tokens of a text."""

    batch_size, seq_length, vocab_size = 13, 7, 99
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4
    encoder_seq_length = key_length = decoder_seq_length = 7
    is_training = True

    def __init__(self, suite: "RecognitionSuite"):
        self.suite = suite
        self.causal_lm_class = suite.all_model_classes[1]

    def get_config(self) -> PreTrainedConfig:
        return self.suite.config_class(**{**SIZES, **self.suite.options})

    def prepare_config_and_inputs_for_common(self) -> tuple[PreTrainedConfig, dict[str, torch.Tensor]]:
        config = self.get_config()
        source = floats_tensor([self.batch_size, *self.suite.source_shape])
        ids = ids_tensor([self.batch_size, self.seq_length], self.vocab_size).clamp(min=3)
        name = self.suite.all_model_classes[1].main_input_name
        masks = {"decoder_attention_mask": torch.ones_like(ids)}
        if name == "input_features":
            masks["attention_mask"] = torch.ones(source.shape[:2], dtype=torch.long)
        return config, {name: source, "decoder_input_ids": ids, **masks}

    prepare_config_and_inputs = prepare_config_and_inputs_for_common


class RecognitionSuite(MemoryCleanupMixin, ModelTesterMixin, GenerationTesterMixin):
    """The mixins for one process, and what they need to know."""

    # Both names of a cache are taken, without a warning: the older one is that of most releases (test_releases.py).
    test_bc_cache_name_forward: Any = None
    # The one forward of all models takes features in the first place, too, where its signature has input_ids; that is
    # tested in tests/model/test_recognition.py.
    test_model_main_input_name: Any = None

    run_under_no_grad = False

    hosts: tuple[type[unittest.TestCase], ...] = ()
    config_class: type[PreTrainedConfig] = VanillaTransformerConfig
    options: dict = {}
    source_shape: tuple[int, ...] = (28, MEL)
    is_encoder_decoder = True
    model_tester = None

    def setUp(self):
        super().setUp()
        self.model_tester = RecognitionTester(self)

    def _prepare_for_class(self, inputs_dict, model_class, return_labels=False):
        """The suite has no labels for models of speech."""
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels=return_labels)
        if return_labels and model_class is self.all_model_classes[1]:
            inputs["labels"] = torch.zeros_like(inputs["decoder_input_ids"])
        return inputs

    def test_inputs_embeds(self):
        """The suite makes them of the source's ids, and here a source has none."""
        config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
        embeddings = torch.zeros(self.model_tester.batch_size, 7, 32)
        for model_class in self.all_model_classes:
            with self.assertRaises((TypeError, ValueError)):
                model_class(config)(inputs_embeds=embeddings, decoder_input_ids=inputs["decoder_input_ids"])

    test_inputs_embeds_matches_input_ids = test_inputs_embeds

    def test_resize_tokens_embeddings(self, tied=True):
        """The suite bounds the source's ids by the size, and here the target alone has ids."""
        for model_class in self.all_model_classes:
            config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
            config.tie_word_embeddings = tied
            model = model_class(config).eval()
            before = model.get_input_embeddings().weight.clone()
            for size in (config.vocab_size + 10, config.vocab_size - 15):
                model.resize_token_embeddings(size)
                found = model.get_input_embeddings().weight
                self.assertEqual((len(found), model.config.vocab_size), (size, size))
                self.assertTrue(torch.equal(found[: config.vocab_size - 15], before[: config.vocab_size - 15]))
            inputs["decoder_input_ids"].clamp_(max=size - 1)
            output = model(**self._prepare_for_class(inputs, model_class))[0]
            self.assertIn(output.shape[-1], (size, config.d_model))

    def test_resize_embeddings_untied(self):
        self.test_resize_tokens_embeddings(tied=False)

    def test_config(self):
        ConfigTester(self, config_class=self.config_class).run_common_tests()


class Speech2TextTest(RecognitionSuite, unittest.TestCase):
    config_class = Speech2TextConfig
    options = {"input_feat_per_channel": MEL, "conv_channels": 24, "conv_kernel_sizes": (3, 3)}
    all_model_classes = (Speech2TextModel, Speech2TextForConditionalGeneration)


class VanillaTransformerSpeechTest(RecognitionSuite, unittest.TestCase):
    """Convolutions over frames."""

    hosts = (Speech2TextTest,)
    options = {"front_end": "speech", "num_mel_bins": MEL}
    all_model_classes = (VanillaTransformerModel, VanillaTransformerForSpeechSeq2Seq)


class VanillaTransformerStackedSpeechTest(RecognitionSuite, unittest.TestCase):
    """Stacked frames, norms before the sub-layers, turned queries and keys."""

    hosts = (Speech2TextTest,)
    options = {
        **{"front_end": "speech_stacked", "num_mel_bins": MEL, "position_encoding": "rotary"},
        **{"encoder_norm_position": "pre", "decoder_norm_position": "pre"},
    }
    all_model_classes = (VanillaTransformerModel, VanillaTransformerForSpeechSeq2Seq)


class VanillaTransformerImageTest(RecognitionSuite, unittest.TestCase):
    """Patches of an image, seven in a row."""

    hosts = (Speech2TextTest,)
    options = {
        **{"front_end": "image", "num_channels": 3, "image_height": 4, "image_width": 28, "patch_height": 4},
        "patch_width": 4,
    }
    source_shape = (3, 4, 28)
    all_model_classes = (VanillaTransformerModel, VanillaTransformerForImageTextToText)
