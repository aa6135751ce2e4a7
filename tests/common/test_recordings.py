"""Recordings in files: widths of samples, channels, and one line for each file that is not one."""

import tracemalloc
import wave

import numpy as np
import pytest
from make_spoken_digits import write_wave

from vanilla_transformer_hf.common.recordings import read_recording


def write(path, content, channels=1, width=2, rate=8000):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(content)


def test_samples_are_read_as_they_were_written(tmp_path):
    samples = np.sin(np.arange(50.0))
    write_wave(tmp_path / "a.wav", samples, 8000)
    found, rate = read_recording(tmp_path / "a.wav")
    assert rate == 8000
    np.testing.assert_allclose(found, samples, atol=1e-4)
    write(tmp_path / "b.WAV", bytes([0, 128, 255]), width=1)
    np.testing.assert_allclose(read_recording(tmp_path / "b.WAV")[0], [-1, 0, 127 / 128])
    write(tmp_path / "c.wav", np.array([2**31 - 1, 0, -(2**31)], "<i4").tobytes(), width=4)
    np.testing.assert_allclose(read_recording(tmp_path / "c.wav")[0], [1, 0, -1])
    three = [b"\xff\xff\x7f", bytes(3), b"\0\0\x80", b"\x01\0\0", b"\xff\xff\xff"]
    write(tmp_path / "e.wav", b"".join(three), width=3)
    np.testing.assert_array_equal(read_recording(tmp_path / "e.wav")[0] * 2**23, [2**23 - 1, 0, -(2**23), 1, -1])
    write(tmp_path / "d.wav", np.array([[1000, 3000], [0, -2000]], "<i2").tobytes(), channels=2)
    np.testing.assert_allclose(read_recording(tmp_path / "d.wav")[0] * 2**15, [2000, -1000])


def test_other_formats_are_read_by_soundfile(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    samples = np.sin(np.arange(500.0)) / 2
    soundfile.write(tmp_path / "a.flac", samples, 16000)
    found, rate = read_recording(tmp_path / "a.flac")
    assert rate == 16000
    np.testing.assert_allclose(found, samples, atol=1e-4)
    for subtype in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ALAW", "ULAW"):
        for form in ("WAV", "WAVEX"):
            soundfile.write(tmp_path / "c.wav", samples, 16000, subtype=subtype, format=form)
            found, _ = read_recording(tmp_path / "c.wav")
            np.testing.assert_allclose(found, soundfile.read(tmp_path / "c.wav")[0], atol=1e-6, err_msg=subtype)
    (tmp_path / "b.flac").write_bytes(b"no music")
    with pytest.raises(ValueError, match="flac is not a recording that soundfile reads"):
        read_recording(tmp_path / "b.flac")


def test_files_that_are_no_recordings_are_named(tmp_path):
    write(tmp_path / "empty.wav", b"")
    with pytest.raises(ValueError, match="is empty: expected at least one sample"):
        read_recording(tmp_path / "empty.wav")
    for content in (b"", b"RIFF", b"RIFF\x10\0\0\0WAVE", b"text"):
        (tmp_path / "x.wav").write_bytes(content)
        with pytest.raises(ValueError, match="is not a WAV file of plain samples"):
            read_recording(tmp_path / "x.wav")
    with pytest.raises(FileNotFoundError):
        read_recording(tmp_path / "nowhere.wav")


def test_memory_is_taken_for_what_a_file_holds_not_for_what_its_header_states(tmp_path, monkeypatch):
    soundfile = pytest.importorskip("soundfile")
    write(tmp_path / "huge.wav", bytes(200))
    whole = (tmp_path / "huge.wav").read_bytes()
    huge = tmp_path / "huge.flac"
    soundfile.write(huge, np.zeros(500), 16000)
    content = bytearray(huge.read_bytes())
    content[21] |= 0x0F  # the upper 4 of 36 bits of the number of samples
    content[22:26] = b"\xff" * 4
    huge.write_bytes(content)
    (tmp_path / "a.raw").write_bytes(bytes(200))
    tracemalloc.start()
    for size in (2**32 - 1, 2**31 - 1):
        (tmp_path / "huge.wav").write_bytes(whole[:40] + size.to_bytes(4, "little") + whole[44:])
        assert len(read_recording(tmp_path / "huge.wav")[0]) == 100
    for name in ("huge.flac", "a.raw"):
        try:
            assert len(read_recording(tmp_path / name)[0]) == 500
        except ValueError as error:
            assert name in str(error) and "\n" not in str(error)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()
    monkeypatch.setattr("vanilla_transformer_hf.common.recordings.MOST_SAMPLES", 50)
    monkeypatch.setattr("vanilla_transformer_hf.common.recordings.BLOCK", 10)
    soundfile.write(tmp_path / "long.flac", np.zeros(500), 16000)
    write(tmp_path / "long.wav", bytes(200))
    for name in ("long.flac", "long.wav"):
        with pytest.raises(ValueError, match=f"{name} .*50"):
            read_recording(tmp_path / name)


def test_a_recording_that_was_cut_off_is_refused_unless_its_length_was_never_known(tmp_path):
    write(tmp_path / "whole.wav", bytes(200))
    whole = (tmp_path / "whole.wav").read_bytes()
    for cut, left in ((1, 99), (100, 50)):
        (tmp_path / "cut.wav").write_bytes(whole[:-cut])
        with pytest.raises(ValueError, match=rf"cut.wav is not .* \(it ends after {left} of 100 samples\)"):
            read_recording(tmp_path / "cut.wav")
    # As programs that write into a pipe do.
    (tmp_path / "piped.wav").write_bytes(whole[:40] + b"\xff" * 4 + whole[44:])
    assert len(read_recording(tmp_path / "piped.wav")[0]) == 100
