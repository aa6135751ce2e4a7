"""
Small checkpoints with weights drawn by chance, under the names of any toolkit, and their logits in float64 after the
equations of "Attention Is All You Need" and what each toolkit documents. Nothing here knows the package: a test says
where the toolkit keeps each part and what its options mean.
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
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "tanh": torch.tanh,
    "linear": lambda x: x,
    "swish": lambda x: x * torch.sigmoid(x),
}

# Matrices that are one.
EMBEDDING, OUTPUT = ("decoder.embedding", "encoder.embedding"), ("decoder.output", "decoder.embedding")

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
    value_width: int | None = None  # of a head, where it is another one
    key_value_heads: int | None = None
    gated: bool = False
    eps: float = 1e-5
    offset: int = 0
    same: tuple[tuple[str, str], ...] = ()  # ("decoder.output", "decoder.embedding"): one matrix
    output_bias: bool = False
    norm: Callable = layer_norm
    norm_kinds: tuple[str, ...] = ("weight", "bias")
    embedding_norm: bool = False
    no_word: int | None = None  # an id without a row, or whose row counts as zeros
    added: torch.Tensor | float = 0.0  # to each embedding of a source
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
        groups, value = self.key_value_heads or side.heads, self.value_width or head
        for layer in range(side.layers):
            for attention in ("self_attn", "cross_attn") if stack == "decoder" else ("self_attn",):
                read = self.encoder.width if attention == "cross_attn" else width
                sizes = (("q", side.heads * head, width), ("k", groups * head, read), ("v", groups * value, read))
                for part, rows, columns in sizes:
                    bias = part in side.biases.split()
                    self._draw(stack, f"{attention}.{part}", rows, columns, bias=bias, layer=layer)
                self._draw(
                    stack, f"{attention}.out", width, side.heads * value, bias="out" in side.biases, layer=layer
                )
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

    @property
    def sharing(self) -> str:
        """Our name for what is one; two embeddings that are one beside another output are none of our kinds."""
        return {(OUTPUT,): "decoder", (EMBEDDING, OUTPUT): "all"}.get(self.same, "none")

    def side(self, stack: str) -> Side:
        return self.encoder if stack == "encoder" else self.decoder

    def pair(self, stack: str, part: str):
        """Weight and bias of a part; in a layer's, "3.ffn1", the number of the layer goes into the name."""
        layer, _, inner = part.partition(".")
        name = self.names[stack][inner].format(layer) if layer.isdigit() else self.names[stack][part]
        kinds = self.norm_kinds if "norm" in part else ("weight", "bias")
        return self.tensors[f"{name}.{kinds[0]}"], self.tensors.get(f"{name}.{kinds[-1]}") if len(kinds) > 1 else None

    def embed(self, stack: str, ids: list[int]) -> torch.Tensor:
        side, table = self.side(stack), self.pair(stack, "embedding")[0].double()
        x = torch.stack([torch.zeros(side.width).double() if token == self.no_word else table[token] for token in ids])
        x = x * math.sqrt(side.width) if side.scaled else x
        for row in range(len(ids)):
            if side.positions == "learned":
                x[row] += self.pair(stack, "positions")[0][row + self.offset]
            elif side.positions != "none":
                x[row] += sinusoid(row + self.offset, side.width, side.positions)
        return self.norm(x, self.pair(stack, "embedding_norm"), self.eps) if self.embedding_norm else x

    def attend(self, stack: str, name: str, x: torch.Tensor, memory: torch.Tensor, causal: bool) -> torch.Tensor:
        """Attention of states (T, D) to a memory (S, D), whose keys and values may have fewer heads."""
        heads = self.side(stack).heads
        counts = {"q": heads, "k": self.key_value_heads or heads, "v": self.key_value_heads or heads}
        q, k, v = (
            linear(x if part == "q" else memory, self.pair(stack, f"{name}.{part}"))
            .unflatten(-1, (count, -1))
            .transpose(0, 1)
            .repeat_interleave(heads // count, dim=0)
            for part, count in counts.items()
        )  # (H, T, d)
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
        return linear((scores.softmax(dim=-1) @ v).transpose(0, 1).flatten(1), self.pair(stack, f"{name}.out"))

    def feed_forward(self, stack: str, name: str, x: torch.Tensor) -> torch.Tensor:
        inner = ACTIVATIONS[self.side(stack).activation](linear(x, self.pair(stack, f"{name}.ffn1")))
        if self.gated:
            inner = inner * linear(x, self.pair(stack, f"{name}.ffn3"))
        return linear(inner, self.pair(stack, f"{name}.ffn2"))

    def run(self, stack: str, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Embeddings (T, D) to states (T, D); with the encoder's output (S, D) this is a decoder."""
        side = self.side(stack)

        def sublayer(x: torch.Tensor, norm: str, compute: Callable) -> torch.Tensor:
            pair = self.pair(stack, norm)
            if side.pre_norm:
                return side.alpha * x + compute(self.norm(x, pair, self.eps))
            return self.norm(side.alpha * x + compute(x), pair, self.eps)

        for layer in range(side.layers):
            own, cross = f"{layer}.self_attn", f"{layer}.cross_attn"
            x = sublayer(x, f"{layer}.norm1", lambda y: self.attend(stack, own, y, y, memory is not None))  # noqa: B023
            if memory is not None:
                x = sublayer(x, f"{layer}.norm2", lambda y: self.attend(stack, cross, y, memory, False))  # noqa: B023
            x = sublayer(x, f"{layer}.norm3", lambda y: self.feed_forward(stack, str(layer), y))  # noqa: B023
        return self.norm(x, self.pair(stack, "final_norm"), self.eps) if side.final_norm else x

    def logits(self, source: list[int], target: list[int]) -> torch.Tensor:
        memory = self.run("encoder", self.embed("encoder", source) + self.added)
        states = self.run("decoder", self.embed("decoder", target), memory)
        return linear(states, self.pair("decoder", "output")) * self.logit_scale
