"""Recordings in files: WAV of whole numbers by the standard library, all others by soundfile, if it is installed."""

import os
import wave
from io import BytesIO
from pathlib import Path

import numpy as np


MOST_SAMPLES = 2**26  # of all channels; 70 minutes of one at 16 kHz
BLOCK = 2**16  # samples that are read at a time: a header may state any number
# Bytes of a sample -> its type in a WAV file; numpy has none of three bytes.
SAMPLE_TYPES = {1: "u1", 2: "<i2", 3: "u1", 4: "<i4"}


def read_recording(path: str | os.PathLike[str], content: bytes | None = None) -> tuple[np.ndarray, int]:
    """The samples of a recording (N), from -1 to 1, of several channels their mean, and samples per second."""
    if Path(path).suffix.lower() in (".wav", ".wave"):
        try:
            size = Path(path).stat().st_size if content is None else len(content)
            samples, rate = _read_wave(os.fspath(path) if content is None else BytesIO(content), size)
        except (wave.Error, EOFError) as error:
            if not f"{error}".startswith("unknown format"):  # such as samples of 32 bits with a point
                raise ValueError(
                    f"{path} is not a WAV file of plain samples ({str(error) or 'it ends too soon'})"
                ) from error
            samples, rate = _read_others(path, content)
    else:
        samples, rate = _read_others(path, content)
    if samples.size == 0:
        raise ValueError(f"{path} is empty: expected at least one sample")
    if not np.isfinite(samples).all():
        raise ValueError(f"{path} has samples that are NaN or infinite")
    return samples.mean(axis=1), rate


def _read_wave(file_or_path: str | BytesIO, size: int) -> tuple[np.ndarray, int]:
    with wave.open(file_or_path, "rb") as file:
        width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
        if width not in SAMPLE_TYPES:
            raise wave.Error(f"{8 * width} bits a sample; expected 8, 16, 24 or 32")
        count, there = file.getnframes(), size // (width * channels)
        if min(count, there) * channels > MOST_SAMPLES:
            raise wave.Error(
                f"it has {min(count, there) * channels:,} samples; expected at most {MOST_SAMPLES:,}: cut it"
            )
        content = file.readframes(min(count, there))  # which takes memory for what the header states
    # Programs that write into a pipe do not know the length, and state one of 2 or 4 GiB.
    if len(content) < count * width * channels < 2**31 - 2**16:
        raise wave.Error(f"it ends after {len(content) // (width * channels):,} of {count:,} samples")
    content = content[: len(content) // (width * channels) * width * channels]
    values = np.frombuffer(content, SAMPLE_TYPES[width])
    if width == 3:  # as the upper three bytes of four
        values, width = np.pad(values.reshape(-1, 3), ((0, 0), (1, 0))).view("<i4"), 4
    values = values.reshape(-1, channels).astype(np.float64)
    return (values - 128) / 128 if width == 1 else values / 2 ** (8 * width - 1), rate


def _read_others(path: str | os.PathLike[str], content: bytes | None) -> tuple[np.ndarray, int]:
    try:
        import soundfile
    except ImportError as error:
        raise ValueError(
            f"{path}: without soundfile, only WAV files of whole numbers are read; "
            "pip install 'vanilla_transformer_hf[recognition]'"
        ) from error
    if content is None and not Path(path).is_file():
        raise FileNotFoundError(f"{path} does not exist")
    blocks: list[np.ndarray] = []
    try:
        with soundfile.SoundFile(os.fspath(path) if content is None else BytesIO(content)) as file:
            while len(block := file.read(max(BLOCK // file.channels, 1), always_2d=True)):
                blocks.append(block)
                if len(blocks) * blocks[0].size > MOST_SAMPLES + BLOCK:
                    raise ValueError(f"{path} has more than {MOST_SAMPLES:,} samples: cut it into parts")
            rate = file.samplerate
    except (soundfile.SoundFileError, TypeError, AssertionError) as error:  # such as of .raw, which states no rate
        raise ValueError(f"{path} is not a recording that soundfile reads ({error})") from error
    return np.concatenate(blocks) if blocks else np.empty((0, 1)), rate
