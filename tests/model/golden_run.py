"""
What models computed before their code was rewritten, as digests: `golden_run.json` beside this file.

`measure(row)` computes them; run this file to record them anew, and say in the commit what changed and why that is
right. Bits depend on the CPU and on torch's version, so they are compared where these compute those of the record;
everywhere else sums of the values with random weights are, which no change of a value leaves as they are.
"""

import hashlib
import json
from pathlib import Path

import torch
from cpu_bits import computed_bits
from host_search import host

import vanilla_transformer_hf


RECORD = Path(__file__).with_suffix(".json")
POST, PRE = ({f"{stack}_norm_position": side for stack in ("encoder", "decoder")} for side in ("post", "pre"))
TINY = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "embedding_sharing": "none",
    "output_bias": True,
}
FRAMES = {"front_end": "speech", "num_mel_bins": 8}
IMAGE = {"front_end": "image", "image_height": 8, "image_width": 32, "patch_height": 8, "patch_width": 4}
IMAGE |= {"num_channels": 1, "decoder_position_encoding": "sinusoidal"}
STACK = {"is_encoder_decoder": False}
# What test_variants.py does not have -> the class, and fields.
MORE = {
    "plain": ("ForConditionalGeneration", {}),
    "tied": ("ForConditionalGeneration", {"embedding_sharing": "all", "output_bias": False}),
    "tied_output": ("ForConditionalGeneration", {"embedding_sharing": "decoder"}),
    "widths": ("ForConditionalGeneration", {"encoder_d_model": 48, "source_vocab_size": 90, "d_k": 6, "d_v": 10}),
    "learned": ("ForConditionalGeneration", {"position_encoding": "learned", "layernorm_embedding": True}),
    "halves": ("ForConditionalGeneration", {"position_encoding": "sinusoidal_halves", "scale_embedding": False}),
    "one_projection": ("ForConditionalGeneration", {"projection_sharing": "query_key_value"}),
    "one_feed_forward": ("ForConditionalGeneration", {"feed_forward_sharing": "all"}),
    "encoder_feed_forward": ("ForConditionalGeneration", {"feed_forward_sharing": "encoder_only"}),
    "one_layer": ("ForConditionalGeneration", {"encoder_layer_sets": 1, "decoder_layer_sets": 1}),
    "one_attention": ("ForConditionalGeneration", {"decoder_attention_sharing": True}),
    "batch_norm": ("ForConditionalGeneration", {"norm_type": "batch_norm"}),
    "speech": ("ForSpeechSeq2Seq", {**FRAMES, "embedding_sharing": "decoder"}),
    "image": ("ForImageTextToText", {**IMAGE, "position_encoding": "sinusoidal_grid"}),
    "causal": ("ForCausalLM", {**STACK, "is_decoder": True, "embedding_sharing": "all", "output_bias": False}),
    "masked": ("ForMaskedLM", {**STACK, "embedding_sharing": "all"}),
}


def rows():
    """`name` and `name-pre` -> the class and the fields of a model."""
    from test_variants import VARIANTS

    # With both places of the norms, "paper" is "plain", and "pooling_post" is "pooling".
    names = [name for name in VARIANTS if name not in ("paper", "pooling_post")]
    each = {name: ("ForConditionalGeneration", VARIANTS[name]) for name in names} | MORE
    return {
        f"{name}{end}": (f"VanillaTransformer{kind}", {**TINY, **fields, **norms})
        for name, (kind, fields) in each.items()
        for end, norms in (("", POST), ("-pre", PRE))
    }


def model_of(row):
    """The model of a row, with biases and norms other than zero and one, whose sentences end at different lengths."""
    torch.manual_seed(0)
    kind, fields = rows()[row]
    model = getattr(vanilla_transformer_hf, kind)(vanilla_transformer_hf.VanillaTransformerConfig(**fields)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1)
        head = getattr(model, "lm_head", None)
        if head is not None:
            head.weight.mul_(3)
            if head.bias is not None:
                head.bias[1] += 4
    return model


def batch_of(model):
    """Three sentences of 7, 4 and 5 tokens, padded on the right, and on the left, and decoder inputs."""
    generator = torch.Generator().manual_seed(2)
    source = torch.randint(3, 90, (3, 7), generator=generator)
    target = torch.randint(3, 90, (3, 6), generator=generator)
    mask, target_mask = torch.ones_like(source), torch.ones_like(target)
    target[:, 0] = 0
    source[1, 4:], mask[1, 4:] = 0, 0
    target[1, 3:], target_mask[1, 3:] = 0, 0
    batch = {"attention_mask": mask, "decoder_input_ids": target, "decoder_attention_mask": target_mask}
    config = model.config
    if config.front_end == "image":
        del batch["attention_mask"]
        return {**batch, "pixel_values": torch.randn(3, 1, 8, 32, generator=generator)}
    if config.front_end == "speech":
        features = torch.randn(3, 28, 8, generator=generator)
        return {**batch, "attention_mask": mask.repeat_interleave(4, dim=1), "input_features": features}
    if not config.is_encoder_decoder:
        return {"input_ids": source, "attention_mask": mask}
    mask[2, :2], source[2, :2] = 0, 0
    if config.type_vocab_size:
        batch["token_type_ids"] = (torch.arange(7) > 2).long().expand(3, -1)
    return {**batch, "input_ids": source}


def digest(*tensors):
    """Of the bits of tensors, with their types and shapes."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        found.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def values(*tensors):
    """The bits, the size and two sums of the values with random weights."""
    generator, flat = torch.Generator().manual_seed(3), torch.cat([tensor.detach().flatten() for tensor in tensors])
    sums = [float(flat.double() @ torch.randn(len(flat), generator=generator, dtype=torch.double)) for _ in range(2)]
    return {"bits": digest(*tensors), "norm": float(flat.double().norm()), "sums": sums}


def ids(found):
    """Token ids of sequences, as text."""
    return "; ".join(" ".join(map(str, each)) for each in found.tolist())


SEARCHES = {"greedy": {}, "beams": {"num_beams": 3}}


def logits_of(model, batch):
    """The logits that count."""
    logits = model(**batch).logits
    mask = batch["decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask"]
    return logits[mask.bool()]


def measure(row):
    """All that is recorded of a row; "bits", and what begins with "int8", on this processor."""
    model = model_of(row)
    batch = batch_of(model)
    state = model.state_dict()
    names = "\n".join(f"{name} {tuple(tensor.shape)}" for name, tensor in sorted(state.items()))
    found = {"names": hashlib.sha256(names.encode()).hexdigest()[:16]}
    for attention in ("sdpa", "eager"):
        model.set_attn_implementation(attention)
        with torch.no_grad():
            found[f"logits, {attention}"] = values(logits_of(model, batch))
    model.set_attn_implementation("sdpa")
    if hasattr(model, "generate"):
        inputs = {name: each for name, each in batch.items() if "decoder" not in name}
        if not model.config.is_encoder_decoder:
            inputs = {name: each.flip(1) for name, each in inputs.items()}  # padding on the left
        twin = host(model)
        for name, options in SEARCHES.items():
            options = {**options, "max_new_tokens": 6}
            found[name] = ids(model.generate(**inputs, **options))
            found[f"{name}, transformers'"] = ids(twin.generate(**inputs, **options))
            if model.get_decoder().layers[0].self_attn.has_step:  # otherwise it is refused
                found[f"int8 {name}"] = ids(model.generate(**inputs, **options, quantization="int8"))
    shape = batch.get("decoder_input_ids", batch.get("input_ids")).shape
    labels = torch.randint(3, 90, shape, generator=torch.Generator().manual_seed(4))
    labels[1, 3:] = -100
    batch = {name: each for name, each in batch.items() if "decoder" not in name}
    model.train()
    for name, options in (("whole", {}), ("in parts", {"return_logits": False})):
        model.zero_grad()
        torch.manual_seed(5)
        loss = model(**batch, labels=labels, **options).loss
        loss.backward()
        found[f"loss, {name}"] = values(loss[None])
        gradients = [each.grad.to_dense() for _, each in sorted(model.named_parameters()) if each.grad is not None]
        found[f"gradients, {name}"] = values(*gradients)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    record = {"computed_bits": computed_bits(), "rows": {row: measure(row) for row in rows()}}
    lines = [f"{json.dumps(row)}: {json.dumps(each)}" for row, each in record["rows"].items()]
    RECORD.write_text(
        f'{{"computed_bits": {json.dumps(record["computed_bits"])}, "rows": {{\n' + ",\n".join(lines) + "\n}}\n"
    )
