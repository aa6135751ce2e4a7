"""
The suite of transformers on the recurrent encoder–decoders, and, to compare, on BART and Marian.

Not taken: what is about self-attention, its kernels and gradient checkpointing, which recurrent layers do not have.
"""

import unittest

from host_tests.test_configuration_common import ConfigTester
from test_host_modeling import BartModelTest, EncoderDecoderSuite, MarianModelTest

from vanilla_transformer_hf import RecurrentSeq2SeqConfig, RecurrentSeq2SeqForConditionalGeneration
from vanilla_transformer_hf.recurrent.modeling import RecurrentSeq2SeqModel


class RecurrentSuite(EncoderDecoderSuite):
    """What holds for the recurrent models under any configuration."""

    hosts = (BartModelTest, MarianModelTest)
    config_class = RecurrentSeq2SeqConfig
    has_attentions = False  # of states to themselves
    overfit_options = {"label_smoothing": 0.0}
    training_overfit_steps = 400
    all_model_classes = (RecurrentSeq2SeqModel, RecurrentSeq2SeqForConditionalGeneration)

    def test_config(self):
        properties = ["d_model", "encoder_layers", "decoder_layers"]
        ConfigTester(self, config_class=self.config_class, common_properties=properties).run_common_tests()


NOT_TAKEN = (
    "test_attention_outputs",
    "test_eager_matches_sdpa_inference_",
    "test_sdpa_can_dispatch_non_composite_models",
    "test_can_set_attention_dynamically",
    "test_capture_outputs_decorator",
    "test_enable_input_require_grads_with_gradient_checkpointing",
    "test_multimodal_outputs_are_returned",
)
for name in dir(RecurrentSuite):
    if name.startswith(NOT_TAKEN):
        setattr(RecurrentSuite, name, None)


class RecurrentGruTest(RecurrentSuite, unittest.TestCase):
    """A GRU in both directions with attention before each step."""

    options = {"cell_type": "gru", "bidirectional": True, "attention": "bahdanau"}


class RecurrentLstmTest(RecurrentSuite, unittest.TestCase):
    """An LSTM without attention, with residuals between its layers."""

    options = {"cell_type": "lstm", "residual_layers": True}
    training_overfit_steps = 800  # one vector is slower to learn than attention
