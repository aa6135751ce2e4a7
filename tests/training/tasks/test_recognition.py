"""Training on recordings and on images: what a run leaves, how it goes on, and commands."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from make_digit_strips import bend, split, write_digit_strips
from make_spoken_digits import change_speed, read_digits, write_spoken_digits, write_wave
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoProcessor

from vanilla_transformer_hf import VanillaTransformerForSpeechSeq2Seq
from vanilla_transformer_hf.commands.main import main
from vanilla_transformer_hf.commands.train import find_recipe
from vanilla_transformer_hf.common.checksums import verify_folder
from vanilla_transformer_hf.common.recordings import read_recording
from vanilla_transformer_hf.training.recipe import RecipeParser
from vanilla_transformer_hf.training.run import prepare_job
from vanilla_transformer_hf.training.tasks.recognition import Masks, RecognitionCollator, SourcesWithTexts
from vanilla_transformer_hf.training.trainer.translation import TranslationTrainer


SIZES = "--vocab_size 290 --d_model 16 --encoder_layers 1 --decoder_layers 1 --encoder_attention_heads 2"
SIZES += " --decoder_attention_heads 2 --encoder_ffn_dim 16 --decoder_ffn_dim 16 --max_steps 2 --save_steps 1"
SIZES += " --eval_steps 1 --per_device_train_batch_size 4 --use_cpu true --disable_tqdm true --num_beams 2"
SIZES += " --max_target_length 4"


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """Digits that are tones, by two speakers, joined into a corpus."""
    folder = tmp_path_factory.mktemp("tones")
    (folder / "single").mkdir()
    for speaker, octave in (("ann", 1), ("bob", 2)):
        for digit in range(2):
            for number in (0, 5, 8, 9):
                tone = np.sin(2 * np.pi * 300 * octave * (1 + digit) * np.arange(600) / 8000)
                write_wave(folder / "single" / f"{digit}_{speaker}_{number}.wav", tone, 8000)
    options = {"language": "de", "left_out": "bob", "train_size": 6, "test_size": 3, "seed": 0}
    write_spoken_digits(folder / "single", folder / "corpus", **options)
    return folder


def test_spoken_digits(spoken):
    parts = {path.name for path in (spoken / "corpus").iterdir()}
    assert parts == {"train", "validation", "test", "unseen"}
    lines = (spoken / "corpus" / "unseen" / "texts.tsv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3 and all("_bob.wav" in line for line in lines)
    words = [line.split("\t")[1].split() for line in lines]
    assert all(3 <= len(each) <= 8 and {*each} <= {"null", "eins"} for each in words)
    table = (spoken / "corpus" / "train" / "texts.tsv").read_text(encoding="utf-8")
    assert "bob" not in table
    assert all(1 <= len(line.split("\t")[1].split()) <= 8 for line in table.splitlines())
    with pytest.raises(ValueError, match="left_out=eve: must be one of ann, bob"):
        write_spoken_digits(
            spoken / "single", spoken / "x", language="en", left_out="eve", train_size=1, test_size=1, seed=0
        )
    (spoken / "nothing").mkdir()
    with pytest.raises(ValueError, match="has no recordings such as 7_jackson"):
        read_digits(spoken / "nothing")


@pytest.mark.parametrize(
    ("names", "left_out", "message"),
    [
        (["0_ann_0"], None, "has no recordings of ann with a number from 8 to 49, those of the folder train"),
        (["0_ann_0", "0_ann_5", "0_ann_8", "1_bob_0"], None, "no recordings of bob with a number from 8 to 49"),
        (["0_ann_0", "0_ann_5", "0_ann_8"], "ann", "left_out=ann: .* has no other speaker"),
        (["0_ann_0", "x_ann_1", "silent_1"], None, "no recordings of ann"),
        (["0_ann_0", "1_ann_silent_5"], None, "1_ann_silent_5.wav in .* is silent"),
    ],
)
def test_recordings_of_which_no_corpus_is_made(names, left_out, message, tmp_path):
    (tmp_path / "single").mkdir()
    for name in names:
        write_wave(tmp_path / "single" / f"{name}.wav", np.full(600, 0.0 if "silent" in name else 0.5), 8000)
    options = {"language": "en", "left_out": left_out, "train_size": 1, "test_size": 1, "seed": 0}
    with pytest.raises(ValueError, match=message):
        write_spoken_digits(tmp_path / "single", tmp_path / "corpus", **options)
    assert not (tmp_path / "corpus").exists()


def test_digits_in_a_file_that_is_no_archive(tmp_path):
    (tmp_path / "x.tar").write_text("no archive")
    with pytest.raises(ValueError, match=r"x\.tar is not a tar archive, nor a folder of recordings$"):
        read_digits(tmp_path / "x.tar")


def test_recordings_are_played_faster_and_slower():
    rng = np.random.default_rng(0)
    tone = np.sin(2 * np.pi * 400 * np.arange(4000) / 8000)
    lengths = [len(change_speed(tone, rng)) for _ in range(50)]
    assert 3500 <= min(lengths) < 3700 and 4300 < max(lengths) < 4600


@pytest.mark.slow
def test_a_run_on_speech(spoken, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    corpus = spoken / "corpus"
    texts = " ".join(f"--{role}_source {corpus / role}" for role in ("train", "validation", "test"))
    main(["train", "spoken_digits", *f"{texts} {SIZES} --output_dir model".split()])
    told = capsys.readouterr().out
    assert "test: wer " in told and "model card and scores written" in told
    model = VanillaTransformerForSpeechSeq2Seq.from_pretrained("model")
    assert model.config.front_end == "speech" and model.generation_config.num_beams == 2
    assert verify_folder(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: automatic-speech-recognition" in card
    assert all(f"| test | {name} | " in card for name in ("wer", "cer", "bleu", "chrf", "exact_match"))
    assert len((tmp_path / "model" / "predictions.test.tsv").read_text().splitlines()) == 4
    files = [str(corpus / "test" / f"0000{number}_ann.wav") for number in range(3)]
    main(["translate", "model", "--audio", *files, "--output", "texts", "--max_new_tokens", "4"])
    read = (tmp_path / "texts").read_text(encoding="utf-8").split("\n")[:-1]
    processor = AutoProcessor.from_pretrained("model")
    batch = processor([read_recording(file)[0] for file in files], sampling_rate=8000)
    found = processor.batch_decode(model.generate(**batch, max_new_tokens=4), skip_special_tokens=True)
    assert read == found
    main(["score", "model", str(corpus / "test")])
    told = capsys.readouterr().out
    assert " % of 3 files" in told and "BLEU 0.00 (nrefs:1|" in told


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    """Of images; one of speech is among the golden runs."""
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("sklearn")
    write_digit_strips(tmp_path / "strips", language="en", train_size=6, test_size=3, seed=0)
    texts = " ".join(f"--{role}_source strips/{role}" for role in ("train", "validation"))
    command = ["train", "digit_strips", *f"{texts} {SIZES} --max_steps 4 --unset test_source".split()]
    main([*command, "--output_dir", "whole"])
    step, done = TranslationTrainer.training_step, []

    def killed_at_the_third(self, *args, **kwargs):
        done.append(self.state.global_step)
        if len(done) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(TranslationTrainer, "training_step", killed_at_the_third)
        main([*command, "--output_dir", "killed"])
    assert done == [0, 1, 2] and not Path("killed/model.safetensors").exists()
    main([*command, "--output_dir", "killed"])
    weights, again = (load_file(f"{name}/model.safetensors") for name in ("whole", "killed"))
    assert weights.keys() == again.keys()
    for name, value in weights.items():
        assert torch.equal(value, again[name]), name


def write_tones(folder, count, rng):
    """Recordings of one to three tones, each high or low, and which."""
    folder.mkdir(parents=True)
    lines = []
    for number in range(count):
        words = rng.choice(["low", "high"], size=rng.integers(1, 4))
        time = np.arange(800) / 8000
        tones = [np.sin(2 * np.pi * (400 if word == "low" else 1200) * time) for word in words]
        samples = np.concatenate([np.append(np.zeros(rng.integers(200, 600)), tone) for tone in tones])
        write_wave(folder / f"{number}.wav", samples + rng.normal(scale=0.01, size=len(samples)), 8000)
        lines.append(f"{number}.wav\t{' '.join(words)}\n")
    (folder / "texts.tsv").write_text("".join(lines))


@pytest.mark.slow
def test_a_small_model_learns_tones(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    write_tones(tmp_path / "train", 300, rng)
    write_tones(tmp_path / "test", 50, rng)
    sizes = SIZES.replace("16", "32").replace("--max_steps 2 --save_steps 1 --eval_steps 1", "")
    options = "--train_source train --test_source test --output_dir model --max_steps 300"
    options += " --eval_strategy no --save_strategy no --unset validation_source --load_best_model_at_end false"
    options += " --learning_rate 0.005 --warmup_steps 50 --curriculum_steps 100 --dropout 0"
    options += " --time_masks 0 --frequency_masks 0"
    main(["train", "spoken_digits", *f"{sizes} {options} --per_device_train_batch_size 16".split()])
    told = capsys.readouterr().out
    error = float(told.split("test: wer ")[1].split(",")[0])
    assert error < 5
    main(["score", "model", "test"])
    assert f"WER {error:.2f} %" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_on_images(tmp_path, capsys, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    write_digit_strips(tmp_path / "data", language="en", train_size=6, test_size=3, seed=0)
    with Image.open(tmp_path / "data" / "train" / "00000.png") as image:
        assert image.height == 10 and 24 <= image.width <= 80 and image.mode == "L"
    texts = " ".join(f"--{role}_source data/{role}" for role in ("train", "validation", "test"))
    main(["train", "digit_strips", *f"{texts} {SIZES} --output_dir model".split()])
    assert "test: wer " in capsys.readouterr().out
    main(["translate", "model", "--image", "data/test/00000.png", "data/test/00001.png"])
    assert len(capsys.readouterr().out.split("\n")) >= 2
    main(["score", "model", "data/test"])
    assert " % of 3 files" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["translate", "model", "--audio", "data/test/00000.png"])
    assert "model is a model that reads pixel_values, not input_features" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "speech"}, "train_source is not given"),
        ({"task": "speech", "train_source": "x", "front_end": "image"}, "must be speech or speech_stacked"),
        ({"task": "speech", "train_source": "x", "front_end": "speech_whisper"}, "must be speech or speech_stacked"),
        (
            {"task": "image", "train_source": "x", "front_end": "image", "time_masks": 2},
            "time_masks=2 has no effect: it needs task=speech",
        ),
        (
            {"task": "image", "train_source": "x", "front_end": "image", "tokens_per_step": 99},
            "has no effect with task",
        ),
        (
            {"task": "speech", "train_source": "x", "front_end": "speech", "save_total_limit": 1, "average_last": 2},
            "save_total_limit=1: averaging 2 checkpoints needs 2 or more",
        ),
        *(
            ({"task": "speech", "train_source": "x", "front_end": "speech", **given}, f"{next(iter(given))}=.* has no")
            for given in (
                *({"encoder_from": "x"}, {"noise": "mass"}, {"train_text": "x"}, {"too_long": "truncate"}),
                *({"matmul": "onednn"}, {"distillation_weight": 0.7}, {"predict_with_generate": "false"}),
            )
        ),
        (
            {"task": "speech", "train_source": "x", "front_end": "speech", "metric_for_best_model": "were"}
            | {"eval_strategy": "epoch"},
            "metric_for_best_model=were: must be one of bleu, chrf, exact_match, loss, wer, cer",
        ),
        ({"task": "speech", "train_source": "nowhere", "front_end": "speech"}, "nowhere/texts.tsv does not exist"),
    ],
)
def test_what_a_run_refuses(fields, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = [text for name, value in fields.items() for text in (f"--{name}", str(value))]
    run, settings = RecipeParser(prog="train").parse([*options, "--output_dir", "out", "--use_cpu", "true"])
    with pytest.raises((ValueError, OSError), match=message):
        prepare_job(run, settings)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            "--max_position_embeddings 3",
            "train, line 1 of texts.tsv: .*wav has .* positions in the encoder; .* most 3:",
        ),
        ("--decoder_max_position_embeddings 3", "train, line 1 of texts.tsv: the text has .* tokens; .* most 3: cut"),
    ],
)
def test_what_the_positions_of_a_model_do_not_reach(fields, message, spoken, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    corpus = spoken / "corpus"
    texts = f"--train_source {corpus / 'train'} --unset validation_source test_source --eval_strategy no"
    texts += f" {SIZES}".replace("--eval_steps 1", "")
    options = f"{texts} --position_encoding learned {fields} --load_best_model_at_end false --output_dir out"
    run, settings = RecipeParser(prog="train").parse([find_recipe("spoken_digits"), *options.split()])
    with pytest.raises(ValueError, match=message):
        prepare_job(run, settings)


def test_the_length_of_an_image_is_that_of_its_text():
    """Images of a corpus have one size: a curriculum, or batches of like lengths, goes by what is to be written."""
    labels = [[5, 6, 2], [5, 2]]
    images = SourcesWithTexts([torch.zeros(1, 4, 8)] * 2, labels, ["a b", "a"])
    frames = SourcesWithTexts([torch.zeros(9, 12), torch.zeros(7, 12)], labels, ["a b", "a"])
    assert (images["length"], frames["length"]) == ([3, 2], [9, 7])


def test_every_part_of_the_strips_has_all_digits_about_as_often():
    rng = np.random.default_rng(0)
    classes = np.concatenate([np.arange(900) % 10, rng.integers(0, 10, 800)])  # as in the data, in part in order
    parts = split(classes)
    assert sorted(np.concatenate([*parts.values()])) == [*range(1700)]
    for role, share in (("train", 0.8), ("validation", 0.1), ("test", 0.1)):
        counts = np.bincount(classes[parts[role]], minlength=10)
        assert np.abs(counts - share * np.bincount(classes)).max() < 2, role


def test_a_bent_digit_stays_that_digit():
    image = np.zeros((8, 8))
    image[1:7, 3:5] = 1.0
    rng = np.random.default_rng(0)
    bent = [bend(image, rng) for _ in range(50)]
    assert all(each.shape == (8, 8) and each.min() >= 0 and each.max() <= 1 for each in bent)
    assert all(0.8 * image.sum() < each.sum() < 1.25 * image.sum() for each in bent)
    places = np.array([[np.average(np.arange(8), weights=each.sum(axis=axis)) for axis in (0, 1)] for each in bent])
    assert np.abs(places - 3.5).max() < 0.5 and places.std() > 0.05


def test_masks_depend_on_seed_and_rows_alone():
    frames = [torch.ones(length, 12) for length in (40, 25)]
    rows = SourcesWithTexts(frames, [[3, 1], [4, 5, 1]], ["a", "b c"], is_masked=True)
    assert len(rows) == 2 and rows["length"] == [40, 25] and rows["target"] == ["a", "b c"]
    collate = RecognitionCollator("input_features", Masks(2, 6, 2, 3), seed=1)
    batch = collate([rows[0], rows[1]])
    assert batch["labels"].tolist() == [[3, 1, -100], [4, 5, 1]] and batch["line"].tolist() == [0, 1]
    assert batch["attention_mask"].sum(dim=1).tolist() == [40, 25]
    torch.testing.assert_close(collate([rows[0], rows[1]]), batch)
    assert not torch.equal(collate([rows[1], rows[0]])["input_features"][1], batch["input_features"][0])
    zeros = batch["input_features"][0] == 0
    assert zeros.all(dim=1).sum() <= 12 and zeros.all(dim=0).sum() <= 6 and zeros.any()
    assert all(each.all() for each in frames), "the corpus itself stays as it is"
    plain = SourcesWithTexts(frames, [[3, 1], [4, 5, 1]], ["a", "b c"])
    assert collate([plain[0], plain[1]])["input_features"][0].all()
