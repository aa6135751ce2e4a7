"""
The Transformer of "Attention Is All You Need" (Vaswani et al. 2017, arXiv 1706.03762) in plain PyTorch, to be read
from top to bottom. It opens a folder that vanilla_transformer_hf saved and translates greedily:

    python examples/plain_transformer.py model_cards/multi30k_raw_en_de "A brown dog is running through the snow."

A test loads the same weights into both and compares logits and translations. Only the paper's own architecture is
here: no variants, no beam search, no cache of keys and values, no training.

Shapes: B sentences, S source tokens, T target tokens, D = d_model, H heads of width d_k (values: d_v), V vocabulary.
"""

import json
import math
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn


@dataclass
class Config:
    """The sizes of a model, from config.json; the defaults are the paper's base model."""

    vocab_size: int = 37000
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    d_k: int | None = None  # None: d_model / heads
    d_v: int | None = None
    dropout: float = 0.1
    layer_norm_eps: float = 1e-5
    pad_token_id: int = 0
    eos_token_id: int | list[int] = 1
    decoder_start_token_id: int = 0


# Fields of config.json that change what is computed and not which weights there are -> the paper's choice.
PAPER: dict[str, Any] = {
    "encoder_norm_position": "post",
    "decoder_norm_position": "post",
    "encoder_residual_alpha": 1.0,
    "decoder_residual_alpha": 1.0,
    "activation_function": "relu",
    "decoder_activation_function": "relu",
    "position_encoding": "sinusoidal",
    "decoder_position_encoding": "sinusoidal",
    "position_offset": 0,
    "scale_embedding": True,
    "encoder_attention_type": "full",
    "decoder_attention_type": "full",
    "attention_score": "scaled_dot",
    "encoder_pooling": None,
}


def positions(length: int, d_model: int) -> torch.Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(pos / 10000^(2i/D)), section 3.5, as (length, D)."""
    frequencies = torch.pow(10000.0, -torch.arange(0, d_model, 2) / d_model)  # (D/2,)
    angles = torch.arange(length)[:, None] * frequencies  # (length, D/2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)  # (length, D)


class Attention(nn.Module):
    """Concat(head_1 … head_H) W^O with head_i = softmax(Q W_i^Q (K W_i^K)ᵀ / √d_k) V W_i^V, section 3.2."""

    def __init__(self, config: Config, heads: int):
        super().__init__()
        self.heads = heads
        d_k, d_v = config.d_k or config.d_model // heads, config.d_v or config.d_model // heads
        self.q_proj = nn.Linear(config.d_model, heads * d_k, bias=False)
        self.k_proj = nn.Linear(config.d_model, heads * d_k, bias=False)
        self.v_proj = nn.Linear(config.d_model, heads * d_v, bias=False)
        self.out_proj = nn.Linear(heads * d_v, config.d_model, bias=False)

    def forward(self, x: torch.Tensor, memory: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """
        Queries of the states `x` (B, T, D), keys and values of the states `memory` (B, S, D), to states (B, T, D).
        `visible` is whether a query may attend to a key, in a shape that broadcasts to (B, H, T, S).
        """
        query = self.split(self.q_proj(x))  # (B, H, T, d_k)
        key = self.split(self.k_proj(memory))  # (B, H, S, d_k)
        value = self.split(self.v_proj(memory))  # (B, H, S, d_v)
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])  # (B, H, T, S)
        weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)  # (B, H, T, S)
        heads = weights @ value  # (B, H, T, d_v)
        return self.out_proj(heads.transpose(1, 2).flatten(2))  # (B, T, H d_v) to (B, T, D)

    def split(self, states: torch.Tensor) -> torch.Tensor:
        """States of all heads (B, T, H d) to those of each (B, H, T, d)."""
        return states.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward; around each LayerNorm(x + Dropout(Sublayer(x))), sections 3.1 and 5.4."""

    def __init__(self, config: Config, heads: int, ffn_dim: int):
        super().__init__()
        self.self_attn = Attention(config, heads)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, config.layer_norm_eps)
        self.fc1 = nn.Linear(config.d_model, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """States (B, S, D) to states (B, S, D); `visible` is that of `Attention`."""
        x = self.self_attn_layer_norm(x + self.dropout(self.self_attn(x, x, visible)))  # (B, S, D)
        return self.final_layer_norm(x + self.dropout(self.feed_forward(x)))  # (B, S, D)

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """max(0, x W₁ + b₁) W₂ + b₂, section 3.3, of each position by itself."""
        return self.fc2(self.fc1(x).relu())  # (B, S, D) to (B, S, d_ff) to (B, S, D)


class DecoderLayer(EncoderLayer):
    """The encoder's layer with attention over the encoder's output between its two sub-layers."""

    def __init__(self, config: Config, heads: int, ffn_dim: int):
        super().__init__(config, heads, ffn_dim)
        self.encoder_attn = Attention(config, heads)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model, config.layer_norm_eps)

    def forward(  # type: ignore[override]  # it also reads the encoder's output
        self, x: torch.Tensor, visible: torch.Tensor, memory: torch.Tensor, visible_memory: torch.Tensor
    ) -> torch.Tensor:
        """States (B, T, D) and the encoder's output `memory` (B, S, D) to states (B, T, D)."""
        x = self.self_attn_layer_norm(x + self.dropout(self.self_attn(x, x, visible)))  # (B, T, D)
        x = self.encoder_attn_layer_norm(x + self.dropout(self.encoder_attn(x, memory, visible_memory)))  # (B, T, D)
        return self.final_layer_norm(x + self.dropout(self.feed_forward(x)))  # (B, T, D)


class Transformer(nn.Module):
    """Encoder, decoder, and one matrix for both embeddings and the output, section 3.4."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.shared = nn.Embedding(config.vocab_size, config.d_model)
        heads, ffn_dim = config.encoder_attention_heads, config.encoder_ffn_dim
        layers = [EncoderLayer(config, heads, ffn_dim) for _ in range(config.encoder_layers)]
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(layers)})
        heads, ffn_dim = config.decoder_attention_heads, config.decoder_ffn_dim
        layers = [DecoderLayer(config, heads, ffn_dim) for _ in range(config.decoder_layers)]
        self.decoder = nn.ModuleDict({"layers": nn.ModuleList(layers)})
        self.dropout = nn.Dropout(config.dropout)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids (B, T) to embeddings times √D plus positions (B, T, D), sections 3.4 and 3.5."""
        embeddings = self.shared(ids) * math.sqrt(self.config.d_model)  # (B, T, D)
        return self.dropout(embeddings + positions(ids.shape[1], self.config.d_model))  # (B, T, D)

    def encode(self, source: torch.Tensor) -> torch.Tensor:
        """Source ids (B, S), with padding on the right, to the encoder's output (B, S, D)."""
        x, visible = self.embed(source), self.is_token(source)
        for layer in self.encoder["layers"].children():
            x = layer(x, visible)  # (B, S, D)
        return x

    def decode(self, target: torch.Tensor, memory: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """Target ids so far (B, T) and the encoder's output (B, S, D) to logits of each next token (B, T, V)."""
        x, visible_memory = self.embed(target), self.is_token(source)
        causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()  # (T, T): the past and itself
        for layer in self.decoder["layers"].children():
            x = layer(x, causal, memory, visible_memory)  # (B, T, D)
        return x @ self.shared.weight.T  # (B, T, V)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Source ids (B, S) and decoder input ids (B, T) to logits (B, T, V)."""
        return self.decode(target, self.encode(source), source)

    def is_token(self, source: torch.Tensor) -> torch.Tensor:
        """Whether each source id is a token and no padding (B, 1, 1, S)."""
        return (source != self.config.pad_token_id)[:, None, None]

    @torch.no_grad()
    def translate(self, source: torch.Tensor, max_new_tokens: int = 50) -> torch.Tensor:
        """Greedy search: source ids (B, S) to the start token and the most likely next tokens (B, T)."""
        memory, config = self.encode(source), self.config
        target = torch.full((len(source), 1), config.decoder_start_token_id)  # (B, 1)
        ended = torch.zeros(len(source), dtype=torch.bool)  # (B)
        while target.shape[1] <= max_new_tokens and not ended.all():
            token = self.decode(target, memory, source)[:, -1].argmax(dim=-1)  # (B)
            token = token.masked_fill(ended, config.pad_token_id)
            target = torch.cat((target, token[:, None]), dim=1)  # (B, T + 1)
            ended |= torch.isin(token, torch.tensor(config.eos_token_id))
        return target


def build(values: dict[str, Any], weights: dict[str, torch.Tensor]) -> Transformer:
    """
    The model of these fields of config.json and these weights, in evaluation mode.

    Raises:
        ValueError: The model is not the paper's.
    """
    for name, choice in PAPER.items():
        if values.get(name) not in (None, choice):
            raise ValueError(f"{name}={values[name]!r}: this file has only the paper's {choice!r}")
    sizes = [field.name for field in fields(Config) if values.get(field.name) is not None]
    model = Transformer(Config(**{name: values[name] for name in sizes}))
    weights = {name.removeprefix("model."): tensor.float() for name, tensor in weights.items()}
    # In memory, the shared matrix has four names; a saved file has one of them.
    for alias in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
        weights.pop(alias, None)
    given = {(name, tensor.shape) for name, tensor in weights.items()}
    expected = {(name, tensor.shape) for name, tensor in model.state_dict().items()}
    if wrong := sorted({name for name, _ in given ^ expected}):
        raise ValueError(f"unexpected or missing keys, or weights of another shape: {', '.join(wrong)}")
    model.load_state_dict(weights)
    return model.eval()


def main(folder: Path, text: str) -> str:
    """Translate a text with the model and the tokenizer of a saved folder."""
    model = build(json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    target = model.translate(torch.tensor([tokenizer.encode(text).ids]))
    return tokenizer.decode(target[0].tolist()).strip()


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), sys.argv[2]))
