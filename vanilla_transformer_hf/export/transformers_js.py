"""
The folder that transformers.js opens, Hugging Face's library for browsers and Node.

It looks for `onnx/`: the encoder, and both steps of the decoder as one graph with a switch, so that weights are
downloaded once; beside each of them one with weights of 8 bits, which browsers take by default. Its architectures are
those of transformers: ours is called Marian, whose inputs and outputs are the same, and the graphs say the rest.
`generate()` there searches greedily, whatever `num_beams` is.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME

from ..common.files import write_text
from ..common.settings import read_json
from .steps import ENCODER, FIRST_STEP, NEXT_STEP


PLACE, MERGED, QUANTIZED, SWITCH = "onnx", "decoder_model_merged", "_quantized", "use_cache_branch"
# What its settings are called there.
SETTINGS: dict[str, dict[str, Any]] = {
    CONFIG_NAME: {"model_type": "marian", "architectures": ["MarianMTModel"]},
    "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizer"},
    GENERATION_CONFIG_NAME: {"num_beams": 1},
}


def arrange(folder: Path) -> list[str]:
    """Make of a folder of three graphs the one of transformers.js; return notes on its search."""
    place = folder / PLACE
    place.mkdir()
    for step in (ENCODER, FIRST_STEP, NEXT_STEP):
        # Unsigned, because products with signed weights overflow on CPUs without VNNI, and texts would differ.
        quantize_dynamic(folder / f"{step}.onnx", folder / f"{step}{QUANTIZED}.onnx", weight_type=QuantType.QUInt8)
    for kind in ("", QUANTIZED):
        (folder / f"{ENCODER}{kind}.onnx").rename(place / f"{ENCODER}{kind}.onnx")
        steps = [folder / f"{step}{kind}.onnx" for step in (FIRST_STEP, NEXT_STEP)]
        onnx.save(merge(*[onnx.load(path) for path in steps]), place / f"{MERGED}{kind}.onnx")
        for path in steps:
            path.unlink()
    for code in folder.glob("*.py"):  # of the model's classes, for Python
        code.unlink()
    notes = []
    for name, changed in SETTINGS.items():
        before = read_json(folder / name) if (folder / name).is_file() else {}
        if (beams := before.get("num_beams") or 1) > 1:
            notes.append(
                f"num_beams={beams} is left out: transformers.js searches greedily; see examples/browser.html"
            )
        if before:
            before.pop("auto_map", None)
            write_text(folder / name, json.dumps(before | changed, ensure_ascii=False, indent=2) + "\n")
    return notes


def merge(first: onnx.ModelProto, following: onnx.ModelProto) -> onnx.ModelProto:
    """Both steps of the decoder as one graph: the second where the switch is on. Equal weights are there once."""
    weights: dict[str, TensorProto] = {}
    inputs = {value.name: value for step in (following, first) for value in step.graph.input}
    outputs = {value.name: value for step in (first, following) for value in step.graph.output}
    branches = []
    for step in (first, following):
        graph, new = step.graph, {name: name for name in ["", *inputs]}
        for weight in graph.initializer:
            old, weight.name = weight.name, ""
            new[old] = weight.name = hashlib.sha256(weight.SerializeToString(deterministic=True)).hexdigest()
            weights[weight.name] = weight
        for node in graph.node:
            node.input[:] = [new[name] for name in node.input]
            for name in node.output:
                new.setdefault(name, f"inner/{name}")
            node.output[:] = [new[name] for name in node.output]
        nodes, given = list(graph.node), {value.name for value in graph.output}
        for name in outputs.keys() - given:  # keys and values of the source stay as they were
            nodes.append(helper.make_node("Identity", [name.replace("present", "past_key_values")], [f"inner/{name}"]))
        values = [helper.make_empty_tensor_value_info(f"inner/{name}") for name in outputs]
        branches.append(helper.make_graph(nodes, "step", [], values))
    switch = helper.make_tensor_value_info(SWITCH, TensorProto.BOOL, [1])
    node = helper.make_node("If", [SWITCH], list(outputs), else_branch=branches[0], then_branch=branches[1])
    graph = helper.make_graph(
        [node], "decoder", [*inputs.values(), switch], list(outputs.values()), list(weights.values())
    )
    imports = {entry.domain: entry for step in (first, following) for entry in step.opset_import}
    return helper.make_model(graph, opset_imports=list(imports.values()), ir_version=first.ir_version)
