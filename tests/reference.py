"""
A second Transformer, written only from the equations of "Attention Is All You Need" (arXiv 1706.03762) and, for the
switches that the paper does not have, from their definitions. One sentence at a time, in float64, without a cache.
It shares nothing with the package but the names of the weights. `examples/plain_transformer.py` is the paper's model
alone, in tensors of whole batches, to be read and run; this one is for the proof of every switch.
"""

import math

import torch


ACTIVATIONS = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "swish": lambda x: x / (1 + torch.exp(-x)),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "linear": lambda x: x,
}


PROJECTIONS = {
    "none": {},
    "key_value": {"k_proj": "v_proj"},
    "query_key": {"k_proj": "q_proj"},
    "query_key_value": {"k_proj": "q_proj", "v_proj": "q_proj"},
}


def set_of(layer: int, sets: int, layers: int, sharing: str) -> int:
    """The weights that a layer has: A A B B, A B A B or A B B A for two sets and four layers."""
    if sharing == "sequence":
        return layer // (layers // sets)
    cycle, place = divmod(layer, sets)
    is_last = (cycle + 1) * sets >= layers and cycle > 0
    return sets - 1 - place if sharing == "cycle_reverse" and is_last else place


def unshared(weights: dict[str, torch.Tensor], fields) -> dict[str, torch.Tensor]:
    """The weights (without "model.") of a model that computes the same and shares nothing: copies, by their names."""
    found = {
        name: tensor for name, tensor in weights.items() if ".layers." not in name and ".feed_forward" not in name
    }

    def copy(source: str, target: str):
        for kind in ("weight", "bias", "running_mean", "running_variance"):
            if f"{source}.{kind}" in weights:
                found[f"{target}.{kind}"] = weights[f"{source}.{kind}"].clone()

    for stack in ("encoder", "decoder"):
        layers, sets = getattr(fields, f"{stack}_layers"), getattr(fields, f"{stack}_layer_sets")
        for layer in range(layers):
            number = set_of(layer, sets, layers, fields.layer_sharing)
            theirs, ours = f"{stack}.layers.{number}", f"{stack}.layers.{layer}"
            for part in ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"):
                copy(f"{theirs}.{part}", f"{ours}.{part}")
            owner = {
                "none": theirs,
                "stack": f"{stack}.feed_forward",
                "all": "encoder.feed_forward",
                "encoder_only": f"{stack}.feed_forward",
            }[fields.feed_forward_sharing]
            for part in ("fc1", "fc2", "fc3"):
                copy(f"{owner}.{part}", f"{ours}.{part}")
            vector = "self_attn.score_vector", "encoder_attn.score_vector"
            for name in (each for each in vector if f"{theirs}.{each}" in weights):
                found[f"{ours}.{name}"] = weights[f"{theirs}.{name}"]
            for attention in ("self_attn", "encoder_attn")[: 2 if stack == "decoder" else 1]:
                source = "self_attn" if fields.decoder_attention_sharing else attention
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    name = PROJECTIONS[fields.projection_sharing].get(part, part)
                    copy(f"{theirs}.{source}.{name}", f"{ours}.{attention}.{part}")
    return found


class Reference:
    """Logits of a model with the given weights (its state dict) and fields (any object that has them)."""

    def __init__(self, weights: dict[str, torch.Tensor], fields):
        weights = {name.removeprefix("model."): tensor.double() for name, tensor in weights.items()}
        self.weights = unshared(weights, fields)
        self.fields = fields

    def logits(self, source: list[int], target: list[int], segments: list[int] | None = None) -> torch.Tensor:
        """Source ids, their segments and decoder input ids of one sentence to logits (T, V)."""
        memory = self.encode(source, segments or [0] * len(source))
        states = self.decode(target, memory)
        return self.linear("lm_head", states)

    def encode(self, source: list[int], segments: list[int]) -> torch.Tensor:
        x = self.embed("encoder", source, segments)
        for layer in range(self.fields.encoder_layers):
            name = f"encoder.layers.{layer}"
            heads = self.fields.encoder_attention_heads
            x = self.residual("encoder", f"{name}.self_attn_layer_norm", x, self.self_attention(name, heads, False))
            x = self.residual(
                "encoder", f"{name}.final_layer_norm", x, self.feed_forward(name, self.fields.activation_function)
            )
        return self.norm("encoder.layer_norm", x) if self.fields.encoder_final_norm else x

    def decode(self, target: list[int], memory: torch.Tensor) -> torch.Tensor:
        activation = self.fields.decoder_activation_function
        x = self.embed("decoder", target)
        for layer in range(self.fields.decoder_layers):
            name = f"decoder.layers.{layer}"
            heads = self.fields.decoder_attention_heads
            x = self.residual("decoder", f"{name}.self_attn_layer_norm", x, self.self_attention(name, heads, True))
            x = self.residual(
                "decoder",
                f"{name}.encoder_attn_layer_norm",
                x,
                lambda y, name=name, heads=heads: self.attention(f"{name}.encoder_attn", heads, y, memory, False),
            )
            if self.fields.feed_forward_sharing != "encoder_only":
                x = self.residual("decoder", f"{name}.final_layer_norm", x, self.feed_forward(name, activation))
        return self.norm("decoder.layer_norm", x) if self.fields.decoder_final_norm else x

    def embed(self, stack: str, ids: list[int], segments: list[int] | None = None) -> torch.Tensor:
        x = torch.stack([self.weights[f"{stack}.embed_tokens.weight"][token] for token in ids])
        if self.fields.scale_embedding:
            x = x * math.sqrt(x.shape[-1])
        if segments is not None and self.fields.type_vocab_size:
            x = x + torch.stack([self.weights[f"{stack}.embed_segments.weight"][segment] for segment in segments])
        x = x + torch.stack([self.position(stack, row, x.shape[-1]) for row in range(len(ids))])
        return self.norm(f"{stack}.layernorm_embedding", x) if self.fields.layernorm_embedding else x

    def position(self, stack: str, row: int, d: int) -> torch.Tensor:
        pos, half = row + self.fields.position_offset, d // 2
        kind = self.fields.position_encoding if stack == "encoder" else self.fields.decoder_position_encoding
        if kind in ("none", "rotary", "rotary_halves", "t5_bias", "alibi", "shaw", "gated_alibi", "distance_mlp"):
            return torch.zeros(d, dtype=torch.float64)
        if kind == "learned":
            return self.weights[f"{stack}.embed_positions.weight"][pos]
        if kind == "hierarchical":
            trained, alpha = self.weights[f"{stack}.embed_positions.weight"], self.fields.hierarchical_alpha
            base = (trained - alpha * trained[0]) / (1 - alpha)
            return alpha * base[pos // len(base)] + (1 - alpha) * base[pos % len(base)]
        encoding = [0.0] * d
        for i in range(half):
            exponent = i / (half - 1) if kind == "sinusoidal_halves_inclusive" else 2 * i / d
            angle = pos / 10000**exponent
            sine, cosine = (2 * i, 2 * i + 1) if kind == "sinusoidal" else (i, half + i)
            encoding[sine], encoding[cosine] = math.sin(angle), math.cos(angle)
        return torch.tensor(encoding, dtype=torch.float64)

    def residual(self, stack: str, norm: str, x: torch.Tensor, sublayer) -> torch.Tensor:
        alpha = getattr(self.fields, f"{stack}_residual_alpha")
        if getattr(self.fields, f"{stack}_norm_position") == "pre":
            return alpha * x + sublayer(self.norm(norm, x))
        return self.norm(norm, alpha * x + sublayer(x))

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        weight, eps = self.weights[f"{name}.weight"], self.fields.layer_norm_eps
        if self.fields.norm_type == "rms_norm":
            return weight * x / torch.sqrt((x**2).mean(dim=-1, keepdim=True) + eps)
        if self.fields.norm_type == "rms_norm_author":
            return weight * x / (torch.sqrt((x**2).mean(dim=-1, keepdim=True)) + eps)
        if self.fields.norm_type == "batch_norm":
            mean, variance = self.weights[f"{name}.running_mean"], self.weights[f"{name}.running_variance"]
        else:
            mean = x.mean(dim=-1, keepdim=True)
            variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
        return weight * (x - mean) / torch.sqrt(variance + eps) + self.weights[f"{name}.bias"]

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        x = x @ self.weights[f"{name}.weight"].T
        return x + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else x

    def feed_forward(self, name: str, activation: str):
        def gate(x: torch.Tensor) -> torch.Tensor | float:
            return self.linear(f"{name}.fc3", x) if self.fields.feed_forward_type == "gated" else 1.0

        return lambda x: self.linear(f"{name}.fc2", ACTIVATIONS[activation](self.linear(f"{name}.fc1", x)) * gate(x))

    def self_attention(self, name: str, heads: int, causal: bool):
        kind = self.fields.decoder_position_encoding if causal else self.fields.position_encoding
        return lambda x: self.attention(f"{name}.self_attn", heads, x, x, causal, kind)

    def rotated(self, x: torch.Tensor, kind: str) -> torch.Tensor:
        """Rows (H, T, d_k), of which the first features, as complex numbers, are multiplied by e^(i pos θ)."""
        turned = int(x.shape[-1] * self.fields.rotary_fraction) // 2 * 2
        is_interleaved = kind == "rotary"
        first, second = (x[..., :turned:2], x[..., 1:turned:2]) if is_interleaved else x[..., :turned].chunk(2, dim=-1)
        theta = self.fields.rotary_base ** (-torch.arange(0, turned, 2).double() / turned)
        angles = torch.arange(x.shape[1]).double()[:, None] * theta
        numbers = torch.complex(first, second) * torch.complex(angles.cos(), angles.sin())
        pair = (numbers.real, numbers.imag)
        pair = torch.stack(pair, dim=-1).flatten(-2) if is_interleaved else torch.cat(pair, dim=-1)
        return torch.cat((pair, x[..., turned:]), dim=-1)

    def bias(self, kind: str, name: str, heads: int, x: torch.Tensor) -> torch.Tensor | float:
        """What is added to the scores (H, T, T) of states (T, D); `name` is stack.layers.N.self_attn."""
        stack, _, layer, _ = name.split(".")
        rows = torch.arange(len(x))
        distances = rows[:, None] - rows  # of a query and a key
        if kind == "alibi":
            power = 2 ** int(math.log2(heads))
            exponents = [8 * (head + 1) / power for head in range(power)]
            exponents += [4 * (2 * head + 1) / power for head in range(heads - power)]
            return -(2.0 ** -torch.tensor(exponents, dtype=torch.float64))[:, None, None] * distances.abs()
        if kind == "t5_bias":
            table = self.weights[f"{stack}.embed_positions.weight"]
            buckets = [[self.bucket(stack, distance) for distance in row] for row in distances.tolist()]
            return table[torch.tensor(buckets)].permute(2, 0, 1)
        if kind == "distance_mlp":
            y = (distances.sign() * torch.log(1 + distances.abs().double()))[..., None]
            for number in range(3):
                y = self.linear(f"{stack}.embed_positions.maps.{number}", y)
                y = ACTIVATIONS["silu"](y) if number < 2 else y
            return y.permute(2, 0, 1)
        if kind == "gated_alibi":
            # The logarithm of the product of the gates behind the first of the two, up to the second. A decoder has
            # none of later keys.
            weight, bias = (
                self.weights[f"{stack}.embed_positions.{part}"][self.set_of(stack, int(layer))]
                for part in ("weight", "gate_bias")
            )
            sums = -torch.log(1 + torch.exp(-(weight @ x.T + bias[:, None]))).cumsum(dim=-1)  # (2 H, T)
            between = sums[:, :, None] - sums[:, None]
            return torch.where(distances >= 0, between[:heads], -between[-heads:])
        return 0.0

    def bucket(self, stack: str, distance: int) -> int:
        """Raffel et al. 2020: half of the buckets for one distance each, the others grow with its logarithm."""
        buckets = self.fields.relative_buckets // (1 if stack == "decoder" else 2)
        first = buckets if stack == "encoder" and distance < 0 else 0
        distance, half = max(distance, 0) if stack == "decoder" else abs(distance), buckets // 2
        if distance < half:
            return first + distance
        grown = math.log(distance / half) / math.log(self.fields.max_relative_distance / half) * (buckets - half)
        return first + min(half + int(grown), buckets - 1)

    def set_of(self, stack: str, layer: int) -> int:
        layers, sets = getattr(self.fields, f"{stack}_layers"), getattr(self.fields, f"{stack}_layer_sets")
        return set_of(layer, sets, layers, self.fields.layer_sharing)

    def shaw(self, name: str, table: str, length: int) -> torch.Tensor:
        """What is added to keys or values (T, T, d) by how far they stand from the query."""
        stack, _, layer, _ = name.split(".")
        vectors = self.weights[f"{stack}.embed_positions.{table}"][self.set_of(stack, int(layer))]
        rows, longest = torch.arange(length), len(vectors) // 2
        return vectors[(rows - rows[:, None]).clamp(-longest, longest) + longest]

    def attention(
        self, name: str, heads: int, x: torch.Tensor, memory: torch.Tensor, causal: bool, kind: str = "none"
    ) -> torch.Tensor:
        q, k, v = (
            self.linear(f"{name}.{part}_proj", states).unflatten(-1, (heads, -1)).transpose(0, 1)
            for part, states in (("q", x), ("k", memory), ("v", memory))
        )  # (H, T, d)
        if kind in ("rotary", "rotary_halves"):
            q, k = self.rotated(q, kind), self.rotated(k, kind)
        if self.fields.attention_score == "additive":
            owner = name.replace("encoder_attn", "self_attn") if self.fields.decoder_attention_sharing else name
            vectors = self.weights[f"{owner}.score_vector"]  # (H, d)
            scores = torch.tanh(q[:, :, None] + k[:, None]) @ vectors[:, None, :, None]
            scores = scores.squeeze(-1)
        else:
            scores = q @ k.transpose(1, 2)  # (H, T, S)
            if kind == "shaw":
                scores = scores + torch.einsum("htd,tsd->hts", q, self.shaw(name, "keys", len(x)))
            if self.fields.attention_score == "scaled_dot":
                scores = scores / math.sqrt(q.shape[-1])
        scores = scores + self.bias(kind, name, heads, x)
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
        exponentials = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
        weights = exponentials / exponentials.sum(dim=-1, keepdim=True)
        output = weights @ v
        if kind == "shaw":
            output = output + torch.einsum("hts,tsd->htd", weights, self.shaw(name, "values", len(x)))
        return self.linear(f"{name}.out_proj", output.transpose(0, 1).flatten(1))


def smoothed_loss(logits: torch.Tensor, labels: list[int], label_smoothing: float) -> torch.Tensor:
    """Sum over positions of -Σ_k q(k) log p(k), with q = (1 - ε) on the label plus ε/V everywhere (section 5.4)."""
    total = torch.zeros((), dtype=torch.float64)
    for row, label in zip(logits, labels, strict=True):
        log_p = row - torch.log(torch.exp(row).sum())
        q = torch.full_like(row, label_smoothing / len(row))
        q[label] += 1 - label_smoothing
        total = total - (q * log_p).sum()
    return total


# ---------------------------------------------------------------------------------------------------------------------
# The recurrent encoder–decoders before the Transformer, one sentence and one position at a time
# ---------------------------------------------------------------------------------------------------------------------


def cell(kind: str, x: torch.Tensor, state: list[torch.Tensor], weights, name: str) -> list[torch.Tensor]:
    """
    One step of an LSTM (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000) or a GRU in the
    form that has the reset gate behind the recurrent product (Chung et al. 2014, arXiv 1412.3555), as torch
    computes it.
    """
    suffix = "_reverse" if name.endswith("_reverse") else ""
    name = name.removesuffix("_reverse")
    w, u, b, c = (weights[f"{name}.{part}_l0{suffix}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    wx, uh = w @ x + b, u @ state[0] + c
    if kind == "lstm":
        i, f, g, o = (wx + uh).chunk(4)
        new_cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return [torch.sigmoid(o) * torch.tanh(new_cell), new_cell]
    (r_x, z_x, n_x), (r_h, z_h, n_h) = wx.chunk(3), uh.chunk(3)
    r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
    return [(1 - z) * torch.tanh(n_x + r * n_h) + z * state[0]]


def read_source(weights, config, source: list[int]) -> tuple[torch.Tensor, list[list[torch.Tensor]]]:
    """The states of the top layer, and the last states of every layer; both directions side by side."""
    embeddings = weights["encoder.embed_tokens.weight"]
    inputs, finals = [embeddings[token] for token in source], []
    for layer in range(config.encoder_layers):
        directions, ends = [], []
        for suffix in ("", "_reverse") if config.bidirectional else ("",):
            name = f"encoder.layers.{layer}{suffix}"
            width = config.d_model // (2 if config.bidirectional else 1)
            state = [torch.zeros(width, dtype=torch.float64)] * (2 if config.cell_type == "lstm" else 1)
            states = []
            for x in reversed(inputs) if suffix else inputs:
                state = cell(config.cell_type, x, state, weights, name)
                states.append(state[0])
            directions.append(states[::-1] if suffix else states)
            ends.append(state)
        outputs = [torch.cat(pair) for pair in zip(*directions)]
        inputs = [x + y if config.residual_layers and layer else y for x, y in zip(inputs, outputs)]
        finals.append([torch.cat(parts) for parts in zip(*ends)])
    return torch.stack(inputs), finals


def recurrent_logits(weights, config, source: list[int], target: list[int]) -> torch.Tensor:
    """
    Logits (T, V) of a recurrent model for a source and the target ids that its decoder reads: Sutskever et al. 2014
    without attention, Bahdanau et al. 2015, appendix A, with tanh for maxout, or Luong et al. 2015, sections 3.1, 3.3.
    """
    weights = {name.removeprefix("model."): tensor.double() for name, tensor in weights.items()}
    memory, states = read_source(weights, config, source)
    states = [states[min(layer, len(states) - 1)] for layer in range(config.decoder_layers)]
    part = {name.removeprefix("decoder.attention."): tensor for name, tensor in weights.items()}
    output, rows = torch.zeros(config.d_model, dtype=torch.float64), []
    for token in target:
        y = weights["decoder.embed_tokens.weight"][token]
        x = y
        if config.attention == "bahdanau":
            query = part["query.weight"] @ states[-1][0] + part["query.bias"]
            energies = [part["score.weight"][0] @ torch.tanh(query + part["key.weight"] @ h) for h in memory]
            context = torch.softmax(torch.stack(energies), dim=0) @ memory
            x = torch.cat((y, context))
        elif config.input_feeding:
            x = torch.cat((y, output))
        for layer in range(config.decoder_layers):
            states[layer] = cell(config.cell_type, x, states[layer], weights, f"decoder.layers.{layer}")
            x = x + states[layer][0] if config.residual_layers and layer else states[layer][0]
        output = x
        if config.attention == "bahdanau":
            output = torch.tanh(part["out.weight"] @ torch.cat((x, context, y)) + part["out.bias"])
        elif config.attention == "luong":
            energies = torch.stack([(part["query.weight"] @ x) @ h for h in memory])  # the paper's W is its transpose
            context = torch.softmax(energies, dim=0) @ memory
            output = torch.tanh(part["out.weight"] @ torch.cat((context, x)))
        rows.append(weights["lm_head.weight"] @ output)
    return torch.stack(rows)
