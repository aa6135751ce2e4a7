"""
A plain Transformer for the tests of converters: float64, one sentence and one head at a time, after the equations of
"Attention Is All You Need" and what each toolkit documents. It knows nothing of the package: a test tells it where the
toolkit keeps each matrix.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch


ACTIVATIONS = {
    "relu": lambda x: x.clamp(min=0),
    "relu_squared": lambda x: x.clamp(min=0) ** 2,
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
    "tanh": torch.tanh,
    "linear": lambda x: x,
    "swish": lambda x: x / (1 + torch.exp(-x)),
}

Matrix = tuple[torch.Tensor, torch.Tensor | None]  # weight [out, in] and bias, or the two of a norm


def sinusoid(position: int, width: int, layout: str) -> torch.Tensor:
    """One position's encoding: "interleaved", "halves", or "inclusive" (halves, frequencies up to 1/10000 itself)."""
    half = width // 2
    steps = half - 1 if layout == "inclusive" else half
    angles = torch.tensor([position / 10000 ** (i / steps) for i in range(half)], dtype=torch.float64)
    if layout == "interleaved":
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten()
    return torch.cat((angles.sin(), angles.cos()))


def linear(x: torch.Tensor, matrix: Matrix) -> torch.Tensor:
    weight, bias = matrix
    y = x @ weight.double().T
    return y if bias is None else y + bias.double()


def layer_norm(x: torch.Tensor, matrix: Matrix, eps: float) -> torch.Tensor:
    weight, bias = matrix
    centred = x - x.mean(-1, keepdim=True)
    y = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps) * weight.double()
    return y if bias is None else y + bias.double()


@dataclass
class Stack:
    """One side: `at(part)` gives the matrices of layer parts "0.self_attn.q", "0.norm1", "0.ffn1", "final_norm", …"""

    at: Callable[[str], Matrix]
    layers: int
    heads: int
    pre_norm: bool = False
    activation: str = "relu"
    eps: float = 1e-5
    alpha: float = 1.0
    final_norm: bool = False
    norm: Callable = field(default=layer_norm)

    def sublayer(self, x: torch.Tensor, norm: str, compute: Callable) -> torch.Tensor:
        matrices = self.at(norm)
        if self.pre_norm:
            return self.alpha * x + compute(self.norm(x, matrices, self.eps))
        return self.norm(self.alpha * x + compute(x), matrices, self.eps)

    def attend(self, name: str, x: torch.Tensor, memory: torch.Tensor, causal: bool) -> torch.Tensor:
        q, k, v = (linear(y, self.at(f"{name}.{part}")) for y, part in ((x, "q"), (memory, "k"), (memory, "v")))
        outputs = []
        for query, key, value in zip(*(y.chunk(self.heads, dim=-1) for y in (q, k, v)), strict=True):
            scores = query @ key.T / math.sqrt(query.shape[-1])
            if causal:
                scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
            outputs.append(scores.softmax(dim=-1) @ value)
        return linear(torch.cat(outputs, dim=-1), self.at(f"{name}.out"))

    def feed_forward(self, name: str, x: torch.Tensor) -> torch.Tensor:
        hidden = ACTIVATIONS[self.activation](linear(x, self.at(f"{name}.ffn1")))
        return linear(hidden, self.at(f"{name}.ffn2"))

    def layer(self, name: str, x: torch.Tensor, memory: torch.Tensor | None) -> torch.Tensor:
        is_decoder = memory is not None
        x = self.sublayer(x, f"{name}.norm1", lambda y: self.attend(f"{name}.self_attn", y, y, is_decoder))
        if is_decoder:
            x = self.sublayer(x, f"{name}.norm2", lambda y: self.attend(f"{name}.cross_attn", y, memory, False))
        return self.sublayer(x, f"{name}.norm3", lambda y: self.feed_forward(name, y))

    def run(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Embeddings (T, D) to states (T, D); with the encoder's output (S, D) this is a decoder."""
        for layer in range(self.layers):
            x = self.layer(str(layer), x, memory)
        return self.norm(x, self.at("final_norm"), self.eps) if self.final_norm else x
