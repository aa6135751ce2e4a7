"""
what textbooks say of single parts, measured: the numbers of docs/claims.md

"training": variants of the file `claims`, each trained for seconds to write digits backwards, with every seed;
finished runs are kept in --runs, and the same command continues. "scores": as many queries as keys of independent
numbers with mean 0 and variance 1, as in the paper's footnote 4: how far scores spread, the entropy of their softmax
as a part of that of equal weights, and the norm of its derivative (the median of the queries), over the width d_k.
"cost": operations, counted by torch, and seconds of CPU time of the parts of an encoder layer, over the positions n
and over the width d. "speed": CPU time of what articles call faster, in turns with the other, as a part of its time:
dot products and additive scores, one head and several, all positions in one pass and one after the other, layer norm
and RMS norm, alone and in a layer. "chain": the longest chain of operations in a training step of which each needs the
result of the one before, over the length of source and target, for the models of the variants file `predecessors`.
"distance": the gradient of the last state by the embedding of each earlier token, in fresh networks of one layer (RNN,
LSTM, the Transformer's encoder), divided by that of the token before it.
"statistics": how far mean and variance of a batch are from the averages of training, and the loss with either, over
the sequences of a batch.

    python -m benchmarks claims training --runs outputs/claims.jsonl --pictures outputs
    python -m benchmarks claims scores cost speed chain distance statistics --pictures outputs
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForCausalLM, VanillaTransformerModel
from vanilla_transformer_hf.commands.compare import VARIANTS
from vanilla_transformer_hf.model.config.attention_kinds import SCALES
from vanilla_transformer_hf.model.config.stacks import StackSizes
from vanilla_transformer_hf.model.layers.norms import TokenBatchNorm
from vanilla_transformer_hf.model.layers.parts import NORMS
from vanilla_transformer_hf.model.modeling_vanilla_transformer import (
    VanillaTransformerLayer,
    eager_attention_forward,
)
from vanilla_transformer_hf.training.comparison.comparison import read_variants

from .claims_picture import table_of_training, write_pictures
from .claims_training import SENTENCES, draw_batch, measure_runs, train
from .predecessors import VOCABULARY, model_called, models
from .results import check_outputs, write_json


KEYS = 64
ROUNDS = 5
Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("claims", nargs="+", choices=CLAIMS, help="what to measure")
    parser.add_argument("--seeds", type=int, default=3, help="draws of random numbers (default: 3)")
    parser.add_argument(
        "--rounds", type=int, default=15, help="turns of each call of speed, for each seed (default: 15)"
    )
    parser.add_argument("--d_k", nargs="+", type=int, default=[8, 16, 32, 64, 128, 256, 512], help="widths of scores")
    lengths = [64, 128, 256, 512, 1024, 2048]
    parser.add_argument("--lengths", nargs="+", type=int, default=lengths, help="positions of cost (64 … 2048)")
    parser.add_argument(
        "--widths", nargs="+", type=int, default=[128, 256, 512, 1024], help="d of cost, at 512 tokens"
    )
    parser.add_argument(
        "--chain_lengths", nargs="+", type=int, default=[8, 16, 32, 64], help="tokens of chain (8 … 64)"
    )
    parser.add_argument("--speed_lengths", nargs="+", type=int, default=[16, 64, 256], help="tokens of speed")
    parser.add_argument("--speed_widths", nargs="+", type=int, default=[64, 256, 1024], help="d of its norms")
    parser.add_argument(
        "--distances", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64], help="tokens of distance (1 … 64)"
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[2, 4, 8, 16, 32, 64, 128], help="of statistics")
    parser.add_argument("--runs", metavar="FILE", help="of training: keeps finished runs, and continues")
    parser.add_argument("--only", nargs="+", metavar="VARIANT", help="of training: only these (default: all)")
    parser.add_argument("--steps", type=int, default=200, help="of training (default: 200)")
    parser.add_argument("--sentences", type=int, default=32, help="of a training step (default: 32)")
    parser.add_argument("--digits", nargs=2, type=int, default=[2, 8], help="length in training (default: 2 to 8)")
    parser.add_argument("--warmup", type=int, default=50, help="steps of training (default: 50)")
    parser.add_argument("--rate", type=float, default=0.003, help="highest learning rate (default: 0.003)")
    parser.add_argument("--pictures", metavar="DIR", help="draw each of them into this folder")
    parser.add_argument("--json", metavar="FILE", help="write the numbers here too")


# Scores --------------------------------------------------------------------------------------------------------------
def draw_scores(kind: str, d_k: int) -> torch.Tensor:
    """Scores (queries, keys) of random queries and keys."""
    query, key = torch.randn(KEYS, d_k), torch.randn(KEYS, d_k)
    if kind == "additive":
        return torch.tanh(query[:, None] + key) @ (torch.randn(d_k) * d_k**-0.5)  # v as a fresh model has it
    return query @ key.t() * SCALES[kind](d_k)


def measure_scores(arguments: argparse.Namespace) -> Iterator[Row]:
    """A row for each kind of score, width and seed."""
    for kind in SCALES:
        for d_k in arguments.d_k:
            for seed in range(1, arguments.seeds + 1):
                torch.manual_seed(seed)
                scores = draw_scores(kind, d_k)
                weights = scores.softmax(dim=-1)
                entropy = -(weights * weights.clamp(min=1e-30).log()).sum(dim=-1).mean() / math.log(KEYS)
                # ∂w/∂s = diag(w) - w wᵀ
                derivative = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None]
                yield {
                    "score": kind,
                    "d_k": d_k,
                    "seed": seed,
                    "spread": scores.std().item(),
                    "entropy": entropy.item(),
                    "derivative": derivative.flatten(1).norm(dim=1).median().item(),
                }


# Cost ----------------------------------------------------------------------------------------------------------------
def parts_of_layer(width: int, length: int) -> dict[str, Callable[[], Any]]:
    """Calls of the parts of an encoder layer with heads of width 64, of one sequence."""
    inner: dict[str, Any] = {"encoder_ffn_dim": 4 * width, "decoder_ffn_dim": 4 * width}
    heads: dict[str, Any] = {"encoder_attention_heads": width // 64, "decoder_attention_heads": width // 64}
    config = VanillaTransformerConfig(d_model=width, **inner, **heads)
    layer = VanillaTransformerLayer(config, StackSizes(config, "encoder")).eval()
    states = torch.randn(1, length, width)
    query, key, value = layer.self_attn.project(states, layer.self_attn.roles)
    attend = partial(eager_attention_forward, layer.self_attn, query, key, value, None, layer.self_attn.scaling)

    def project() -> torch.Tensor:
        layer.self_attn.project(states, layer.self_attn.roles)
        return layer.self_attn.out_proj(states)

    return {
        "scores and sums": attend,
        "projections": project,
        "feed-forward": partial(layer.feed_forward, states),
    }


@torch.no_grad()
def measure_cost(arguments: argparse.Namespace) -> Iterator[Row]:
    """A row for each part, length, width and seed, of which only the seconds depend on it."""
    sizes = [("n", length, 512) for length in arguments.lengths] + [("d", 512, width) for width in arguments.widths]
    for over, length, width in sizes:
        for part, call in parts_of_layer(width, length).items():
            with FlopCounterMode(display=False) as counter:
                call()
            for seed in range(1, arguments.seeds + 1):
                seconds = []
                for _ in range(ROUNDS):
                    start = time.process_time()
                    call()
                    seconds.append(time.process_time() - start)
                yield {
                    "part": part,
                    "over": over,
                    "n": length,
                    "d": width,
                    "seed": seed,
                    "operations": counter.get_total_flops(),
                    "seconds": median(seconds),
                }


# Speed ---------------------------------------------------------------------------------------------------------------
def encoder_layer(width: int, heads: int, kernel: str = "sdpa", **fields: Any) -> Any:
    """A fresh layer of the paper's encoder, without dropout."""
    sizes: dict[str, Any] = {"encoder_ffn_dim": 4 * width, "encoder_attention_heads": heads, "dropout": 0.0}
    config = VanillaTransformerConfig(d_model=width, **sizes, **fields)
    config._attn_implementation = kernel
    return VanillaTransformerLayer(config, StackSizes(config, "encoder"))


def step_of(module: Any, length: int, width: int) -> Callable[[], Any]:
    """A call that computes a module and the gradients of its weights and of its input (1, S, D)."""
    states = torch.randn(1, length, width, requires_grad=True)

    def step() -> None:
        output = module(states)
        (output[0] if isinstance(output, tuple) else output).sum().backward()

    return step


def one_by_one(length: int, width: int) -> dict[str, dict[str, Callable[[], Any]]]:
    """For each model of one layer a call that reads all tokens in one pass, and one that reads them in so many."""
    inner: dict[str, Any] = {"decoder_ffn_dim": 4 * width, "decoder_attention_heads": width // 64}
    single: dict[str, Any] = {"is_encoder_decoder": False, "is_decoder": True, "decoder_layers": 1}
    config = VanillaTransformerConfig(vocab_size=99, d_model=width, **inner, **single)
    decoder, lstm = VanillaTransformerForCausalLM(config).eval(), torch.nn.LSTM(width, width, batch_first=True)
    ids, states = torch.randint(3, 99, (1, length)), torch.randn(1, length, width)

    def tokens_of_decoder() -> None:
        cache = DynamicCache(config=config)
        for each in ids.split(1, dim=1):
            decoder(each, past_key_values=cache)

    def tokens_of_lstm() -> None:
        carried = None
        for each in states.split(1, dim=1):
            _, carried = lstm(each, carried)

    def quietly(call: Callable[[], Any]) -> Callable[[], Any]:
        """Without gradients, and without oneDNN's LSTM, which arranges the weights anew in each call."""

        def run() -> None:
            with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
                call()

        return run

    calls: dict[str, dict[str, Callable[[], Any]]] = {
        "Transformer": {"in one pass": lambda: decoder(ids), "token by token": tokens_of_decoder},
        "LSTM": {"in one pass": lambda: lstm(states), "token by token": tokens_of_lstm},
    }
    return {name: {way: quietly(call) for way, call in ways.items()} for name, ways in calls.items()}


def rivals(arguments: argparse.Namespace) -> Iterator[tuple[str, int, dict[str, Callable[[], Any]]]]:
    """What is measured, its size, and its calls, of which the first is the one that the others are compared with."""
    for length in arguments.speed_lengths:
        kinds = {
            "dot": encoder_layer(512, 8, "eager"),
            "dot, fused": encoder_layer(512, 8),
            "additive": encoder_layer(512, 8, attention_score="additive"),
        }
        yield "scores", length, {name: step_of(layer.self_attn, length, 512) for name, layer in kinds.items()}
    for length in arguments.speed_lengths:
        heads = {f"{count} heads": encoder_layer(512, count).self_attn for count in (1, 2, 8, 32)}
        yield "heads", length, {name: step_of(layer, length, 512) for name, layer in heads.items()}
    for length in arguments.speed_lengths:
        for name, calls in one_by_one(length, 512).items():
            yield name, length, calls
    for width in arguments.speed_widths:
        norms = {name: NORMS[f"{name}_norm"](width, 1e-5) for name in ("layer", "rms")}
        yield "norm", width, {name: step_of(norm, 64, width) for name, norm in norms.items()}
        layers = {name: encoder_layer(width, max(1, width // 64), norm_type=f"{name}_norm") for name in norms}
        yield "layer with it", width, {name: step_of(layer, 64, width) for name, layer in layers.items()}


def measure_speed(arguments: argparse.Namespace) -> Iterator[Row]:
    """A row for each call, size and seed: its time, and that time as a part of the first call's."""
    for what, size, calls in rivals(arguments):
        start = time.process_time()
        for call in calls.values():
            call()
        # A turn lasts some milliseconds, also of what takes microseconds.
        repeats = max(1, int(0.01 * len(calls) / (time.process_time() - start)))
        for seed in range(1, arguments.seeds + 1):
            seconds: dict[str, list[float]] = {name: [] for name in calls}
            for _ in range(arguments.rounds):
                for name, call in calls.items():
                    start = time.process_time()
                    for _ in range(repeats):
                        call()
                    seconds[name].append((time.process_time() - start) / repeats)
            first = median(next(iter(seconds.values())))
            for name, found in seconds.items():
                times = {"milliseconds": 1000 * median(found), "ratio": median(found) / first}
                yield {"what": what, "size": size, "call": name, "seed": seed, **times}


# Chain ---------------------------------------------------------------------------------------------------------------
def longest_chain(last: Any) -> int:
    """The number of nodes on the longest path through an autograd graph that ends at this node."""
    found: dict[Any, int] = {}
    waiting = [(last, False)]
    while waiting:
        node, is_ready = waiting.pop()
        before = [each for each, _ in node.next_functions if each is not None]
        if is_ready:
            found[node] = 1 + max((found[each] for each in before), default=0)
        elif node not in found:
            waiting.append((node, True))
            waiting += [(each, False) for each in before if each not in found]
    return found[last]


def measure_chain(arguments: argparse.Namespace) -> Iterator[Row]:
    """A row for each model and length."""
    for name in models():
        for length in arguments.chain_lengths:
            model = model_called(name, length).train()
            ids = torch.randint(3, VOCABULARY, (1, length))
            # oneDNN's LSTM would be one node, whatever its length.
            with torch.backends.mkldnn.flags(enabled=False):
                loss = model(ids, torch.ones_like(ids), labels=ids).loss
            yield {"model": name, "n": length, "chain": longest_chain(loss.grad_fn)}


# Distance ------------------------------------------------------------------------------------------------------------
def networks(width: int) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Fresh networks of one layer, from embeddings (B, S, D) to states (B, S, D)."""
    one: dict[str, Any] = {f"{side}_layers": 1 for side in ("encoder", "decoder")}
    config = VanillaTransformerConfig(d_model=width, vocab_size=VOCABULARY, dropout=0.0, **one)
    encoder = VanillaTransformerModel(config).encoder
    rnn, lstm, open_lstm = (
        kind(width, width, batch_first=True) for kind in (torch.nn.RNN, torch.nn.LSTM, torch.nn.LSTM)
    )
    gates = dict(open_lstm.named_parameters())["bias_ih_l0"]  # input, forget, cell, output
    with torch.no_grad():
        gates[width : 2 * width] += 1  # as is usual (Jozefowicz et al. 2015)
    return {
        "RNN": lambda states: rnn(states)[0],
        "LSTM": lambda states: lstm(states)[0],
        "LSTM, forget bias 1": lambda states: open_lstm(states)[0],
        "Transformer": lambda states: encoder(inputs_embeds=states).last_hidden_state,
    }


def measure_distance(arguments: argparse.Namespace) -> Iterator[Row]:
    """A row for each network, distance and seed."""
    for seed in range(1, arguments.seeds + 1):
        torch.manual_seed(seed)
        for name, network in networks(64).items():
            embeddings = torch.randn(32, max(arguments.distances) + 1, 64, requires_grad=True)
            last = network(embeddings)[:, -1]  # (B, D)
            (gradient,) = torch.autograd.grad((last * torch.randn_like(last)).sum(), embeddings)
            lengths = gradient.norm(dim=-1).mean(dim=0).flip(0)  # by distance
            for distance in arguments.distances:
                share = (lengths[distance] / lengths[1]).item()
                yield {"network": name, "distance": distance, "seed": seed, "gradient": share}


# Statistics ----------------------------------------------------------------------------------------------------------
def relative_distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """‖found - expected‖ / ‖expected‖."""
    return ((found - expected).norm() / expected.norm()).item()


class Watched:
    """The norms of a model, of which each pass records how far its statistics are from the running averages."""

    def __init__(self, model: torch.nn.Module):
        self.norms = [module for module in model.modules() if isinstance(module, TokenBatchNorm)]
        self.means: list[float] = []
        self.variances: list[float] = []
        for norm in self.norms:
            norm.momentum = 0.0  # the averages stay those of training
            norm.statistics = partial(self.watch, norm, norm.statistics)  # type: ignore[method-assign]

    def forget(self) -> None:
        """Begin anew."""
        self.means, self.variances = [], []

    def watch(self, norm: Any, statistics: Any, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, variance = statistics(states)
        deviation = norm.running_variance.sqrt()
        self.means.append(((mean - norm.running_mean) / deviation).square().mean().sqrt().item())
        self.variances.append(relative_distance(variance, norm.running_variance))
        return mean, variance


def measure_statistics(arguments: argparse.Namespace) -> Iterator[Row]:
    """A row for each seed and size of a batch, and one with the running averages, of a freshly trained model."""
    for seed in range(1, arguments.seeds + 1):
        model, _ = train({**variants()["batch_norm"], "label_smoothing": 0.0}, seed, arguments)
        yield {"seed": seed, "batch": None, "loss": loss_of(model, SENTENCES, arguments.digits)}
        watched = Watched(model.train())  # there is no dropout
        for size in arguments.batches:
            loss = loss_of(model, size, arguments.digits)
            means, variances = (sum(each) / len(each) for each in (watched.means, watched.variances))
            yield {"seed": seed, "batch": size, "loss": loss, "mean": means, "variance": variances}
            watched.forget()


@torch.no_grad()
def loss_of(model: Any, size: int, digits: tuple[int, int]) -> float:
    """Nats a token of unseen sequences, in batches of `size`."""
    generator = torch.Generator().manual_seed(0)
    batches = [draw_batch(size, digits, generator) for _ in range(max(1, SENTENCES // size))]
    counts = [int((batch["labels"] != -100).sum()) for batch in batches]
    losses = [model(**batch).loss.item() for batch in batches]
    return sum(loss * count for loss, count in zip(losses, counts)) / sum(counts)


def variants() -> dict[str, dict[str, Any]]:
    """Name -> fields, of the variants file."""
    return read_variants(str(VARIANTS["claims"])).variants


# Training -----------------------------------------------------------------------------------------------------------
def measure_training(arguments: argparse.Namespace) -> Iterator[Row]:
    """A row for each variant of the file `claims` and each seed."""
    if not arguments.runs:
        raise ValueError("training: give --runs, the file in which finished runs are kept")
    known = variants()
    if unknown := set(arguments.only or ()) - set(known):
        raise ValueError(f"--only {' '.join(sorted(unknown))}: expected some of {', '.join(known)}")
    return measure_runs(known, arguments)


# ---------------------------------------------------------------------------------------------------------------------
CLAIMS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "scores": measure_scores,
    "cost": measure_cost,
    "speed": measure_speed,
    "chain": measure_chain,
    "distance": measure_distance,
    "statistics": measure_statistics,
    "training": measure_training,
}


def run(arguments: argparse.Namespace) -> None:
    """Measure, print a line for each row, and write the numbers."""
    names = ("d_k", "lengths", "widths", "chain_lengths", "speed_lengths", "speed_widths", "distances", "batches")
    for name in names:
        if min(arguments.seeds, *getattr(arguments, name)) < 1:
            raise ValueError(f"--seeds and --{name} are 1 or more")
    if arguments.pictures:
        Path(arguments.pictures).mkdir(parents=True, exist_ok=True)  # now, not after all measurements
    check_outputs([arguments.json])
    torch.set_num_threads(1)
    found: dict[str, list[Row]] = {}
    for name in dict.fromkeys(arguments.claims):
        found[name] = []
        for row in CLAIMS[name](arguments):
            found[name].append(row)
            values = (
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                for key, value in row.items()
                if not isinstance(value, list | dict)  # curves and settings, which are in the files
            )
            print(f"{name}: {', '.join(values)}", flush=True)
    if "training" in found:
        print(table_of_training(found["training"]))
    if arguments.pictures:
        write_pictures(found, arguments.pictures)
    write_json(arguments.json, found)
