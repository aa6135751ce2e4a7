"""
BERT and RoBERTa: folders that transformers saved, without a head or for masked language modelling, classification of
sequences and of tokens, with their tokenizers.

After transformers/models/{bert,roberta}/{configuration,modeling,tokenization}_*.py.
"""

from typing import Any

from transformers import BertConfig, BertTokenizer, GenerationConfig, RobertaConfig, RobertaTokenizer

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..key_table import KeyTable, written_out
from .saved_model import SavedModel


# Class of transformers -> ours
CLASSES = {
    f"{name}{head}": ours
    for name in ("Bert", "Roberta")
    for head, ours in {
        "Model": "VanillaTransformerEncoderModel",
        "ForMaskedLM": "VanillaTransformerForMaskedLM",
        "ForSequenceClassification": "VanillaTransformerForSequenceClassification",
        "ForTokenClassification": "VanillaTransformerForTokenClassification",
    }.items()
} | {"BertForPreTraining": "VanillaTransformerForMaskedLM"}

ENCODER = written_out(
    {
        "embeddings.{word,position,token_type}_embeddings.weight": "embed_{tokens,positions,segments}.weight",
        "embeddings.LayerNorm.{weight,bias}": "layernorm_embedding.{weight,bias}",
        "encoder.layer.{}.attention.self.{query,key,value}.{weight,bias}": (
            "layers.{}.self_attn.{q_proj,k_proj,v_proj}.{weight,bias}"
        ),
        "encoder.layer.{}.attention.output.{dense,LayerNorm}.{weight,bias}": (
            "layers.{}.{self_attn.out_proj,self_attn_layer_norm}.{weight,bias}"
        ),
        "encoder.layer.{}.{intermediate.dense,output.dense,output.LayerNorm}.{weight,bias}": (
            "layers.{}.{fc1,fc2,final_layer_norm}.{weight,bias}"
        ),
    }
)
# The names of the norms' weights in checkpoints from before 2019.
OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

HEADS: dict[str, dict[str, Any]] = {
    "bert": {
        "cls.predictions.transform.dense": "transform",
        "cls.predictions.transform.LayerNorm": "transform_norm",
        "cls.predictions.decoder": "lm_head",
        "cls.seq_relationship": None,  # the head of next sentence prediction, which our models do not have
        "classifier": "classifier",
        "bert.pooler.dense": "pooler",
        "pooler.dense": None,  # the pooler of a model without a head, of which we keep the states
    },
    "roberta": {
        "lm_head.dense": "transform",
        "lm_head.layer_norm": "transform_norm",
        "lm_head.decoder": "lm_head",
        "classifier.dense": "pooler",
        "classifier.out_proj": "classifier",
        "classifier": "classifier",
        "roberta.pooler.dense": None,  # likewise
        "pooler.dense": None,
    },
}
BIASES = {"bert": "cls.predictions.bias", "roberta": "lm_head.bias"}


class Bert(SavedModel):
    name = "bert"
    hosts = {"bert": BertConfig, "roberta": RobertaConfig}
    needed = ("pad_token_id",)
    classes = CLASSES
    has_model = True

    def keys(self, config: VanillaTransformerConfig) -> KeyTable:
        """The table. A model without a head has the encoder's names without a prefix."""
        kind = self.options["model_type"]
        bare = self.options["architectures"][0].endswith("Model")
        ours, theirs = ("encoder.", "") if bare else ("model.encoder.", f"{kind}.")
        table: dict[str, Any] = {f"{theirs}{name}": f"{ours}{rules[0].target}" for name, rules in ENCODER.items()}
        for name, target in HEADS[kind].items():
            for part in ("weight", "bias"):
                table[f"{name}.{part}"] = None if target is None else f"{target}.{part}"
        if "VanillaTransformerForSequenceClassification" not in (config.architectures or []):
            table |= {f"bert.pooler.dense.{part}": None for part in ("weight", "bias")}
        # The same tensor as the bias of the map if the matrices are tied; otherwise unused.
        table[BIASES[kind]] = "lm_head.bias" if config.tie_word_embeddings else None
        for buffer in ("position_ids", "token_type_ids"):  # a buffer of position numbers, not trained
            table[f"{theirs}embeddings.{buffer}"] = None
        for name, target in [*table.items()]:
            for new, old in OLD_NAMES.items():
                if name.endswith(new):
                    table[name.removesuffix(new) + old] = target
        return table

    @property
    def fixed(self) -> dict[str, Any]:  # type: ignore[override]
        fixed = {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}
        if self.options["architectures"] == ["RobertaForMaskedLM"]:
            fixed["hidden_act"] = "gelu"  # which RoBERTa's head always has
        return fixed

    def to_config(self) -> VanillaTransformerConfig:
        options = self.settings
        # RoBERTa's first position is pad_token_id + 1.
        offset = options["pad_token_id"] + 1 if self.options["model_type"] == "roberta" else 0
        sizes = {
            "layers": options["num_hidden_layers"],
            "attention_heads": options["num_attention_heads"],
            "ffn_dim": options["intermediate_size"],
        }
        return self.config_of_one_stack(
            sizes,
            d_model=options["hidden_size"],
            activation_function=options["hidden_act"],
            dropout=options["hidden_dropout_prob"],
            attention_dropout=options["attention_probs_dropout_prob"],
            max_position_embeddings=options["max_position_embeddings"] - offset,
            position_offset=offset,
            layernorm_embedding=True,
            **{name: options[name] for name in ("classifier_dropout", "type_vocab_size", "layer_norm_eps")},
            **{name: options[name] for name in ("pad_token_id", "eos_token_id", "bos_token_id")},
        )

    def to_tokenizer(self, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer | None:
        """WordPiece of BERT or byte-level BPE of RoBERTa."""
        if self.options["model_type"] == "bert":
            return self.tokenizer_of(BertTokenizer, ("vocab.txt",))
        return self.tokenizer_of(RobertaTokenizer, ("vocab.json", "merges.txt"))

    def to_generation_config(self, config: VanillaTransformerConfig) -> GenerationConfig:
        return GenerationConfig()

    def decoding_notes(self) -> list[str]:
        """Notes about parts of the checkpoint that are left out."""
        notes = []
        if "BertForPreTraining" in self.options["architectures"]:
            notes.append("the head of next-sentence prediction is left out")
        if self.options["architectures"][0].endswith("Model"):
            notes.append("the pooler is left out: the model returns the states of the tokens")
        if self.options["model_type"] == "roberta":
            notes.append("positions count the tokens of the attention mask; RoBERTa counts those that are not padding")
        return notes
