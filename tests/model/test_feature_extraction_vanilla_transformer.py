"""Recordings to frames: shapes, padding, and one line for each recording that cannot be read."""

import numpy as np
import pytest
import torch

from vanilla_transformer_hf import VanillaTransformerFeatureExtractor


RATE = 8000


@pytest.fixture
def extractor():
    return VanillaTransformerFeatureExtractor(feature_size=20, sampling_rate=RATE)


def tone(seconds, hertz=440):
    return np.sin(2 * np.pi * hertz * np.arange(int(seconds * RATE)) / RATE) + 0.01 * np.cos(
        np.arange(int(seconds * RATE)) ** 2
    )


def test_a_batch_is_padded_on_the_right(extractor):
    batch = extractor([tone(1.0), tone(0.5, 900)], sampling_rate=RATE)
    alone = extractor(tone(0.5, 900))["input_features"]
    assert batch["input_features"].shape == (2, 98, 20) and batch["input_features"].dtype == torch.float32
    assert batch["attention_mask"].sum(dim=1).tolist() == [98, 48]
    torch.testing.assert_close(batch["input_features"][1, :48], alone[0])
    assert not batch["input_features"][1, 48:].any()
    torch.testing.assert_close(alone[0].mean(dim=0), torch.zeros(20), atol=1e-3, rtol=0)


def test_level_and_type_of_samples_have_no_effect(extractor):
    plain = extractor(tone(0.3))["input_features"]
    torch.testing.assert_close(extractor(0.1 * tone(0.3))["input_features"], plain, atol=1e-3, rtol=1e-3)
    whole = extractor((tone(0.3) * 30000).astype(np.int16))["input_features"]
    torch.testing.assert_close(whole, plain, atol=0.2, rtol=0)
    assert extractor(np.zeros(10)).input_features.isfinite().all(), "silence shorter than a window"
    assert extractor(list(tone(0.3)))["input_features"].shape == plain.shape


@pytest.mark.parametrize(
    ("recording", "rate", "message"),
    [
        (tone(0.1), 16000, "sampling_rate=16000: expected 8000 samples per second; resample the recording first"),
        (np.zeros((2, 800)), RATE, r"recording 0: expected one channel of shape \(samples\), got \(2, 800\)"),
        ([tone(0.1), np.zeros(0)], RATE, "recording 1: it is empty; expected at least one sample"),
        (np.zeros(0), RATE, "recording 0: it is empty"),
        ([], RATE, "no recordings: expected at least one"),
        (np.array([0.0, np.nan]), RATE, "recording 0: it has samples that are NaN or infinite"),
        (
            [100, -200, 300],
            RATE,
            "samples of type int64: expected floats from -1 to 1, or integers of 8, 16 or 32 bits",
        ),
    ],
)
def test_recordings_that_cannot_be_read_are_named(recording, rate, message, extractor):
    with pytest.raises(ValueError, match=message) as error:
        extractor(recording, sampling_rate=rate)
    assert "\n" not in str(error.value)


def test_windows_have_samples():
    with pytest.raises(ValueError, match="are 0 and 80 samples"):
        VanillaTransformerFeatureExtractor(sampling_rate=RATE, window_ms=0.01)
