"""
What tiny runs of every kind have trained before their code was rewritten, as digests: `golden_runs.json` beside this
file.

`run(row, folder)` trains one; run this file to record all anew, and say in the commit what changed and why that is
right. The bits of weights depend on the CPU and on torch's version, and are compared where these compute those of the
record; elsewhere the norm of the weights is. Tokenizers and helps are compared everywhere.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import yaml
from cpu_bits import computed_bits
from safetensors.torch import load_file


RECORD = Path(__file__).with_suffix(".json")
WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"}
SIZES = {
    **{"vocab_size": 290, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2},
    **{"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "num_beams": 2},
    **{"max_target_length": 8, "max_steps": 3, "warmup_steps": 2, "learning_rate": 0.01, "save_steps": 2},
    **{"use_cpu": True, "disable_tqdm": True, "logging_steps": 3, "seed": 5},
}
PAIRS = {"train_source": "train.en", "train_target": "train.de", "test_source": "test.en", "test_target": "test.de"}
PAIRS |= {"source_lang": "en", "target_lang": "de", "max_source_length": 16, "matmul": "default"}
TOKENS = {**PAIRS, "tokens_per_step": 120, "per_device_train_tokens": 60}
STACK = {"max_source_length": 16, "per_device_train_batch_size": 4, "train_source": "train.en"}
STACK |= dict.fromkeys(("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"))
STACK |= {"num_beams": None, "max_target_length": None}
ONE_CORPUS = dict.fromkeys(("train_source", "train_target", "test_source", "test_target"))
VALIDATED = {"validation_source": "test.en", "validation_target": "test.de", "eval_strategy": "steps", "eval_steps": 1}
# Name -> fields beside those of SIZES; None: not this one.
ROWS = {
    "tokens": TOKENS,
    "sentences": {**PAIRS, "per_device_train_batch_size": 8, "r_drop": 1.0},
    "streaming": {**TOKENS, "streaming": True, "shuffle_buffer_size": 20},
    "corpora": {
        **TOKENS,
        **ONE_CORPUS,
        "corpora": {
            "law": {"train_source": "train.en", "train_target": "train.de", "rate": 1},
            "talks": {"train_source": "test.en", "train_target": "test.de", "rate": 3},
        },
    },
    "best": {**TOKENS, **VALIDATED, "save_steps": 1, "load_best_model_at_end": True, "metric_for_best_model": "loss"},
    "averages": {**TOKENS, "average_last": 2, "save_steps": 1, "bpe_dropout": 0.2},
    "moving_average": {**TOKENS, **VALIDATED, "moving_average": 0.9, "label_smoothing": 0.1},
    "head_gates": {**TOKENS, "head_gates": 0.01, "separate_vocabularies": True, "embedding_sharing": "decoder"},
    "teacher": {**TOKENS, "teacher": "parent", "vocab_size": None, "distillation_weight": 0.7},
    "fine-tuned": {**TOKENS, "model_name_or_path": "parent"}
    | {name: None for name in SIZES if name.startswith(("vocab", "d_model", "encoder", "decoder"))},
    "denoising": {
        **TOKENS,
        **ONE_CORPUS,
        "task": "denoising",
        "train_text": ["train.en", "train.de"],
        "num_beams": None,
    }
    | {"source_lang": None, "target_lang": None},
    "recurrent": {**TOKENS, "model_type": "recurrent_seq2seq"}
    | {name: None for name in SIZES if name.endswith(("heads", "ffn_dim"))},
    "speech": {
        **{
            "task": "speech",
            "train_source": "tones",
            "front_end": "speech",
            "num_mel_bins": 8,
            "max_target_length": 6,
        },
        **{"per_device_train_batch_size": 4, "time_masks": 1},
    },
    "masked_lm": {**STACK, "task": "masked_lm"},
    "causal_lm": {**STACK, "task": "causal_lm"}
    | {name: SIZES[name] for name in ("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim")}
    | dict.fromkeys(("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim")),
    "classification": {**STACK, "task": "classification", "train_target": "train.class"},
}
HELPS = [
    *(["train", "--help"], ["train", "--help-all"], ["compare", "--help"], ["back-translate", "--help"]),
    *(["distill", "--help"], ["prune", "--help"], ["average", "--help"], ["clean", "--help"]),
    ["score-systems", "--help"],
]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def prepare(folder: Path) -> None:
    """Write the texts, recordings and the teacher that runs use."""
    from make_spoken_digits import write_wave

    rng = np.random.default_rng(0)
    for part, size in (("train", 40), ("test", 6)):
        lines = [rng.choice(list(WORDS), rng.integers(1, 7)) for _ in range(size)]
        folder.joinpath(f"{part}.en").write_text("".join(" ".join(line) + "\n" for line in lines))
        translated = (" ".join(WORDS[word] for word in line) + "\n" for line in lines)
        folder.joinpath(f"{part}.de").write_text("".join(translated), encoding="utf-8")
        folder.joinpath(f"{part}.class").write_text("".join(f"{len(line) % 2}\n" for line in lines))
    (folder / "tones").mkdir()
    rows = []
    for number in range(8):
        # It rises, as the mean of each feature is subtracted; in noise, no feature is the logarithm of a rounding.
        steps, noise = np.arange(800), 0.05 * rng.standard_normal(800)
        tone = 0.5 * np.sin(2 * np.pi * 200 * (1 + number) * (1 + steps / 800) * steps / 8000) + noise
        write_wave(folder / "tones" / f"{number}.wav", tone, 8000)
        rows.append(f"{number}.wav\t{list(WORDS)[number % 6]}\n")
    (folder / "tones" / "texts.tsv").write_text("".join(rows))
    train("parent", {**SIZES, **TOKENS, "max_steps": 1})


def train(name: str, fields: dict) -> str:
    """Train in the current folder, as the command does, into the folder `name`; what is said."""
    from vanilla_transformer_hf.commands.main import main

    recipe = {key: value for key, value in fields.items() if value is not None} | {"output_dir": name}
    Path(f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    with contextlib.redirect_stdout(io.StringIO()) as said:
        main(["train", f"{name}.yaml"])
    return said.getvalue()


def run(row: str) -> dict:
    """Digests of what a row's run writes in the current folder."""
    train(row, SIZES | ROWS[row])
    return digests(Path(row))


def continued(row: str) -> dict:
    """Digests of the same run after its checkpoint of step 2, as if it had been killed behind that."""
    shutil.rmtree(Path(row, "checkpoints", "checkpoint-3"))
    assert "checkpoint-2." in train(row, SIZES | ROWS[row]), "it continues"
    return digests(Path(row))


def digests(folder: Path) -> dict:
    weights = load_file(folder / "model.safetensors")
    norm = float(sum(tensor.double().square().sum() for tensor in weights.values())) ** 0.5
    bits = b"".join(name.encode() + weights[name].numpy().tobytes() for name in sorted(weights))
    tokenizer = (folder / "tokenizer.json").read_bytes()
    return {"weights": digest(bits), "norm": norm, "tokenizer": digest(tokenizer)}


def help_of(command: list[str]) -> str:
    """The digest of a help, at 100 columns, without the place of the package."""
    import vanilla_transformer_hf
    from vanilla_transformer_hf.commands.main import main

    said, columns = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main(command)
    finally:
        os.environ.pop("COLUMNS") if columns is None else os.environ.update(COLUMNS=columns)
    return digest(said.getvalue().replace(str(Path(vanilla_transformer_hf.__file__).parent), "PACKAGE").encode())


def record() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        os.environ["HF_DATASETS_CACHE"] = str(Path(place, "cache"))
        prepare(Path())
        runs = {row: run(row) for row in ROWS}
    helps = {" ".join(command): help_of(command) for command in HELPS}
    parts = {"computed_bits": computed_bits(), "runs": runs, "helps": helps}
    RECORD.write_text(json.dumps(parts, indent=1) + "\n")


if __name__ == "__main__":
    record()
    print(f"written: {RECORD}", file=sys.stderr)
