"""
What only a GPU can show: its attention kernels, `torch.compile`, half precision and int8 there, training and its
continuation. Skipped where there is none. `test_other_device.py` compares everything else with the CPU.
"""

import copy
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from vanilla_transformer_hf import Translator, VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.training.run import run_job


pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

CAPTIONS = [
    "A brown dog is running through the snow.",
    "A man in a red shirt is riding a bicycle down the street.",
    "Three young men are playing soccer on a green field.",
    "Two women are sitting on a bench and talking.",
]
SHIPPED = Path(__file__).parents[1] / "model_cards" / "multi30k_raw_en_de"


@pytest.fixture
def wide():
    """`wide(implementation, **fields)`: a model whose heads have 32 dimensions, which all kernels can take."""

    def build(implementation="sdpa", **fields):
        torch.manual_seed(0)
        config = VanillaTransformerConfig(
            vocab_size=300, d_model=64, encoder_ffn_dim=128, decoder_ffn_dim=128, encoder_layers=2, decoder_layers=2,
            encoder_attention_heads=2, decoder_attention_heads=2, **fields
        )  # fmt: skip
        return VanillaTransformerForConditionalGeneration._from_config(config, attn_implementation=implementation)

    return build


@pytest.fixture
def batch():
    """Three sentences of up to 200 tokens with their translations, on the GPU."""
    ids, labels = torch.randint(3, 300, (2, 3, 200), device="cuda")
    mask = torch.ones_like(ids)
    mask[1, 150:] = 0
    mask[2, 20:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": labels.masked_fill(mask == 0, -100)}


def loss_and_gradient(model, batch):
    loss = model.cuda().eval()(**batch).loss
    loss.backward()
    return loss.detach(), model.get_decoder().layers[0].self_attn.q_proj.weight.grad


def check_like_eager(model, eager, batch, rtol):
    eager.load_state_dict(model.state_dict())
    (loss, gradient), (expected, of_eager) = (loss_and_gradient(each, batch) for each in (model, eager))
    torch.testing.assert_close(loss, expected, rtol=rtol, atol=0)
    assert (gradient - of_eager).norm() <= 10 * rtol * of_eager.norm()


@pytest.mark.parametrize("backend", [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH])
def test_the_kernels_of_sdpa(backend, wide, batch):
    """Of masked attention; the flash kernel takes no mask."""
    dtype = torch.bfloat16 if backend == SDPBackend.CUDNN_ATTENTION else torch.float32
    with sdpa_kernel(backend):
        check_like_eager(wide().to(dtype), wide("eager").to(dtype), batch, 2e-2 if dtype == torch.bfloat16 else 1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_flash_kernel(dtype, wide, batch):
    """Without padding nothing is masked but the future, which the kernel knows."""
    batch = {"input_ids": batch["input_ids"], "labels": batch["input_ids"]}
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        check_like_eager(wide().to(dtype), wide("eager").to(dtype), batch, 2e-2)


FLEX = {
    "full": {},
    "window": {"encoder_attention_type": "window", "decoder_attention_type": "window", "attention_window": 40},
    "blocks": {"encoder_attention_type": "blocks", "attention_block": 32},
}


@pytest.mark.parametrize("fields", FLEX.values(), ids=FLEX)
def test_flex_attention(fields, wide, batch):
    """Its kernels multiply in TF32, whatever torch is told for its own."""
    check_like_eager(wide("flex_attention", **fields), wide("eager", **fields), batch, 1e-3)


@pytest.mark.parametrize("implementation", ["sdpa", "flex_attention"])
def test_compiled(implementation, wide, batch):
    model = wide(implementation)
    expected = loss_and_gradient(copy.deepcopy(model), batch)
    model.cuda().eval().compile(fullgraph=implementation == "sdpa")
    for found, wanted in zip(loss_and_gradient(model, batch), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-6)


def test_generation_with_a_compiled_static_cache(wide, batch):
    model = wide().cuda().eval()
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    found = model.generate(**source, max_new_tokens=8, cache_implementation="static")
    assert torch.equal(found, model.generate(**source, max_new_tokens=8))


@pytest.mark.parametrize("num_beams", [1, 5])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_shipped_model_translates_as_on_the_cpu(dtype, num_beams):
    here, there = (Translator.from_pretrained(SHIPPED, device=device, dtype=dtype) for device in ("cpu", "cuda"))
    assert there.model.device.type == "cuda" and there.model.dtype == getattr(torch, dtype)
    found, expected = (each.translate(CAPTIONS, num_beams=num_beams) for each in (there, here))
    # Half precision rounds differently: at most one sentence may have another word.
    assert sum(one != other for one, other in zip(found, expected, strict=True)) <= (dtype != "float32")


def test_texts_in_any_order_and_batch_are_the_same():
    translator = Translator.from_pretrained(SHIPPED, device="cuda")
    together = translator.translate(CAPTIONS * 5, num_beams=4)
    assert together == [translator.translate(text, num_beams=4) for text in CAPTIONS] * 5


@pytest.mark.parametrize("precision", [{}, {"fp16": True}, {"bf16": True}])
def test_training_learns_and_goes_on(precision, prepare):
    """In full and mixed precision, with evaluations; a run of two parts ends where a run of one does."""
    settings = {"use_cpu": False, "max_steps": 12, "save_steps": 6, "eval_steps": 6, "logging_steps": 1, **precision}
    settings |= {"eval_strategy": "steps", "save_strategy": "steps"}
    job = prepare(**settings)
    assert job.trainer.args.device.type == "cuda"
    run_job(job)
    losses = [entry["loss"] for entry in job.trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    weights = job.trainer.model.state_dict()
    first = prepare(**settings, output_dir=f"{prepare.out}-parts")
    first.trainer.args.max_steps = 6
    run_job(first)
    second = prepare(**settings, output_dir=f"{prepare.out}-parts")
    run_job(second)
    assert second.trainer.state.global_step == 12
    for name, tensor in second.trainer.model.state_dict().items():
        torch.testing.assert_close(tensor, weights[name], rtol=1e-3, atol=1e-4, msg=name)
