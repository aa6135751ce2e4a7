"""
Train JoeyNMT by its own loop, in an environment of its own, and translate by its best checkpoint:

    python script_joeynmt.py SETTINGS.json

JoeyNMT saves a checkpoint only where a validation is among the best; this also saves each last one, so that a run that
was stopped continues.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import sentencepiece
import torch
from joeynmt import training
from joeynmt.config import load_config
from joeynmt.helpers_for_ddp import get_logger
from joeynmt.prediction import predict, prepare
from torch.optim.lr_scheduler import ReduceLROnPlateau


given = json.loads(Path(sys.argv[1]).read_text())
folder = Path(given["folder"])
model_dir, pieces, last = folder / "model", folder / "pieces", folder / "last.ckpt"


def write_pieces() -> None:
    """A joint SentencePiece model of byte pairs, and its vocabulary as JoeyNMT reads it."""
    sentencepiece.SentencePieceTrainer.train(
        input=",".join(given["text"]["train"].values()),
        model_prefix=str(pieces),
        vocab_size=given["vocab_size"],
        model_type="bpe",
        character_coverage=1.0,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=f"{pieces}.model")
    names = [processor.id_to_piece(i) for i in range(len(processor))]
    names = [name for name in names if name not in ("<unk>", "<s>", "</s>")]
    Path(f"{pieces}.vocab.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")


class Saving(training.TrainManager):
    """A Trainer that also saves its state after each validation, whole or not at all."""

    def _validate(self, valid_data) -> None:
        super()._validate(valid_data)
        state = {
            "model_state": self.model.state_dict(),
            "optimizer_state": self.optimizer.state_dict(),
            "scheduler_state": self.scheduler.state_dict(),
            "train_iter_state": self.train_iter.batch_sampler.get_state(),
            "stats_state": self.stats.state_dict(),
        }
        torch.save(state, f"{last}.part")
        os.replace(f"{last}.part", last)


training.TrainManager = Saving
# torch has dropped an argument that JoeyNMT gives.
training.build_scheduler.__globals__["ReduceLROnPlateau"] = lambda verbose=False, **named: ReduceLROnPlateau(**named)
if not Path(f"{pieces}.vocab.txt").exists():
    write_pieces()
if not last.exists():
    shutil.rmtree(model_dir, ignore_errors=True)
model_dir.mkdir(parents=True, exist_ok=True)
# JSON is YAML.
settings = given["config"] | {"model_dir": str(model_dir), "random_seed": given["seed"]}
for side in ("src", "trg"):
    settings["data"][side] |= {"voc_file": f"{pieces}.vocab.txt"}
    settings["data"][side]["tokenizer_cfg"] = {"model_file": f"{pieces}.model", "model_type": "bpe"}
if last.exists():
    settings["training"]["load_model"] = str(last)
(model_dir / "config.yaml").write_text(json.dumps(settings, indent=1))
get_logger("", log_file=str(model_dir / "train.log"))
if not (folder / "trained").exists():
    training.train(rank=0, world_size=None, cfg=load_config(model_dir / "config.yaml"), skip_test=True)
    (folder / "trained").touch()
arguments = training.parse_global_args(load_config(model_dir / "config.yaml"), rank=0, mode="test")
model, _, validation, test = prepare(arguments, rank=0, mode="test")
validation.reset_indices(random_subset=-1)  # all of it
for role, data in (("validation", validation), ("test", test)):
    lines = predict(model, data, arguments.device, n_gpu=0, args=arguments.test, autocast=arguments.autocast)[2]
    (folder / f"{role}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
steps = torch.load(last, map_location="cpu")["stats_state"]
print(json.dumps({"updates": steps["steps"], "epochs": steps["epochs"], "best": steps["best_ckpt_iter"]}))
