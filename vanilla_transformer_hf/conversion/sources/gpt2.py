"""
GPT-2 and GPT-1: folders that transformers saved, with or without the language-model head, with their tokenizers.

After transformers/models/{gpt2,openai}/{configuration,modeling,tokenization}_*.py.
"""

from transformers import GPT2Config, GPT2Tokenizer, OpenAIGPTConfig, OpenAIGPTTokenizer

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..key_table import KeyTable, Rule, third, transposed, transposed_third, written_out
from .saved_model import SavedModel


# Activations by GPT-1's names.
GPT1_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}

# Class of transformers -> ours
CLASSES = {
    "GPT2LMHeadModel": "VanillaTransformerForCausalLM",
    "GPT2Model": "VanillaTransformerDecoderModel",
    "OpenAIGPTLMHeadModel": "VanillaTransformerForCausalLM",
    "OpenAIGPTModel": "VanillaTransformerDecoderModel",
}

DECODER = written_out(
    {
        "{wte,tokens_embed}.weight": "{embed_tokens,embed_tokens}.weight",
        "{wpe,positions_embed}.weight": "{embed_positions,embed_positions}.weight",
        "position_ids": None,  # a buffer of position numbers, not trained
        "h.{}.attn.{bias,masked_bias}": None,  # the causal mask, which is a buffer
        "h.{}.attn.c_attn.weight": [
            Rule(f"layers.{{}}.self_attn.{letter}_proj.weight", transposed_third(number))
            for number, letter in enumerate("qkv")
        ],
        "h.{}.attn.c_attn.bias": [
            Rule(f"layers.{{}}.self_attn.{letter}_proj.bias", third(number)) for number, letter in enumerate("qkv")
        ],
        "h.{}.{attn.c_proj,mlp.c_fc,mlp.c_proj}.weight": Rule(
            "layers.{}.{self_attn.out_proj,fc1,fc2}.weight", transposed
        ),
        "h.{}.{attn.c_proj,mlp.c_fc,mlp.c_proj}.bias": "layers.{}.{self_attn.out_proj,fc1,fc2}.bias",
        "h.{}.{ln_1,ln_2}.{weight,bias}": "layers.{}.{self_attn_layer_norm,final_layer_norm}.{weight,bias}",
        "ln_f.{weight,bias}": "layer_norm.{weight,bias}",
    }
)


class GPT2(SavedModel):
    name = "gpt2"
    hosts = {"gpt2": GPT2Config, "openai-gpt": OpenAIGPTConfig}
    needed = ()
    classes = CLASSES
    # Upcasting changes nothing in float32.
    fixed = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
    has_model = True

    def keys(self, config: VanillaTransformerConfig) -> KeyTable:
        """The table. Files of a language model may have the decoder's names with or without a prefix."""
        ours = "model.decoder." if "VanillaTransformerForCausalLM" in (config.architectures or []) else "decoder."
        table: dict = {"lm_head.weight": "lm_head.weight"}
        for name, rules in DECODER.items():
            table[name] = table[f"transformer.{name}"] = [Rule(ours + rule.target, rule.transform) for rule in rules]
        return table

    def unsupported(self) -> list[str]:
        problems, afn = super().unsupported(), self.settings.get("afn")
        if not problems and afn is not None and afn not in GPT1_ACTIVATIONS:
            return [f"afn={afn!r}: must be one of {', '.join(GPT1_ACTIVATIONS)}"]
        return problems

    def to_config(self) -> VanillaTransformerConfig:
        """Config of the model that the options describe: GPT-1 is post-norm, GPT-2 pre-norm with a final norm."""
        options = self.settings
        is_first = self.options["model_type"] == "openai-gpt"
        sizes = {
            "layers": options["n_layer"],
            "attention_heads": options["n_head"],
            "ffn_dim": options.get("n_inner") or 4 * options["n_embd"],
            "norm_position": "post" if is_first else "pre",
        }
        eos = options["eos_token_id"]
        # Our config needs a padding token: if there is none, the end token is used, as is usual with GPT-2.
        pad = next((one for one in (options["pad_token_id"], eos) if isinstance(one, int)), 0)
        return self.config_of_one_stack(
            sizes,
            is_decoder=True,
            d_model=options["n_embd"],
            activation_function=GPT1_ACTIVATIONS[options["afn"]] if is_first else options["activation_function"],
            dropout=options["resid_pdrop"],
            attention_dropout=options["attn_pdrop"],
            max_position_embeddings=options["n_positions"],
            layer_norm_eps=options["layer_norm_epsilon"],
            pad_token_id=pad,
            eos_token_id=eos,
            bos_token_id=options["bos_token_id"],
        )

    def to_tokenizer(self, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer | None:
        """Byte-level BPE of GPT-2 or the BPE of GPT-1."""
        host = GPT2Tokenizer if self.options["model_type"] == "gpt2" else OpenAIGPTTokenizer
        return self.tokenizer_of(host, ("vocab.json", "merges.txt"))

    def decoding_notes(self) -> list[str]:
        """Notes about differences in training, and about the padding token."""
        options, notes = self.settings, []
        if options["embd_pdrop"] != options["resid_pdrop"]:
            notes.append(f"embd_pdrop={options['embd_pdrop']}: in training, dropout is resid_pdrop everywhere")
        if options["pad_token_id"] is None:
            notes.append("there is no padding token: the config has the end of text in its place")
        return notes
