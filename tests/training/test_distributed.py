"""Two processes on the processor: the same losses as one, by DDP and by FSDP2, and checkpoints that fit each other."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from new_process import run_script
from safetensors.torch import load_file
from torch import distributed

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.training.recipe import RecipeParser


ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "scripts" / "accelerate"
STEPS = 20

RUN_SCRIPT = """
import runpy, sys
from pathlib import Path
import torch

sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print("process group left open" if torch.distributed.is_initialized() else "process group closed")
threads = [(thread / "comm").read_text() for thread in Path("/proc/self/task").glob("*")]
print(sum("gloo" in name for name in threads), "threads of gloo left", flush=True)
"""
# Accelerate 1.15 shards over processes on accelerators alone. This lifts that one condition, and nothing else.
RUN_FSDP_ON_CPU = f"""
import os
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor
from vanilla_transformer_hf.training.trainer.translation import TranslationTrainer

begin, gather = AcceleratorState.__init__, TranslationTrainer.gather_weights

def begin_sharded(self, *args, fsdp_plugin=None, **kwargs):
    begin(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
    if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin

def gather_counted(self):
    parameters = list(self.model.parameters())
    print(sum(isinstance(parameter, DTensor) for parameter in parameters), "of", len(parameters), "sharded")
    return gather(self)

AcceleratorState.__init__, TranslationTrainer.gather_weights = begin_sharded, gather_counted
{RUN_SCRIPT}
# torch keeps layouts of shards, by them gloo's threads, and those now and then abort an interpreter that ends.
os._exit(0)
"""


@pytest.fixture
def train(prepare, tmp_path):
    """`train(name, layout, **settings)`: runs scripts/train.py in one process, by DDP or by FSDP2; its folder."""
    prepare(load_best_model_at_end=False)  # writes a recipe, for the files that it names
    recipe = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    (tmp_path / "run_script.py").write_text(RUN_SCRIPT)
    (tmp_path / "run_fsdp_on_cpu.py").write_text(RUN_FSDP_ON_CPU)
    config = yaml.safe_load((CONFIGS / "gpu_8_fsdp2.yaml").read_text())
    config |= {"num_processes": 2, "use_cpu": True, "mixed_precision": "no"}
    (tmp_path / "launch.yaml").write_text(yaml.safe_dump(config))

    def train(name, layout, **settings):
        out = tmp_path / name
        path = tmp_path / f"{name}.yaml"
        written = recipe | {"output_dir": str(out), "dropout": 0.0} | settings
        if written["eval_strategy"] == "no":
            del written["eval_steps"]
        path.write_text(yaml.safe_dump(written))
        command = [str(ROOT / "scripts" / "train.py"), str(path)]
        environment = os.environ | {"HF_DATASETS_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
        if layout == "one":
            done = run_script(*command, environment=environment)
        else:
            launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file"]
            by_ddp = [str(CONFIGS / "cpu_2.yaml"), str(tmp_path / "run_script.py")]
            sharded = [str(tmp_path / "launch.yaml"), str(tmp_path / "run_fsdp_on_cpu.py")]
            launch += by_ddp if layout == "ddp" else sharded
            done = subprocess.run([*launch, *command], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        return out, done.stdout

    return train


def losses(out, name="loss"):
    state = json.loads((out / "checkpoints" / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())
    return torch.tensor([entry[name] for entry in state["log_history"] if name in entry])


@pytest.mark.slow
@pytest.mark.skipif(not distributed.is_gloo_available(), reason="processes talk over gloo")
def test_two_processes_train_like_one_and_continue_each_others_runs(train):
    settings = {"max_steps": STEPS, "save_steps": STEPS // 2, "logging_steps": 1, "moving_average": 0.9}
    # A search that transformers' loops do not have, in training and at the end.
    settings |= {"generation_num_beams": 2, "num_beams": 2, "length_penalty_type": "gnmt", "max_extra_tokens": 20}
    # Of 6 sentences in batches of 4, two processes repeat two.
    settings |= {"eval_strategy": "steps", "eval_steps": STEPS // 2, "per_device_eval_batch_size": 4}
    layouts = ("one", "ddp", "fsdp2")
    folders = {}
    for layout in layouts:
        folders[layout], printed = train(layout, layout, **settings)
        assert ("1 device, 2 batches" if layout == "one" else "2 devices, 1 batch of") in printed, printed
        assert re.findall(r"(\d+) of \1 sharded", printed) if layout == "fsdp2" else "sharded" not in printed
        assert (layout != "one") == ("process group closed" in printed) and "left open" not in printed
        assert layout != "ddp" or not re.search(r"[1-9]\d* threads of gloo left", printed)
        hardware = "on 1 CPU thread." if layout == "one" else "on 2 processes, 1 CPU thread each."
        assert hardware in (folders[layout] / "README.md").read_text()
    expected, weights = losses(folders["one"]), load_file(folders["one"] / "model.safetensors")
    assert len(expected) == STEPS and "lm_head.weight" not in weights, "tied matrices are stored once"
    check(folders, expected, weights)
    for first, second in (("one", "fsdp2"), ("fsdp2", "ddp"), ("ddp", "one")):
        shutil.rmtree(folders[first] / "checkpoints" / f"checkpoint-{STEPS}")
        _, printed = train(first, second, **settings)
        assert f"continuing from {folders[first]}/checkpoints/checkpoint-{STEPS // 2}." in printed
    check(folders, expected, weights)


@pytest.mark.slow
@pytest.mark.skipif(not distributed.is_gloo_available(), reason="processes talk over gloo")
def test_weights_that_layers_share_train_as_one_over_processes(train):
    """A layer that runs several times is one group of FSDP2; what layers borrow belongs to none of them."""
    sharing = {
        **{"encoder_layers": 3, "encoder_layer_sets": 2, "decoder_layers": 2, "decoder_layer_sets": 1},
        **{"layer_sharing": "cycle_reverse", "projection_sharing": "key_value", "feed_forward_sharing": "all"},
        "decoder_attention_sharing": True,
    }
    settings = {"max_steps": STEPS, "save_steps": STEPS, "logging_steps": 1, "eval_strategy": "no"}
    settings |= {"load_best_model_at_end": False, "metric_for_best_model": None}
    folders = {layout: train(layout, layout, **sharing, **settings)[0] for layout in ("one", "fsdp2")}
    torch.testing.assert_close(losses(folders["fsdp2"]), losses(folders["one"]), rtol=0, atol=1e-5)
    weights = [load_file(folder / "model.safetensors") for folder in folders.values()]
    torch.testing.assert_close(*weights, rtol=0, atol=1e-4)
    names = [name for name in weights[0] if "fc1.weight" in name or "q_proj.weight" in name]
    assert len(names) == 1 + 2 + 1  # one feed-forward, two sets of the encoder, one of the decoder


def check(folders, expected, weights):
    for out in folders.values():
        torch.testing.assert_close(losses(out), expected, rtol=0, atol=1e-5)
        evaluated = losses(folders["one"], "eval_loss")
        assert len(evaluated) == 2
        torch.testing.assert_close(losses(out, "eval_loss"), evaluated, rtol=0, atol=1e-5)
        torch.testing.assert_close(load_file(out / "model.safetensors"), weights, rtol=0, atol=1e-4)
        assert {path.name for path in out.glob("*.py")} == {path.name for path in folders["one"].glob("*.py")}
        model = VanillaTransformerForConditionalGeneration.from_pretrained(out)
        assert model.lm_head.weight is model.model.encoder.embed_tokens.weight


KINDS = {
    "cpu_2": ("MULTI_GPU", 2, 1),
    "gpu_1": ("NO", 1, 1),
    "gpu_8_ddp": ("MULTI_GPU", 8, 1),
    "gpu_8_fsdp2": ("FSDP", 8, 1),
    "gpu_2x8_ddp": ("MULTI_GPU", 16, 2),
    "gpu_8_deepspeed_zero2": ("DEEPSPEED", 8, 1),
}


def test_the_ready_configs_are_all_here():
    assert {path.stem for path in CONFIGS.iterdir()} == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_a_ready_config_is_one_for_accelerate(name):
    path = CONFIGS / f"{name}.yaml"
    config = load_config_from_file(str(path))
    assert (config.distributed_type.value, config.num_processes, config.num_machines) == KINDS[name]
    assert config.use_cpu == name.startswith("cpu")
    (command,) = re.findall(r"#   (accelerate launch .*?RECIPE.*)", path.read_text().replace("\\\n#", ""))
    arguments = launch_command_parser().parse_args(command.split()[2:])
    assert ROOT / arguments.config_file == path
    assert (arguments.module, arguments.training_script) == (True, "vanilla_transformer_hf")
    command, _, *settings = arguments.training_script_args
    assert command == "train" and RecipeParser().parse(settings)[0].training.bf16 == (not config.use_cpu)
