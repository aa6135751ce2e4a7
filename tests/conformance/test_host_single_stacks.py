"""The suite of transformers on the encoder and the decoder alone, and, to compare, on BERT and GPT-2."""

import unittest
from typing import Any

import torch
from host_tests.generation.test_utils import GenerationTesterMixin
from host_tests.test_configuration_common import ConfigTester
from host_tests.test_memory_cleanup_mixin import MemoryCleanupMixin
from host_tests.test_modeling_common import ModelTesterMixin, ids_tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    PreTrainedConfig,
)

from vanilla_transformer_hf import (
    VanillaTransformerConfig,
    VanillaTransformerDecoderModel,
    VanillaTransformerEncoderModel,
    VanillaTransformerForCausalLM,
    VanillaTransformerForMaskedLM,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)


class StackTester:
    """The tiny configuration and batch that the suite asks for."""

    batch_size, seq_length, vocab_size = 13, 7, 99
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4
    is_training = True

    def __init__(self, suite: "SingleStackSuite"):
        self.suite = suite
        self.causal_lm_class = suite.all_model_classes[1]

    def get_config(self) -> PreTrainedConfig:
        return self.suite.config_class(**{"vocab_size": self.vocab_size, **self.suite.options})

    def prepare_config_and_inputs_for_common(self) -> tuple[PreTrainedConfig, dict[str, torch.Tensor]]:
        input_ids = ids_tensor([self.batch_size, self.seq_length], self.vocab_size).clamp(min=3)
        return self.get_config(), {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}

    prepare_config_and_inputs = prepare_config_and_inputs_for_common


class SingleStackSuite(MemoryCleanupMixin, ModelTesterMixin):
    """The mixins for one process, and what they need to know."""

    # Both names of a cache are taken, without a warning: the older one is that of most releases (test_releases.py).
    test_bc_cache_name_forward: Any = None

    run_under_no_grad = False

    hosts: tuple[type[unittest.TestCase], ...] = ()
    config_class: type[PreTrainedConfig]
    options: dict = {}
    model_tester = None

    def setUp(self):
        super().setUp()
        self.model_tester = StackTester(self)

    def test_config(self):
        ConfigTester(self, config_class=self.config_class).run_common_tests()


class BertModelTest(SingleStackSuite, unittest.TestCase):
    config_class = BertConfig
    options = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
    all_model_classes = (BertModel, BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification)


class GPT2ModelTest(SingleStackSuite, GenerationTesterMixin, unittest.TestCase):
    config_class = GPT2Config
    options = {"n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 98, "eos_token_id": 98, "pad_token_id": 98}
    all_model_classes = (GPT2Model, GPT2LMHeadModel)


OURS = {
    **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4},
    **{"decoder_attention_heads": 4, "encoder_ffn_dim": 37, "decoder_ffn_dim": 37, "attention_dropout": 0.1},
    **{"max_position_embeddings": 100, "is_encoder_decoder": False},
}


class VanillaTransformerEncoderTest(SingleStackSuite, unittest.TestCase):
    """The encoder alone, with each head."""

    hosts = (BertModelTest,)
    config_class = VanillaTransformerConfig
    options = OURS
    all_model_classes = (
        VanillaTransformerEncoderModel,
        VanillaTransformerForMaskedLM,
        VanillaTransformerForSequenceClassification,
        VanillaTransformerForTokenClassification,
    )


class VanillaTransformerCausalLMTest(SingleStackSuite, GenerationTesterMixin, unittest.TestCase):
    """The decoder alone, with and without the map to the vocabulary."""

    hosts = (GPT2ModelTest,)
    config_class = VanillaTransformerConfig
    options = OURS | {"is_decoder": True}
    all_model_classes = (VanillaTransformerDecoderModel, VanillaTransformerForCausalLM)


class VanillaTransformerMemoryCausalLMTest(VanillaTransformerCausalLMTest):
    """The decoder alone with a memory, in which the cache holds the inputs of layers."""

    options = VanillaTransformerCausalLMTest.options | {
        "decoder_attention_type": "recurrent",
        "position_encoding": "none",
        "memory_length": 4,
    }
