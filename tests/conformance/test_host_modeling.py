"""The suite of transformers for configurations and models, on our classes and, to compare, on its own.

Not taken: the pipeline mixin, whose test classes are not distributed and whose models lie on the Hub, and the mixin
for expert parallelism, which is about mixtures of experts.
"""

import functools
import unittest
import unittest.mock
from collections.abc import Callable
from typing import Any

import torch
from host_tests import test_fsdp_mixin
from host_tests.generation.test_utils import GenerationTesterMixin
from host_tests.test_configuration_common import ConfigTester
from host_tests.test_fsdp_mixin import FSDPTesterMixin
from host_tests.test_memory_cleanup_mixin import MemoryCleanupMixin
from host_tests.test_modeling_common import ModelTesterMixin, ids_tensor
from host_tests.test_tensor_parallel_mixin import TensorParallelTesterMixin
from host_tests.test_training_mixin import TrainingTesterMixin
from transformers import (
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    BartForQuestionAnswering,
    BartForSequenceClassification,
    BartModel,
    MarianConfig,
    MarianModel,
    MarianMTModel,
    PreTrainedConfig,
)

from vanilla_transformer_hf import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
)
from vanilla_transformer_hf.model.attention import performer as performer_attention


class ModelTester:
    """The tiny configuration and batch that the suite asks for."""

    batch_size = 13
    seq_length = 7
    vocab_size = 99
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 4
    is_training = True

    def __init__(self, suite: "EncoderDecoderSuite"):
        self.config_class = suite.config_class
        self.options = suite.options
        # What the training and the tensor-parallel tests call the class with a loss and `generate()`.
        self.causal_lm_class = suite.all_model_classes[1]

    def get_config(self) -> PreTrainedConfig:
        sizes = {
            **{"vocab_size": self.vocab_size, "d_model": self.hidden_size, "encoder_layers": self.num_hidden_layers},
            **{"decoder_layers": self.num_hidden_layers, "encoder_attention_heads": self.num_attention_heads},
            **{"decoder_attention_heads": self.num_attention_heads, "encoder_ffn_dim": 37, "decoder_ffn_dim": 37},
            **{"dropout": 0.1, "attention_dropout": 0.1, "max_position_embeddings": 100},
        }
        return self.config_class(**{**sizes, **self.options})

    def prepare_config_and_inputs_for_common(self) -> tuple[PreTrainedConfig, dict[str, torch.Tensor]]:
        config = self.get_config()
        input_ids = ids_tensor([self.batch_size, self.seq_length], self.vocab_size).clamp(min=3)
        input_ids[:, -1] = config.eos_token_id  # BART's classifier reads its state there
        decoder_input_ids = ids_tensor([self.batch_size, self.seq_length], self.vocab_size).clamp(min=3)
        return config, {
            "input_ids": input_ids,
            "attention_mask": torch.ones_like(input_ids),
            "decoder_input_ids": decoder_input_ids,
            "decoder_attention_mask": torch.ones_like(decoder_input_ids),
        }

    prepare_config_and_inputs = prepare_config_and_inputs_for_common


class EncoderDecoderSuite(MemoryCleanupMixin, ModelTesterMixin, GenerationTesterMixin, TrainingTesterMixin):
    """The mixins for one process, and what they need to know."""

    # Both names of a cache are taken, without a warning: the older one is that of most releases (test_releases.py).
    test_bc_cache_name_forward: Any = None

    run_under_no_grad = False

    hosts: tuple[type[unittest.TestCase], ...] = ()
    config_class: type[PreTrainedConfig]
    options: dict = {}
    overfit_options: dict = {}
    is_encoder_decoder = True
    model_tester = None

    def setUp(self):
        super().setUp()
        self.model_tester = ModelTester(self)

    def test_config(self):
        ConfigTester(self, config_class=self.config_class).run_common_tests()

    def _create_text_training_batch(
        self, batch_size: int, seq_length: int, vocab_size: int
    ) -> dict[str, torch.Tensor]:
        """
        The mixin trains on a sequence, gives its first token to `generate()` and expects the whole. In an encoder and
        decoder that token is the source, so the encoder sees no more in training, and it is where the decoder starts.
        """
        tokens = super()._create_text_training_batch(batch_size, seq_length, vocab_size)["input_ids"]
        labels = torch.cat((tokens[:, 1:], torch.full_like(tokens[:, :1], -100)), dim=1)
        attention_mask = torch.zeros_like(tokens)
        attention_mask[:, 0] = 1
        return {"input_ids": tokens, "attention_mask": attention_mask, "labels": labels}

    def test_training_overfit(self):
        start = {"pad_token_id": 0, "decoder_start_token_id": 1}
        no_noise = {"dropout": 0.0, "attention_dropout": 0.0}
        self.model_tester.options = {**self.options, **start, **no_noise, **self.overfit_options}
        super().test_training_overfit()


class ParallelSuite(TensorParallelTesterMixin, FSDPTesterMixin):
    """The mixins that start several processes."""

    def _get_tp_config(self, tie_word_embeddings: bool | None = None) -> PreTrainedConfig:
        """Without dropout: two runs are compared in training mode, and each draws its own."""
        config = super()._get_tp_config(tie_word_embeddings)
        config.dropout = config.attention_dropout = 0.0
        return config


class BartModelTest(EncoderDecoderSuite, ParallelSuite, unittest.TestCase):
    config_class = BartConfig
    overfit_options = {"forced_eos_token_id": None}
    all_model_classes = (
        BartModel,
        BartForConditionalGeneration,
        BartForSequenceClassification,
        BartForQuestionAnswering,
    )

    def test_inputs_embeds(self):
        """BART's own test leaves out its classifier, which looks for the end of sequence among the ids."""
        self.all_model_classes = (BartModel, BartForConditionalGeneration, BartForQuestionAnswering)
        super().test_inputs_embeds()


class MarianModelTest(EncoderDecoderSuite, ParallelSuite, unittest.TestCase):
    config_class = MarianConfig
    options = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 3}
    overfit_options = {"forced_eos_token_id": None}
    training_overfit_steps = 400  # it starts from smaller weights
    all_model_classes = (MarianModel, MarianMTModel)


class VanillaTransformerSuite(EncoderDecoderSuite):
    """What holds for our classes under any configuration."""

    hosts = (BartModelTest, MarianModelTest)
    config_class = VanillaTransformerConfig
    # With smoothing, the best loss is not near 0, where the test wants it.
    overfit_options = {"label_smoothing": 0.0}
    test_can_init_all_missing_weights_before_2023 = True  # run what is optional for models as old as BART
    all_model_classes = (VanillaTransformerModel, VanillaTransformerForConditionalGeneration)


class VanillaTransformerVariantTest(VanillaTransformerSuite, unittest.TestCase):
    """The switches that change which weights there are, turned away from the paper."""

    options = {
        **{"d_k": 6, "d_v": 10, "attention_bias": True, "output_bias": True, "embedding_sharing": "decoder"},
        **{"layernorm_embedding": True, "position_encoding": "learned", "encoder_norm_position": "pre"},
        "decoder_norm_position": "pre",
    }

    def test_inputs_embeds_matches_input_ids(self):
        """The suite takes the embeddings of both sides from one matrix. Here there are two."""
        config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
        model = VanillaTransformerModel(config).eval()
        embeddings = {
            "inputs_embeds": model.encoder.embed_tokens(inputs["input_ids"]),
            "decoder_inputs_embeds": model.decoder.embed_tokens(inputs["decoder_input_ids"]),
        }
        masks = {name: mask for name, mask in inputs.items() if name.endswith("mask")}
        torch.testing.assert_close(model(**embeddings, **masks)[0], model(**inputs)[0])


class VanillaTransformerChunkSummariesTest(VanillaTransformerSuite, unittest.TestCase):
    """Chunks with means of earlier ones in both stacks."""

    options = {
        "encoder_attention_type": "chunk",
        "decoder_attention_type": "chunk",
        "attention_block": 3,
        "chunk_summary": "mean",
    }

    def test_attention_outputs(self):
        """The suite expects a column for each key; here there is one for each summary behind them."""
        config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
        config._attn_implementation = "eager"
        for model_class in self.all_model_classes:
            model = model_class(config).eval()
            with torch.no_grad():
                found = model(**self._prepare_for_class(inputs, model_class), output_attentions=True)
            for weights in (found.encoder_attentions, found.decoder_attentions):
                assert len(weights) == 2
                for layer in weights:
                    count = layer.shape[-2]
                    assert layer.shape[-1] == count + -(-count // config.attention_block)
                    torch.testing.assert_close(layer.sum(dim=-1), torch.ones(layer.shape[:-1]))


class VanillaTransformerPerformerTest(VanillaTransformerSuite, unittest.TestCase):
    """Random features in both stacks."""

    options = {"encoder_attention_type": "performer", "decoder_attention_type": "performer", "attention_dropout": 0.0}

    def test_init_weights_can_init_buffers(self):
        """The suite expects the same buffers from two models, so the features that are drawn are the same here."""
        fixed = unittest.mock.patch.object(
            performer_attention, "orthogonal_features", lambda count, width: torch.eye(count, width)
        )
        with fixed:
            super().test_init_weights_can_init_buffers()


class VanillaTransformerPoolingTest(VanillaTransformerSuite, unittest.TestCase):
    """The second layer of the encoder has half the length."""

    options = {"encoder_pooling": [1]}

    def test_attention_outputs(self):
        """The suite expects as many queries as keys in each layer."""
        config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
        config._attn_implementation = "eager"
        outputs = VanillaTransformerForConditionalGeneration(config).eval()(**inputs, output_attentions=True)
        sizes = [tuple(weights.shape[2:]) for weights in outputs.encoder_attentions]
        length = inputs["input_ids"].shape[1]
        self.assertEqual(sizes, [(length, length), (length // 2 + 1, length)])
        self.assertEqual(outputs.cross_attentions[0].shape[-1], length // 2 + 1)


def both(kind: str, **fields: Any) -> dict[str, Any]:
    return {"encoder_attention_type": kind, "decoder_attention_type": kind, **fields}


VARIANTS = {
    # As Llama: rotated queries and keys, RMS norms before the sub-layers, SwiGLU.
    "Rotary": {
        **{"position_encoding": "rotary", "decoder_position_encoding": "rotary_halves", "norm_type": "rms_norm"},
        **{"feed_forward_type": "gated", "activation_function": "silu"},
        **{"encoder_norm_position": "pre", "decoder_norm_position": "pre"},
    },
    # Vectors of distances in the encoder, biases of distances in the decoder, RMS norms as their authors'.
    "Relative": {
        **{"position_encoding": "shaw", "decoder_position_encoding": "t5_bias"},
        **{"norm_type": "rms_norm_author", "feed_forward_type": "gated"},
    },
    # A network of distances in the encoder, gates in the decoder, segments.
    "Gates": {
        **{"position_encoding": "distance_mlp", "decoder_position_encoding": "gated_alibi", "type_vocab_size": 2}
    },
    # Gates in the encoder, more positions than trained vectors in the decoder.
    "Hierarchical": {"position_encoding": "gated_alibi", "decoder_position_encoding": "hierarchical"},
    # Narrower than the sequences.
    "Window": both("window", attention_window=3),
    # With global tokens, which have projections of their own in the encoder.
    "GlobalWindow": both("window_global", attention_window=2, global_tokens=2),
    # Blocks with their neighbours, and blocks of their own.
    "Blocks": {"encoder_attention_type": "blocks", "decoder_attention_type": "chunk", "attention_block": 3},
    "ChunksAndBlocks": {"encoder_attention_type": "chunk", "decoder_attention_type": "blocks", "attention_block": 3},
    # One bucket: the suite compares kernels in bfloat16, where rounding moves tokens to others.
    "Lsh": both("lsh", lsh_buckets=1, lsh_chunk=3),
    "Memory": {"decoder_attention_type": "recurrent", "decoder_position_encoding": "none", "memory_length": 4},
    # Scores of tokens, and of pairs of positions.
    "Synthesizer": {"encoder_attention_type": "synthesizer_dense", "decoder_attention_type": "synthesizer_random"},
    "SynthesizersTurned": {
        **{"encoder_attention_type": "synthesizer_random", "decoder_attention_type": "synthesizer_dense"}
    },
    # Sums over as many positions as there are, so that weights have the shape that the suite expects.
    "Linformer": {"encoder_attention_type": "linformer", "cross_attention_type": "linformer", "linformer_k": 7},
    # Layers of a stack, keys and values, both attentions of the decoder and all feed-forwards share weights.
    "Sharing": {
        **{"encoder_layer_sets": 1, "decoder_layer_sets": 1, "projection_sharing": "key_value"},
        **{"decoder_attention_sharing": True, "feed_forward_sharing": "all"},
    },
}
for name, options in VARIANTS.items():
    name = f"VanillaTransformer{name}Test"
    members = {"options": options, "__module__": __name__}
    globals()[name] = type(name, (VanillaTransformerSuite, unittest.TestCase), members)


class SourceAsTarget(VanillaTransformerForConditionalGeneration):
    """`test_tp_forward` gives a model source ids and nothing else; here they serve as target ids, too."""

    @functools.wraps(VanillaTransformerForConditionalGeneration.forward)
    def forward(self, input_ids=None, **kwargs):
        if not kwargs:
            kwargs["decoder_input_ids"] = input_ids
        return super().forward(input_ids, **kwargs)


def run_as_seq2seq(test: Callable, rank: int, *args, **kwargs):
    """Run an FSDP test, in one of its processes, with the Auto class that knows our model."""
    test_fsdp_mixin.AutoModelForCausalLM = AutoModelForSeq2SeqLM
    test(rank, *args, **kwargs)


class VanillaTransformerModelTest(VanillaTransformerSuite, ParallelSuite, unittest.TestCase):
    """The paper's model."""

    def _get_tp_model_class(self) -> type[SourceAsTarget]:
        return SourceAsTarget

    def _get_tiny_config(self) -> tuple[type[PreTrainedConfig], dict]:
        """Without dropout: runs on different numbers of processes are compared in training mode."""
        config_class, options = super()._get_tiny_config()
        return config_class, {**options, "dropout": 0.0, "attention_dropout": 0.0}

    def _run_fsdp2_distributed_test(self, test_name: str, test: Callable, *args, **kwargs):
        super()._run_fsdp2_distributed_test(test_name, functools.partial(run_as_seq2seq, test), *args, **kwargs)
