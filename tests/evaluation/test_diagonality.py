"""How diagonal attention is: the numbers of known weights, and of a model before and after it has learned to hear."""

import math

import pytest
import torch

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForSpeechSeq2Seq
from vanilla_transformer_hf.evaluation.diagonality import diagonality


def test_known_weights():
    steps, positions = 4, 12
    straight = torch.eye(steps).repeat_interleave(3, dim=1) / 3
    found = diagonality(torch.stack((straight, straight.flip(0), torch.full((steps, positions), 1 / positions))))
    assert found.order.tolist() == [1, -1, 0]
    expected = sum(  # the loss as the paper writes it, with the middles of steps and positions
        1 - math.exp(-(((t + 0.5) / steps - (s + 0.5) / positions) ** 2) / (2 * 0.2**2))
        for t in range(steps)
        for s in range(positions)
    )
    assert found.off_diagonal[2] == pytest.approx(expected / (steps * positions), abs=1e-6)
    assert found.off_diagonal[0] < 0.1 < 0.5 < found.off_diagonal[2] < found.off_diagonal[1]
    assert diagonality(torch.ones(1, 3) / 3).order.isnan()
    swapped = torch.eye(4)[[1, 0, 2, 3]]
    assert diagonality(swapped).order == pytest.approx(4 / 6)  # one of six pairs stands the wrong way round
    with pytest.raises(ValueError, match=r"expected \(…, steps, positions\), each at least 1, got \(2, 0, 3\)"):
        diagonality(torch.ones(2, 0, 3))


def tones(count, generator):
    """Three to six tones in a row, of five: frames (B, F, 5), their mask (B, F), labels (B, 7)."""
    frames = 0.1 * torch.randn(count, 56, 5, generator=generator)
    labels, mask = torch.full((count, 7), -100), torch.zeros(count, 56, dtype=torch.long)
    for row in range(count):
        heard = torch.randint(5, (int(torch.randint(3, 7, (1,), generator=generator)),), generator=generator)
        at = int(torch.randint(8, (1,), generator=generator))  # silence before them
        for tone in heard.tolist():
            frames[row, at : at + 6, tone] += 1
            at += 8
        mask[row, :at] = 1
        labels[row, : len(heard)], labels[row, len(heard)] = heard + 3, 1
    return frames * mask[..., None], mask, labels


@torch.no_grad()
def mean_diagonality(model, frames, mask, labels):
    """Order and share off the diagonal, of the mean of the heads, over all recordings."""
    found = []
    for each, used, wanted in zip(frames, mask, labels):
        ids = wanted[wanted >= 0]
        read = torch.cat((torch.tensor([model.config.decoder_start_token_id]), ids[:-1]))[None]
        outputs = model(each[None, : used.sum()], decoder_input_ids=read, output_attentions=True)
        one = diagonality(outputs.cross_attentions[-1][0].mean(dim=0)[: len(ids) - 1])
        found.append(torch.stack((one.order, one.off_diagonal)))
    return torch.stack(found).mean(dim=0).tolist()


def test_a_model_that_has_learned_to_hear_reads_along_the_diagonal():
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    layer = {"layers": 1, "attention_heads": 2, "ffn_dim": 64, "norm_position": "pre"}
    sizes = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in layer.items()}
    config = VanillaTransformerConfig(
        front_end="speech", num_mel_bins=5, conv_strides=[2], d_model=32, vocab_size=8, dropout=0.0, **sizes
    )
    config._attn_implementation = "eager"
    model = VanillaTransformerForSpeechSeq2Seq(config).eval()
    heard = tones(20, generator)
    order, off_diagonal = mean_diagonality(model, *heard)
    assert abs(order) < 0.5 and off_diagonal > 0.5
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for _ in range(140):
        frames, mask, labels = tones(16, generator)
        loss = model(frames, attention_mask=mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    order, off_diagonal = mean_diagonality(model, *heard)
    assert order > 0.9 and off_diagonal < 0.25
