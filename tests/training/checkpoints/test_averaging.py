"""Averages of checkpoints and the moving average, against plain means and a plain recurrence."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForSeq2SeqLM, Trainer, TrainerCallback, TrainingArguments

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.common.checksums import verify_folder
from vanilla_transformer_hf.training.checkpoints.averaging import (
    AverageCheckpointsCallback,
    MovingAverageCallback,
    average_checkpoints,
    load_average,
    select_checkpoints,
)


@pytest.fixture
def checkpoints(tiny_model, tmp_path):
    """`checkpoints(count, scores=None, **save)`: folders of models with random weights, as the Trainer leaves them."""

    def make(count, scores=None, **save):
        tokenizer = VanillaTransformerTokenizer.train(["one two"], vocab_size=265, show_progress=False)
        folders = []
        for step in range(10, 10 * count + 10, 10):
            folder = tmp_path / "run" / "checkpoints" / f"checkpoint-{step}"
            model = tiny_model(vocab_size=len(tokenizer))
            model.generation_config.max_new_tokens = 7
            model.save_pretrained(folder, **save)
            tokenizer.save_pretrained(folder)
            torch.save({}, folder / "optimizer.pt")
            (folder / "README.md").write_text("scores of this checkpoint")
            log = [{"step": step, "loss": 1.0}]
            if scores:
                log.append({"step": step, "eval_bleu": scores[step], "eval_loss": 100 - scores[step]})
            (folder / "trainer_state.json").write_text(json.dumps({"log_history": log}))
            folders.append(folder)
        return folders

    return make


def mean_of(folders):
    models = [AutoModelForSeq2SeqLM.from_pretrained(folder).state_dict() for folder in folders]
    return {name: torch.stack([model[name].double() for model in models]).mean(0).float() for name in models[0]}


def assert_equal(weights, expected):
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("save", [{}, {"max_shard_size": "50KB"}])
def test_the_average_is_the_mean_and_opens(checkpoints, tmp_path, save):
    folders = checkpoints(3, **save)
    output = average_checkpoints(folders, tmp_path / "new" / "average")
    model = AutoModelForSeq2SeqLM.from_pretrained(output)
    assert_equal(model.state_dict(), mean_of(folders))
    assert model.lm_head.weight.data_ptr() == model.model.encoder.embed_tokens.weight.data_ptr()
    left_behind = {"optimizer.pt", "trainer_state.json"}
    names = {path.name for path in folders[0].iterdir()}
    assert len([name for name in names if name.endswith(".safetensors")]) > 1 or not save
    assert {path.name for path in output.iterdir()} == names - left_behind | {"card_facts.json", "SHA256SUMS"}
    card = (output / "README.md").read_text(encoding="utf-8")
    assert "average of 3 checkpoints: checkpoint-10, checkpoint-20, checkpoint-30." in card
    assert "scores of this checkpoint" not in card and "# average\n" in card
    for name in ("config.json", "generation_config.json", "tokenizer.json", "modeling_vanilla_transformer.py"):
        assert (output / name).read_bytes() == (folders[-1] / name).read_bytes()
    assert not verify_folder(output).wrong and not verify_folder(output).unknown
    stored = [path for path in output.iterdir() if path.suffix == ".safetensors"]
    assert sum(path.stat().st_size for path in stored) < 1.01 * model.num_parameters() * 4 + 60_000, "shared ones once"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["average"]


def test_half_precision_is_summed_exactly_and_whole_numbers_are_copied(checkpoints, tmp_path):
    folders = checkpoints(3)
    values = [torch.tensor([1.0, 3e-3, 60_000.0]), torch.tensor([1.0, 4e-3, 60_000.0]), torch.tensor([1.0078125] * 3)]
    for number, (folder, value) in enumerate(zip(folders, values)):
        tensors = {"weight": value.half(), "steps": torch.tensor(number)}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    average = load_file(average_checkpoints(folders, tmp_path / "average") / "model.safetensors")
    assert average["steps"] == 2
    expected = sum(value.half().double() for value in values) / 3
    assert torch.equal(average["weight"], expected.half()) and average["weight"].isfinite().all()


def test_the_average_of_one_is_itself(checkpoints, tmp_path):
    (folder,) = checkpoints(1)
    average_checkpoints([folder], tmp_path / "average")
    one, other = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "average"))
    assert_equal(one, other)


def change_config(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dropout": 0.25}))


def change_tokens(folder):
    """Other tokens, as many as before: what two trainings on the same text may have."""
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(content))


def change_weights(change):
    def apply(folder):
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return apply


def truncate(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-5])


BIAS = "model.encoder.layers.0.fc1.bias"


@pytest.mark.parametrize(
    "damage, message",
    [
        (change_config, r"checkpoint-20/config.json: dropout is 0.25, but 0.1 in .*checkpoint-10"),
        (
            change_tokens,
            r"checkpoint-20/tokenizer.json: its tokens are not those of .*checkpoint-10/tokenizer.json; only",
        ),
        (
            change_weights(lambda tensors: tensors.pop(BIAS)),
            rf"checkpoint-20: holds no tensor {BIAS}, but .*checkpoint-10/model.safetensors does",
        ),
        (
            change_weights(lambda tensors: tensors.update(extra=torch.zeros(1))),
            r"checkpoint-10: holds no tensor extra, but .*checkpoint-20/model.safetensors does",
        ),
        (
            change_weights(lambda tensors: tensors.update({BIAS: torch.zeros(3)})),
            rf"checkpoint-20/model.safetensors: {BIAS} is F32 \[3\], but F32 \[64\] in .*checkpoint-10/model",
        ),
        (
            change_weights(lambda tensors: tensors.update({BIAS: tensors[BIAS].half()})),
            rf"checkpoint-20/model.safetensors: {BIAS} is F16 \[64\], but F32 \[64\]",
        ),
        (
            change_weights(lambda tensors: tensors[BIAS].fill_(float("nan"))),
            rf"checkpoint-20/model.safetensors: {BIAS} holds NaN",
        ),
        (truncate("model.safetensors"), r"checkpoint-20/model.safetensors: damaged or incomplete \("),
        (truncate("config.json"), r"checkpoint-20/config.json: damaged JSON"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"checkpoint-20: no model.safetensors there"),
        (lambda folder: (folder / "config.json").unlink(), r"checkpoint-20/config.json: no such file"),
    ],
)
def test_what_does_not_fit_together_is_refused_and_leaves_nothing(checkpoints, tmp_path, damage, message):
    folders = checkpoints(2)
    damage(folders[1])
    with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
        average_checkpoints(folders, tmp_path / "new" / "average")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "new").exists() or not list((tmp_path / "new").iterdir())


def test_checkpoints_with_gates_are_no_models(checkpoints, tmp_path):
    """Their average was saved, and could not be opened."""
    (folder,) = checkpoints(1)
    path = folder / "model.safetensors"
    name = "model.encoder.layers.0.self_attn.out_proj.gates.log_alpha"
    save_file(load_file(path) | {name: torch.zeros(2)}, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"has gates of heads .head_gates., and is no model: train with average_last"):
        average_checkpoints([folder], tmp_path / "average")
    assert not (tmp_path / "average").exists()


def test_nothing_is_overwritten_and_nothing_is_no_average(checkpoints, tmp_path):
    folders = checkpoints(1)
    with pytest.raises(ValueError, match=r"checkpoint-10 exists already; name a new folder"):
        average_checkpoints(folders, folders[0])
    with pytest.raises(ValueError, match="No checkpoints to average"):
        average_checkpoints([], tmp_path / "average")


def test_a_full_disk_leaves_nothing(checkpoints, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    folders = checkpoints(2)
    monkeypatch.setattr("vanilla_transformer_hf.training.checkpoints.averaging.save_file", fail)
    with pytest.raises(OSError, match="No space left"):
        average_checkpoints(folders, tmp_path / "new" / "average")
    assert not list((tmp_path / "new").iterdir())


def test_the_last_and_the_best_are_chosen(checkpoints, tmp_path):
    scores = {10: 3.0, 20: 9.0, 30: 9.0, 40: 5.0, 50: 4.0, 60: 8.0, 70: 1.0, 80: 1.0, 90: 1.0, 100: 2.0}
    checkpoints(10, scores)
    run = tmp_path / "run"
    (run / "checkpoints" / "checkpoint-110.unfinished").mkdir()

    def steps(**choice):
        return [int(path.name.split("-")[1]) for path in select_checkpoints(run, **choice)]

    assert steps(last=3) == [80, 90, 100], "by number, not by name"
    assert steps(best=1) == [30], "the newer of two equals"
    assert steps(best=3) == steps(best=3, metric="eval_loss") == [20, 30, 60]
    assert select_checkpoints(run / "checkpoints", last=2) == select_checkpoints(run, last=2)


def test_the_best_that_is_kept_beside_the_last_is_named(checkpoints, tmp_path, caplog):
    folders = checkpoints(3, {10: 9.0, 20: 5.0, 30: 3.0})
    log = [
        entry for folder in folders for entry in json.loads((folder / "trainer_state.json").read_text())["log_history"]
    ]
    (folders[2] / "trainer_state.json").write_text(json.dumps({"log_history": log, "best_global_step": 10}))
    for count in (1, 2, 3):
        assert select_checkpoints(tmp_path / "run", last=count) == folders[-count:] and not caplog.text
    shutil.rmtree(folders[1])
    assert select_checkpoints(tmp_path / "run", last=2) == [folders[0], folders[2]]
    assert "checkpoint-10 is kept as the best of the run, and may not be one of the last 2" in caplog.text


def test_a_choice_that_cannot_be_made_is_refused(checkpoints, tmp_path):
    checkpoints(2, {10: 3.0, 20: 9.0})
    run = tmp_path / "run"
    for choice, message in (
        ({"last": 3}, "run: 2 checkpoints, but 3 are to be averaged"),
        ({"best": 3}, "run: 2 checkpoints were evaluated with eval_bleu, but 3"),
        ({"best": 1, "metric": "eval_ter"}, "evaluated with eval_ter; measured at their steps: eval_bleu, eval_loss"),
        ({}, "last=None, best=None: give one of the two"),
        ({"last": 1, "best": 1}, "last=1, best=1: give one of the two"),
        ({"last": 0}, "last=0, best=None: give one of the two, 1 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            select_checkpoints(run, **choice)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        select_checkpoints(tmp_path / "nowhere", last=1)
    with pytest.raises(FileNotFoundError, match="no folders checkpoint-<step> in it"):
        select_checkpoints(run / "checkpoints" / "checkpoint-10", last=1)


def test_a_model_takes_the_average_and_keeps_shared_matrices_shared(checkpoints, tiny_model):
    folders = checkpoints(2)
    model = AutoModelForSeq2SeqLM.from_pretrained(folders[0])
    load_average(model, folders)
    assert_equal(model.state_dict(), mean_of(folders))
    assert model.lm_head.weight.data_ptr() == model.model.encoder.embed_tokens.weight.data_ptr()
    with pytest.raises(ValueError, match=r"checkpoint-10/model.safetensors: the model has no tensor model\."):
        load_average(nn.Linear(2, 2), folders)


# With a Trainer


class Recorder(TrainerCallback):
    """Keeps the weights after every step, and stops before the step `stop`."""

    def __init__(self, stop=None):
        self.weights, self.stop = [], stop

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.weights.append({name: weight.detach().clone() for name, weight in model.named_parameters()})

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.weights.append({name: weight.detach().clone() for name, weight in model.named_parameters()})
        if state.global_step == self.stop:
            control.should_training_stop = True


@pytest.fixture
def train(tiny_model, tmp_path):
    """`train(*callbacks, resume=None, **arguments)`: a Trainer that has trained 6 steps, a checkpoint at each."""

    def train(*callbacks, resume=None, **arguments):
        torch.manual_seed(0)
        rows = [{"input_ids": torch.randint(3, 90, (5,)), "labels": torch.randint(3, 90, (4,))} for _ in range(48)]
        settings = {
            **{"output_dir": str(tmp_path / "out"), "max_steps": 6, "save_steps": 1, "learning_rate": 0.1},
            **{"use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False, "report_to": "none"},
        }
        trainer = Trainer(
            tiny_model(),
            TrainingArguments(**settings | arguments),
            train_dataset=rows,
            eval_dataset=rows[:4],
            callbacks=list(callbacks),
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    return train


def plain_recurrence(weights, decay):
    average = weights[0]
    for update, current in enumerate(weights[1:], start=1):
        kept = min(decay, (1 + update) / (10 + update))
        average = {name: kept * average[name] + (1 - kept) * current[name] for name in average}
    return average


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.999])
def test_the_moving_average_is_the_recurrence(train, decay):
    recorder = Recorder()
    trainer = train(recorder, MovingAverageCallback(decay))
    expected = plain_recurrence(recorder.weights, decay)
    assert len(recorder.weights) == 7
    for name, weight in trainer.model.named_parameters():
        torch.testing.assert_close(weight.detach(), expected[name], msg=name)
        assert decay == 0 or not torch.equal(weight, recorder.weights[-1][name]), name


def test_a_moving_average_survives_an_interruption_bit_for_bit(train, tmp_path):
    whole = train(MovingAverageCallback(0.9)).model.state_dict()
    train(Recorder(stop=3), MovingAverageCallback(0.9), output_dir=str(tmp_path / "again"))
    moving = MovingAverageCallback(0.9)
    rest = train(moving, output_dir=str(tmp_path / "again"), resume=str(tmp_path / "again" / "checkpoint-3"))
    assert moving.updates == rest.state.global_step == 6
    assert_equal(rest.model.state_dict(), whole)
    stored = [load_file(tmp_path / run / "checkpoint-6" / "moving_average.safetensors") for run in ("out", "again")]
    assert_equal(*stored)
    assert stored[0].keys() == dict(rest.model.named_parameters()).keys(), "shared matrices once"
    assert not list(tmp_path.glob("*/*/*.partial"))


def test_training_goes_on_elsewhere_from_a_named_checkpoint(train, tmp_path):
    whole = train(MovingAverageCallback(0.9)).model.state_dict()
    checkpoint = str(tmp_path / "out" / "checkpoint-4")
    moving = MovingAverageCallback(0.9, checkpoint)
    rest = train(moving, output_dir=str(tmp_path / "elsewhere"), resume=checkpoint)
    assert_equal(rest.model.state_dict(), whole)


def test_a_checkpoint_without_a_moving_average_or_with_another_models_is_refused(train, tmp_path):
    train(max_steps=2)
    checkpoint = tmp_path / "out" / "checkpoint-2"
    with pytest.raises(
        FileNotFoundError, match=r"moving_average.safetensors: no such file; this checkpoint was saved"
    ):
        train(MovingAverageCallback(0.9), resume=str(checkpoint))
    save_file({"weight": torch.zeros(2)}, checkpoint / "moving_average.safetensors")
    with pytest.raises(ValueError, match=r"moving_average.safetensors: .* has shape None, but \[.*\] in the model"):
        train(MovingAverageCallback(0.9), resume=str(checkpoint))


def test_evaluation_inside_applied_sees_the_average_and_training_does_not(train):
    plain = Recorder()
    train(plain)
    moving, recorder, losses = MovingAverageCallback(0.9), Recorder(), []

    class Evaluate(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            expected = plain_recurrence(recorder.weights, 0.9)
            with pytest.raises(RuntimeError, match="in evaluation"), moving.applied():
                for name, weight in model.named_parameters():
                    torch.testing.assert_close(weight.detach(), expected[name], msg=name)
                losses.append(state.global_step)
                raise RuntimeError("in evaluation")

    trainer = train(recorder, moving, Evaluate())
    assert losses == [1, 2, 3, 4, 5, 6]
    for ours, theirs in zip(recorder.weights, plain.weights):
        assert_equal(ours, theirs)
    averaged = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    with moving.applied():  # training has ended: the model has the average already
        assert_equal({name: weight.detach() for name, weight in trainer.model.named_parameters()}, averaged)


def test_the_best_checkpoints_average_is_what_the_best_model_has(train, tmp_path):
    best = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 1, "learning_rate": 3.0, "seed": 1}
    trainer = train(MovingAverageCallback(0.5), **best)
    assert trainer.state.best_global_step < 6
    expected = load_file(tmp_path / "out" / f"checkpoint-{trainer.state.best_global_step}/moving_average.safetensors")
    assert_equal({name: weight.detach() for name, weight in trainer.model.named_parameters()}, expected)


def test_weights_in_half_precision_have_a_moving_average_in_full(train, tiny_model):
    model = tiny_model().bfloat16()
    moving = MovingAverageCallback(0.999)
    moving.on_train_begin(None, State(0), None, model=model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1)
    before = {name: average.clone() for name, average in moving.averages.items()}
    moving.on_step_end(None, State(1), None)
    for name, average in moving.averages.items():
        assert average.dtype == torch.float32
        expected = torch.lerp(before[name], moving.parameters[name].float(), 1 - 2 / 11)
        torch.testing.assert_close(average, expected, msg=name)
    with moving.applied():
        assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


class State:
    """What callbacks read of the Trainer's state."""

    def __init__(self, step):
        self.global_step = step


def test_frozen_weights_have_no_average(tiny_model):
    model = tiny_model()
    model.model.encoder.requires_grad_(False)
    moving = MovingAverageCallback(0.9)
    moving.on_train_begin(None, State(0), None, model=model)
    assert moving.averages and not any(name.startswith("model.encoder.layers") for name in moving.averages)


def test_sharded_weights_are_gathered_and_spread_again(tmp_path, checkpoints):
    """One process is enough for weights to be DTensors, as FSDP2 makes them."""
    folders = checkpoints(2)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = AutoModelForSeq2SeqLM.from_pretrained(folders[0])
        mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
        fully_shard(model, mesh=mesh)
        moving = MovingAverageCallback(0.9)
        moving.on_train_begin(None, State(0), None, model=model)
        assert all(isinstance(average, DTensor) for average in moving.averages.values())
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(1)
        moving.on_step_end(None, State(1), None)
        moving.save(tmp_path)
        stored = load_file(tmp_path / "moving_average.safetensors")
        before = dict(AutoModelForSeq2SeqLM.from_pretrained(folders[0]).named_parameters())
        for name, tensor in stored.items():
            torch.testing.assert_close(tensor, before[name].detach() + 9 / 11, msg=name)
        moving.on_step_end(None, State(2), None)
        moving.load(tmp_path)
        assert moving.updates == 1
        assert_equal({name: average.full_tensor() for name, average in moving.averages.items()}, stored)
        load_average(model, folders)
        assert_equal({name: tensor.full_tensor() for name, tensor in model.state_dict().items()}, mean_of(folders))
    finally:
        distributed.destroy_process_group()


TWO_PROCESSES = """
import os
import torch
from safetensors.torch import save_file
from transformers import Trainer, TrainingArguments
from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.training.checkpoints.averaging import AverageCheckpointsCallback
from vanilla_transformer_hf.training.checkpoints.averaging import MovingAverageCallback

torch.manual_seed(0)
rows = [{{"input_ids": torch.randint(3, 90, (5,)), "labels": torch.randint(3, 90, (4,))}} for _ in range(16)]
settings = {{"max_steps": 4, "save_steps": 1, "use_cpu": True, "disable_tqdm": True, "per_device_train_batch_size": 2}}
trainer = Trainer(
    VanillaTransformerForConditionalGeneration(VanillaTransformerConfig.from_pretrained({folder!r})),
    TrainingArguments({folder!r}, **settings, report_to="none", dataloader_pin_memory=False),
    train_dataset=rows,
    callbacks=[MovingAverageCallback(0.9), AverageCheckpointsCallback(2)],
)
trainer.train()
assert trainer.args.world_size == 2
weights = {{name: weight.detach().contiguous() for name, weight in trainer.model.named_parameters()}}
save_file(weights, {folder!r} + f"/process-{{trainer.args.process_index}}.safetensors")
os._exit(0)  # gloo's threads now and then abort an interpreter that ends
"""


@pytest.mark.slow
def test_two_processes_end_with_the_same_average_and_one_writes(tmp_path, tiny_config):
    script = tmp_path / "train.py"
    tiny_config().save_pretrained(tmp_path)
    script.write_text(TWO_PROCESSES.format(folder=str(tmp_path)))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    one, other = (load_file(tmp_path / f"process-{number}.safetensors") for number in (0, 1))
    assert_equal(one, other)
    stored = [load_file(tmp_path / f"checkpoint-{step}" / "model.safetensors") for step in (3, 4)]
    for name in one.keys() & stored[0].keys():
        torch.testing.assert_close(one[name], (stored[0][name] + stored[1][name]) / 2, msg=name)
    averages = [load_file(tmp_path / f"checkpoint-{step}" / "moving_average.safetensors") for step in (3, 4)]
    assert all(not torch.equal(averages[0][name], averages[1][name]) for name in averages[0])


def test_training_ends_with_the_average_of_the_last_checkpoints(train, tmp_path):
    callback, recorder = AverageCheckpointsCallback(3), Recorder()
    trainer = train(recorder, callback, save_total_limit=3)
    assert [path.name for path in callback.folders] == ["checkpoint-4", "checkpoint-5", "checkpoint-6"]
    for name, weight in trainer.model.named_parameters():
        expected = torch.stack([weights[name] for weights in recorder.weights[-3:]]).mean(0)
        torch.testing.assert_close(weight.detach(), expected, msg=name)
    assert trainer.model.lm_head.weight.data_ptr() == trainer.model.model.encoder.embed_tokens.weight.data_ptr()


def test_checkpoints_of_a_later_step_do_not_count_and_few_are_enough(train, tmp_path):
    train()
    callback = AverageCheckpointsCallback(5)
    train(callback, max_steps=3, resume=str(tmp_path / "out" / "checkpoint-2"))
    assert [path.name for path in callback.folders] == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]


def test_training_ends_with_the_average_of_the_best_checkpoints(train, tmp_path):
    callback, recorder = AverageCheckpointsCallback(2, "eval_loss"), Recorder()
    trainer = train(recorder, callback, eval_strategy="steps", eval_steps=1, learning_rate=3.0, seed=1)
    losses = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
    steps = sorted(sorted(losses, key=losses.get)[:2])
    assert steps != [5, 6]
    assert [path.name for path in callback.folders] == [f"checkpoint-{step}" for step in steps]
    for name, weight in trainer.model.named_parameters():
        expected = torch.stack([recorder.weights[step][name] for step in steps]).mean(0)
        torch.testing.assert_close(weight.detach(), expected, msg=name)
