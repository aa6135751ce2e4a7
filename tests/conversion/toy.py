"""
Small checkpoints with weights drawn by chance, under the names of any toolkit, and their logits by the plain forward:
a test says where the toolkit keeps each part and what its options mean.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from plain_forward import ACTIVATIONS, Stack, layer_norm, linear, sinusoid


ACTIVATIONS = {**ACTIVATIONS, "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x)}


def names_of(
    layers, attentions, projections, norms, feed_forward, embeddings, output, final=("norm", "norm"),
    positions=("encoder.pos_embedding", "decoder.pos_embedding"),
):  # fmt: skip
    """Names by stack; of attentions (encoder's, decoder's own, decoder's on the encoder) and norms (two and three)."""
    found = {}
    for number, stack in enumerate(("encoder", "decoder")):
        layer = f"{stack}.{layers.split()[number % len(layers.split())]}.{{}}"
        own = {"self_attn": attentions[number], "cross_attn": attentions[2]}
        places = ("norm1", "norm2", "norm3") if stack == "decoder" else ("norm1", "norm3")
        found[stack] = {
            **{
                f"{attention}.{part}": f"{layer}.{module}.{name}"
                for attention, module in own.items()
                for part, name in zip(("q", "k", "v", "out"), projections, strict=True)
            },
            **{place: f"{layer}.{name}" for place, name in zip(places, norms[number], strict=True)},
            **{f"ffn{index}": f"{layer}.{name}" for index, name in enumerate(feed_forward, start=1)},
            "embedding": embeddings[number],
            "positions": positions[number],
            "output": output,
            "final_norm": f"{stack}.{final[0]}",
            "embedding_norm": f"{stack}.{final[1]}",
        }
    return found


@dataclass
class Side:
    """What the encoder or the decoder is like."""

    layers: int = 2
    width: int = 16
    heads: int = 4
    ffn: int = 24
    pre_norm: bool = False
    final_norm: bool = False
    activation: str = "relu"
    alpha: float = 1.0
    scaled: bool = True  # embeddings times √d
    positions: str = "interleaved"  # "halves", "inclusive", "learned", "none"
    longest: int = 12  # learned positions
    biases: str = "q k v out ffn"  # maps that have one


@dataclass
class Toy:
    """
    `names` says for "encoder" and "decoder" where a part is: "embedding", "positions", "output", "final_norm",
    "embedding_norm", and inside layer "{}": "self_attn.q", …, "cross_attn.out", "norm1", "norm2" (around
    cross-attention), "norm3", "ffn1", "ffn2", "ffn3" (the gate's values).
    """

    names: dict[str, dict[str, str]]
    encoder: Side = field(default_factory=Side)
    decoder: Side = field(default_factory=Side)
    sizes: tuple[int, int] = (11, 9)
    head_width: int | None = None
    key_value_heads: int | None = None
    gated: bool = False
    eps: float = 1e-5
    offset: int = 0
    same: tuple[tuple[str, str], ...] = ()  # ("decoder.output", "decoder.embedding"): one matrix
    output_bias: bool = False
    norm: Callable = layer_norm
    norm_kinds: tuple[str, ...] = ("weight", "bias")
    embedding_norm: bool = False
    logit_scale: float = 1.0

    def __post_init__(self):
        self.tensors: dict[str, torch.Tensor] = {}
        for stack in ("encoder", "decoder"):
            self._draw_stack(stack)
        self._draw("decoder", "output", self.sizes[1], self.decoder.width, bias=self.output_bias)
        for part, source in self.same:
            to, there = (self.names[stack][name] for stack, name in (part.split("."), source.split(".")))
            self.tensors[f"{to}.weight"] = self.tensors[f"{there}.weight"]

    def _draw(self, stack: str, part: str, *shape: int, bias: bool = False, layer: int | str = ""):
        generator = torch.Generator().manual_seed(len(self.tensors))
        name = self.names[stack][part].format(layer)
        self.tensors[f"{name}.weight"] = torch.randn(*shape, generator=generator) * shape[-1] ** -0.5
        if bias:
            self.tensors[f"{name}.bias"] = torch.randn(shape[0], generator=generator) * 0.3

    def _draw_norm(self, stack: str, part: str, layer: int | str = ""):
        generator = torch.Generator().manual_seed(len(self.tensors))
        for around, kind in zip((1.0, 0.0), self.norm_kinds, strict=False):
            values = around + 0.3 * torch.randn(self.side(stack).width, generator=generator)
            self.tensors[f"{self.names[stack][part].format(layer)}.{kind}"] = values

    def _draw_stack(self, stack: str):
        side = self.side(stack)
        width = side.width
        self._draw(stack, "embedding", self.sizes[stack == "decoder"], width)
        if side.positions == "learned":
            self._draw(stack, "positions", side.longest + self.offset, width)
        head = self.head_width or width // side.heads
        wide = side.heads * head
        narrow = (self.key_value_heads or side.heads) * head
        for layer in range(side.layers):
            for attention in ("self_attn", "cross_attn") if stack == "decoder" else ("self_attn",):
                read = self.encoder.width if attention == "cross_attn" else width
                for part, rows, columns in (("q", wide, width), ("k", narrow, read), ("v", narrow, read)):
                    bias = part in side.biases.split()
                    self._draw(stack, f"{attention}.{part}", rows, columns, bias=bias, layer=layer)
                self._draw(stack, f"{attention}.out", width, wide, bias="out" in side.biases, layer=layer)
            for norm in ("norm1", "norm2", "norm3") if stack == "decoder" else ("norm1", "norm3"):
                self._draw_norm(stack, norm, layer)
            bias = "ffn" in side.biases
            for part in ("ffn1", "ffn3") if self.gated else ("ffn1",):
                self._draw(stack, part, side.ffn, width, bias=bias, layer=layer)
            self._draw(stack, "ffn2", width, side.ffn, bias=bias, layer=layer)
        if side.final_norm:
            self._draw_norm(stack, "final_norm")
        if self.embedding_norm:
            self._draw_norm(stack, "embedding_norm")

    def side(self, stack: str) -> Side:
        return self.encoder if stack == "encoder" else self.decoder

    def pair(self, stack: str, part: str):
        """Weight and bias of a part; in a layer's, "3.ffn1", the number of the layer goes into the name."""
        layer, _, inner = part.partition(".")
        name = self.names[stack][inner].format(layer) if layer.isdigit() else self.names[stack][part]
        kinds = self.norm_kinds if "norm" in part else ("weight", "bias")
        return self.tensors[f"{name}.{kinds[0]}"], self.tensors.get(f"{name}.{kinds[-1]}") if len(kinds) > 1 else None

    def embed(self, stack: str, ids: list[int]) -> torch.Tensor:
        side = self.side(stack)
        x = self.pair(stack, "embedding")[0][ids].double() * (math.sqrt(side.width) if side.scaled else 1.0)
        for row in range(len(ids)):
            if side.positions == "learned":
                x[row] += self.pair(stack, "positions")[0][row + self.offset]
            elif side.positions != "none":
                x[row] += sinusoid(row + self.offset, side.width, side.positions)
        return self.norm(x, self.pair(stack, "embedding_norm"), self.eps) if self.embedding_norm else x

    def run(self, stack: str, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        side = self.side(stack)
        kind = ToyStack(
            at=lambda part: self.pair(stack, part),
            layers=side.layers,
            heads=side.heads,
            pre_norm=side.pre_norm,
            activation=side.activation,
            eps=self.eps,
            alpha=side.alpha,
            final_norm=side.final_norm,
            norm=self.norm,
        )
        kind.key_value_heads, kind.gated = self.key_value_heads or side.heads, self.gated
        return kind.run(x, memory)

    def logits(self, source: list[int], target: list[int]) -> torch.Tensor:
        memory = self.run("encoder", self.embed("encoder", source))
        states = self.run("decoder", self.embed("decoder", target), memory)
        return linear(states, self.pair("decoder", "output")) * self.logit_scale


class ToyStack(Stack):
    """A stack that may have a gate, and fewer heads of keys and values than of queries."""

    gated = False
    key_value_heads = 0

    def attend(self, name: str, x: torch.Tensor, memory: torch.Tensor, causal: bool) -> torch.Tensor:
        queries = linear(x, self.at(f"{name}.q")).chunk(self.heads, dim=-1)
        keys, values = (linear(memory, self.at(f"{name}.{part}")).chunk(self.key_value_heads, dim=-1) for part in "kv")
        outputs = []
        for number, query in enumerate(queries):
            shared = number * self.key_value_heads // self.heads
            scores = query @ keys[shared].T / math.sqrt(query.shape[-1])
            if causal:
                scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
            outputs.append(scores.softmax(dim=-1) @ values[shared])
        return linear(torch.cat(outputs, dim=-1), self.at(f"{name}.out"))

    def feed_forward(self, name: str, x: torch.Tensor) -> torch.Tensor:
        inner = ACTIVATIONS[self.activation](linear(x, self.at(f"{name}.ffn1")))
        if self.gated:
            inner = inner * linear(x, self.at(f"{name}.ffn3"))
        return linear(inner, self.at(f"{name}.ffn2"))
