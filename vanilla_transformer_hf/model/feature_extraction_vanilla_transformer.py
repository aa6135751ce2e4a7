"""
Recordings to frames of speech: the logarithms of mel filters, as `front_end="speech"` reads them.

transformers copies this file beside a saved processor, as it copies every class of one file.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function
from transformers.feature_extraction_sequence_utils import SequenceFeatureExtractor
from transformers.feature_extraction_utils import BatchFeature


class VanillaTransformerFeatureExtractor(SequenceFeatureExtractor):
    """
    Mono recordings to `input_features` (B, frames, feature_size) and `attention_mask` (B, frames), by transformers'
    `audio_utils`. A frame is the logarithm of mel filters over a window; each filter's mean over the recording is
    subtracted and its deviation divided by, so that the level of a recording has no effect.

    Args:
        feature_size (`int`): Mel filters, the config's `num_mel_bins`.
        sampling_rate (`int`): Samples per second.
        window_ms, hop_ms (`float`): Milliseconds of a window, and from one to the next.
        padding_value (`float`): In frames behind the end of a recording.

    Example:

    ```python
    >>> import numpy as np
    >>> from vanilla_transformer_hf import VanillaTransformerFeatureExtractor
    >>> extractor = VanillaTransformerFeatureExtractor(feature_size=40, sampling_rate=8000)
    >>> tone = np.sin(440 * 2 * np.pi * np.arange(8000) / 8000)
    >>> extractor(tone, sampling_rate=8000)["input_features"].shape
    torch.Size([1, 98, 40])
    ```
    """

    model_input_names = ["input_features", "attention_mask"]

    def __init__(
        self,
        feature_size: int = 80,
        sampling_rate: int = 16000,
        window_ms: float = 25.0,
        hop_ms: float = 10.0,
        padding_value: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(feature_size, sampling_rate, padding_value, **{"return_attention_mask": True, **kwargs})
        self.window_ms, self.hop_ms = window_ms, hop_ms
        if self.window < 2 or self.hop < 1:
            raise ValueError(
                f"window_ms={window_ms} and hop_ms={hop_ms} are {self.window} and {self.hop} samples at "
                f"sampling_rate={sampling_rate}: expected at least 2 and 1"
            )

    @property
    def window(self) -> int:
        """Samples of a window."""
        return round(self.sampling_rate * self.window_ms / 1000)

    @property
    def hop(self) -> int:
        """Samples from the start of a window to the next."""
        return round(self.sampling_rate * self.hop_ms / 1000)

    def frames(self, samples: np.ndarray) -> np.ndarray:
        """Samples (N) to frames (F, feature_size); fewer samples than a window are filled up with silence."""
        fft_length = 2 ** (self.window - 1).bit_length()
        filters = mel_filter_bank(
            num_frequency_bins=fft_length // 2 + 1,
            num_mel_filters=self.feature_size,
            min_frequency=20.0,
            max_frequency=self.sampling_rate / 2,
            sampling_rate=self.sampling_rate,
            mel_scale="kaldi",
            triangularize_in_mel_space=True,
        )
        found = spectrogram(
            np.pad(samples, (0, max(0, self.window - len(samples)))),
            window_function(self.window, "povey", periodic=False),
            frame_length=self.window,
            hop_length=self.hop,
            fft_length=fft_length,
            power=2.0,
            center=False,
            preemphasis=0.97,
            mel_filters=filters,
            mel_floor=1e-10,
            log_mel="log",
            remove_dc_offset=True,
        ).T
        return ((found - found.mean(axis=0)) / (found.std(axis=0) + 1e-5)).astype(np.float32)

    def __call__(
        self,
        raw_speech: np.ndarray | Sequence[Any],
        sampling_rate: int | None = None,
        padding: bool | str = True,
        return_tensors: str | None = "pt",
        **kwargs: Any,
    ) -> BatchFeature:
        """
        One recording (N), or a list of them, to a batch.

        Args:
            raw_speech: Samples of one channel, floats from -1 to 1 or integers of 8, 16 or 32 bits.
            sampling_rate: Of the samples; if it is not given, it is taken to be the extractor's.
            padding, kwargs: As in transformers' `SequenceFeatureExtractor.pad`.
            return_tensors: "pt", "np", or None for lists.

        Raises:
            ValueError: The sampling rate is another one, or a recording is empty, or has several channels, or samples
                that are NaN, infinite or integers of 64 bits.
        """
        if sampling_rate not in (None, self.sampling_rate):
            raise ValueError(
                f"sampling_rate={sampling_rate}: expected {self.sampling_rate} samples per second; resample the "
                "recording first"
            )
        is_one = isinstance(raw_speech, np.ndarray) or (len(raw_speech) > 0 and np.isscalar(raw_speech[0]))
        recordings = [raw_speech] if is_one else raw_speech
        if len(recordings) == 0:
            raise ValueError("no recordings: expected at least one")
        features = [self.frames(samples_of(each, number)) for number, each in enumerate(recordings)]
        return self.pad(
            BatchFeature({"input_features": features}), padding=padding, return_tensors=return_tensors, **kwargs
        )


def samples_of(recording: Any, number: int) -> np.ndarray:
    """The samples (N) of a recording, from -1 to 1; a `ValueError` if they are not of one channel and finite."""
    samples = np.asarray(recording)
    if samples.ndim != 1:
        shape = ", ".join(map(str, samples.shape))
        raise ValueError(f"recording {number}: expected one channel of shape (samples), got ({shape}); mix them first")
    if samples.size == 0:
        raise ValueError(f"recording {number}: it is empty; expected at least one sample")
    if np.issubdtype(samples.dtype, np.integer):
        if samples.dtype.itemsize == 8:  # as of a list of numbers, which does not say what the loudest one is
            raise ValueError(
                f"recording {number}: samples of type {samples.dtype}: expected floats from -1 to 1, or integers of "
                "8, 16 or 32 bits; divide them by the largest value that they can have"
            )
        samples = samples / np.iinfo(samples.dtype).max
    if not np.isfinite(samples).all():
        raise ValueError(f"recording {number}: it has samples that are NaN or infinite")
    return samples.astype(np.float64)


# Saved with its code.
VanillaTransformerFeatureExtractor.register_for_auto_class("AutoFeatureExtractor")
