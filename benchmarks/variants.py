"""
generate() of each variant against the paper's model of the same size

Random weights, a batch of 32 sentences of 32 tokens, and exactly 32 new tokens. The two models take turns in one
process. CPU time is measured instead of wall-clock time, because other programs disturb it less. With --causal,
the models are decoders without an encoder, and the sentences are their prompts.

    python -m benchmarks variants --preset tiny --beams 1 4
    python -m benchmarks variants --only t5_bias gated --rounds 9
    python -m benchmarks variants --causal --preset tiny
"""

import argparse
import time
from statistics import median
from typing import Any

import torch

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForCausalLM
from vanilla_transformer_hf.model.config.position_schemes import POSITION_SCHEMES
from vanilla_transformer_hf.model.config.sharing import PROJECTIONS
from vanilla_transformer_hf.model.layers.parts import NORMS

from .generation_models import random_model
from .results import check_outputs, write_json
from .training import SIZES


SENTENCES, TOKENS = 32, 32


def variants(sizes: dict[str, Any], causal: bool) -> dict[str, dict[str, Any]]:
    """Name of a variant -> the fields that differ from the paper's model; the first is the paper's model."""
    plain = VanillaTransformerConfig.from_preset(**sizes)
    widths = {f"{stack}_ffn_dim": getattr(plain, f"{stack}_ffn_dim") * 2 // 3 for stack in ("encoder", "decoder")}
    schemes = [name for name in POSITION_SCHEMES if name != "sinusoidal_grid"]  # sentences have no rows and columns
    # A decoder alone has no batch norm.
    norms = [name for name in NORMS.rows if name not in (plain.norm_type, "batch_norm" if causal else None)]
    return {
        **{name: {"position_encoding": name} for name in schemes},
        **{name: {"norm_type": name} for name in norms},
        "gated": {"feed_forward_type": "gated", "activation_function": "silu", **widths},
        "segments": {"type_vocab_size": 2},
        **{name: {"projection_sharing": name} for name in PROJECTIONS if name != plain.projection_sharing},
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", choices=SIZES, default="base", help="size of the models (default: base)")
    parser.add_argument("--only", nargs="+", metavar="VARIANT", help="measure only these variants (default: all)")
    parser.add_argument("--causal", action="store_true", help="measure decoders without an encoder")
    parser.add_argument("--beams", nargs="+", type=int, default=[1], help="beams of the searches (default: 1)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each model (default: 5)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    parser.add_argument("--json", metavar="FILE", help="write the numbers here too")


def model_of(fields: dict[str, Any], causal: bool) -> Any:
    """A model with random weights, whose searches end only at the limit."""
    if not causal:
        return random_model(VanillaTransformerConfig.from_preset(**fields))
    torch.manual_seed(0)
    config = VanillaTransformerConfig.from_preset(**fields, is_encoder_decoder=False, is_decoder=True)
    model = VanillaTransformerForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    return model


def seconds(model: Any, ids: torch.Tensor, beams: int) -> float:
    """CPU seconds of one call of generate()."""
    start = time.process_time()
    model.generate(ids, num_beams=beams, max_new_tokens=TOKENS)
    return time.process_time() - start


def run(arguments: argparse.Namespace) -> None:
    """Measure, print a line for each variant and search, and write the numbers."""
    preset, more = SIZES[arguments.preset]
    sizes = {"name": preset, **more}
    known = variants(sizes, arguments.causal)
    if unknown := set(arguments.only or ()) - set(known):
        raise ValueError(f"--only {' '.join(sorted(unknown))}: expected some of {', '.join(known)}")
    if min(arguments.rounds, arguments.threads, *arguments.beams) < 1:
        raise ValueError("--rounds, --threads and --beams are 1 or more")
    check_outputs([arguments.json])
    torch.set_num_threads(arguments.threads)
    paper = model_of(sizes, arguments.causal)
    ids = torch.randint(3, paper.config.vocab_size, (SENTENCES, TOKENS))
    rows = []
    print(f"{'variant':<28} beams  seconds  paper's  ratio")
    for name in arguments.only or known:
        model = model_of({**sizes, **known[name]}, arguments.causal)
        for beams in arguments.beams:
            pairs = []
            for turn in range(arguments.rounds + 1):  # the first packs the weights
                order = (model, paper) if turn % 2 else (paper, model)
                times = {id(one): seconds(one, ids, beams) for one in order}
                pairs.append((times[id(model)], times[id(paper)]))
            own, its = (median(column) for column in zip(*pairs[1:]))
            ratio = median(mine / other for mine, other in pairs[1:])
            rows.append({"variant": name, "beams": beams, "seconds": own, "paper": its, "ratio": ratio})
            print(f"{name:<28} {beams:>5}  {own:7.3f}  {its:7.3f}  {ratio:5.2f}", flush=True)
    write_json(arguments.json, rows)
