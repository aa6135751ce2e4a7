"""What several tests share: a tiny config, a model with random weights, a batch, a training job."""

import gc
import os
import random
import runpy
import shutil
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace


# Set before transformers is imported: no test may reach for the network.
os.environ["HF_HUB_OFFLINE"] = "1"
# Nor write into the caches of whoever runs it.
os.environ["HF_ASSETS_CACHE"] = os.path.join(tempfile.gettempdir(), "vanilla_transformer_hf-tests")

# The scripts that make corpora: behind all packages, one of which is named as scripts/translate.py is.
sys.path.append(str(Path(__file__).parents[1] / "scripts"))

import datasets
import pytest
import torch
import yaml
from counting_model import saved_model
from hub_api import TOKEN
from hub_server import Hub
from huggingface_hub import close_session
from pictures import png
from transformers import logging

from vanilla_transformer_hf import Translator, VanillaTransformerConfig, VanillaTransformerForConditionalGeneration


TINY = {
    **{"vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4},
    **{"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
}

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"}
SIZES = {
    **{"vocab_size": 290, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2},
    **{"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32},
}
RECIPE = {
    "source_lang": "en",
    "target_lang": "de",
    **SIZES,
    "max_source_length": 60,
    "max_target_length": 30,
    "warmup_steps": 4,
    "tokens_per_step": 240,
    "per_device_train_tokens": 120,
    "too_long": "truncate",
    "matmul": "default",
    "max_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 1,
    "save_steps": 1,
    "load_best_model_at_end": True,
    "metric_for_best_model": "bleu",
    "logging_steps": 1,
    "use_cpu": True,
    "disable_tqdm": True,
}


def pytest_ignore_collect(collection_path, config):
    """`make test-slow` imports no module without "slow" in its text: each takes a worker as long as a few tests."""
    if config.option.markexpr == "slow" and collection_path.match("test_*.py"):
        return "slow" not in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_finish():
    """What is imported by now stays: the garbage collector, which every training calls, need not look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def compiles_anew(request):
    """
    transformers wraps `forward` of all models in the same functions, and torch compiles a function for eight models of
    all the tests of a process before it gives up.
    """
    if "compile" in request.node.name:
        torch.compiler.reset()


@pytest.fixture(autouse=True)
def host_says_as_much_as_before():
    """Scripts that run inside a test quieten transformers for good."""
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    yield
    logging.set_verbosity(verbosity)
    logging.enable_progress_bar() if has_bars else logging.disable_progress_bar()


@pytest.fixture
def tiny_config():
    """`tiny_config(**overrides)`: a config of 2 + 2 layers, width 32, vocabulary 99."""
    return lambda **overrides: VanillaTransformerConfig(**{**TINY, **overrides})


@pytest.fixture
def tiny_model(tiny_config):
    """`tiny_model(**overrides)`: a model in evaluation mode whose biases and norms differ from zero and one."""

    def build(**overrides):
        model = VanillaTransformerForConditionalGeneration(tiny_config(**overrides)).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias") or "norm" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        return model

    return build


@pytest.fixture
def decided_model(tiny_model):
    """`decided_model(**overrides)`: a model whose translations end at different lengths, with clear differences."""

    def build(**overrides):
        model = tiny_model(**{"output_bias": True, "embedding_sharing": "none", **overrides})
        with torch.no_grad():
            model.lm_head.weight.mul_(2.5)
            model.lm_head.bias[1] += 5.5
        return model

    return build


@pytest.fixture(scope="session")
def counting_folder(tmp_path_factory):
    """A saved model that translates, with its tokenizer: numbers, backwards in German. Not to be changed."""
    return saved_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def opened_translator(counting_folder):
    return Translator.from_pretrained(counting_folder, device="cpu")


@pytest.fixture
def translator(opened_translator):
    """A `Translator` of that model whose settings a test may change."""
    return Translator(opened_translator.model, opened_translator.tokenizer)


@pytest.fixture
def generated(translator, monkeypatch):
    """The arguments of every call of its model's `generate()`."""
    calls, generate = [], translator.model.generate
    monkeypatch.setattr(translator.model, "generate", lambda **kwargs: calls.append(kwargs) or generate(**kwargs))
    return calls


@pytest.fixture
def source():
    """Nine sentences of 3 to 11 tokens, padded on the right."""
    lengths = torch.arange(3, 12)
    mask = (torch.arange(11) < lengths[:, None]).long()
    return {"input_ids": torch.randint(3, 90, (9, 11)) * mask, "attention_mask": mask}


@pytest.fixture
def batch():
    """Two sentences of 7 and 4 tokens, padded on the right, and decoder inputs of 6 and 3 behind the pad token."""
    source = torch.randint(3, 90, (2, 7))
    target = torch.randint(3, 90, (2, 6))
    target[:, 0] = 0
    attention_mask = torch.ones_like(source)
    decoder_attention_mask = torch.ones_like(target)
    source[1, 4:], attention_mask[1, 4:] = 0, 0
    target[1, 3:], decoder_attention_mask[1, 3:] = 0, 0
    return {
        "input_ids": source,
        "attention_mask": attention_mask,
        "decoder_input_ids": target,
        "decoder_attention_mask": decoder_attention_mask,
    }


def write_small_picture(log_history, path, **marks):
    Path(path).write_bytes(png())


@pytest.fixture
def datasets_cache(tmp_path, monkeypatch):
    """What `datasets` keeps lies in the folder of the test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def prepare(tmp_path, monkeypatch, datasets_cache):
    """
    `prepare(**settings)`: a training job on a corpus of number words, written to `out`; None: not in the recipe.

    Its training curves are a small picture, which takes no time: `tests/training/trainer/test_curves.py` draws.
    """
    from vanilla_transformer_hf.training.recipe import RecipeParser, replaced_by
    from vanilla_transformer_hf.training.run import prepare_job

    monkeypatch.setattr("vanilla_transformer_hf.training.trainer.publishing.plot_curves", write_small_picture)
    rng = random.Random(0)
    files = {}
    for part, size in (("train", 40), ("validation", 6), ("test", 5)):
        sentences = [rng.choices(list(WORDS), k=rng.randint(1, 6)) for _ in range(size)]
        for side, column in (
            ("source", sentences),
            ("target", [[WORDS[word] for word in line] for line in sentences]),
        ):
            path = tmp_path / f"{part}.{side}"
            path.write_text("".join(" ".join(line) + "\n" for line in column), encoding="utf-8")
            files[f"{part}_{side}"] = str(path)

    def prepare(**settings):
        recipe = files | RECIPE | {"output_dir": str(tmp_path / "out")}
        for name in {"eval_strategy", "save_strategy"} & settings.keys():  # as on the command line
            recipe |= dict.fromkeys(replaced_by(name, settings[name]))
        recipe |= settings
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump({name: value for name, value in recipe.items() if value is not None}))
        parser = RecipeParser()
        return prepare_job(*parser.run(parser.read(str(path)), str(path)))

    prepare.recipe, prepare.out = RECIPE, tmp_path / "out"
    # For a model that is trained further, which has its sizes already.
    prepare.no_sizes = dict.fromkeys(each for each in RECIPE if each in ("vocab_size", "d_model") or "coder_" in each)
    return prepare


@pytest.fixture
def command(capsys):
    """`command(*argv)`: exit code, output and errors of `vanilla-transformer`, which runs in this process."""
    from vanilla_transformer_hf.commands.main import main

    def command(*argv):
        code = 0
        try:
            main([*map(str, argv)])
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return command


@pytest.fixture
def script(monkeypatch, capfd):
    """`script(name, *arguments)`: exit code, output and errors of a file of scripts/, which runs in this process."""

    def script(name, *arguments):
        path, code = str(Path(__file__).parents[1] / "scripts" / name), 0
        monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
        capfd.readouterr()
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
        return code, *capfd.readouterr()

    return script


@pytest.fixture(scope="session")
def browser():
    """Chromium, for the tests with that mark."""
    from playwright.sync_api import sync_playwright

    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("there is no chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A Hub that huggingface_hub in this process talks to; `hub.waits` are the seconds that it would have slept."""
    with Hub() as hub:
        constants = {
            "ENDPOINT": hub.endpoint,
            "HUGGINGFACE_CO_URL_TEMPLATE": hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_CACHE": str(tmp_path / "hub-cache"),
            "HF_TOKEN_PATH": str(tmp_path / "no-token"),
            "HF_STORED_TOKENS_PATH": str(tmp_path / "no-tokens"),
        }
        for name, value in constants.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", hub.endpoint)
        monkeypatch.setattr("transformers.utils.hub._hf_api", None)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        close_session()  # the next one reads that
        clock = SimpleNamespace(**{**vars(time), "sleep": hub.waits.append})
        for module in ("utils._http", "file_download"):
            monkeypatch.setattr(f"huggingface_hub.{module}.time", clock)
        yield hub
