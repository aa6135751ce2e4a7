"""What has to work on every release of transformers that pyproject.toml allows; `make range` runs it on many."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from checkpoints import write
from peft import LoraConfig, PrefixTuningConfig, TaskType, get_peft_model
from starlette.testclient import TestClient
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    StoppingCriteriaList,
    pipeline,
)

from vanilla_transformer_hf import Translator, VanillaTransformerConfig
from vanilla_transformer_hf.commands.main import call
from vanilla_transformer_hf.serving.application import ServedModel, create_application
from vanilla_transformer_hf.serving.batcher import Batcher


FOLDER = Path(__file__).resolve().parents[2] / "model_cards" / "multi30k_raw_en_de"
SOURCE = "A woman in a red dress is standing in front of a large building."
IDS = [279, 396, 273, 260, 505, 628, 322, 538, 273, 595, 333, 260, 735, 817, 16, 1]  # of SOURCE
TARGET = "Eine Frau in einem roten Kleid steht vor einem großen Gebäude."

IS_5_14 = transformers.__version__.startswith("5.14.")  # where assisted decoding ends for each encoder-decoder


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def shipped():
    return AutoModelForSeq2SeqLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


@pytest.fixture
def command(capsys, monkeypatch):
    """`command(name, *arguments, stdin="")`: what a command prints; one that fails ends the test."""

    def run(name, *arguments, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        call(name, prog=name, argv=[str(one) for one in arguments])
        return capsys.readouterr().out

    return run


def test_a_config_opens_as_it_was_saved_and_refuses_what_cannot_be(tmp_path):
    config = VanillaTransformerConfig(vocab_size=50, d_model=32, position_encoding="rotary")
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).to_diff_dict() == config.to_diff_dict()
    with pytest.raises(ValueError, match="d_model"):
        VanillaTransformerConfig(d_model=30, encoder_attention_heads=4)


def test_the_tokenizer_cuts_and_joins_as_ever(tokenizer, tmp_path):
    ids = tokenizer(SOURCE)["input_ids"]
    assert ids == IDS
    assert tokenizer.decode(ids, skip_special_tokens=True) == SOURCE
    assert tokenizer(text_target=TARGET)["input_ids"] == tokenizer(TARGET)["input_ids"]
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)(SOURCE)["input_ids"] == ids


LOOPS = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "a stopping criterion": {"stopping_criteria": True},
    "scores": {"output_scores": True, "return_dict_in_generate": True},
    "scores of beams": {"output_scores": True, "return_dict_in_generate": True, "num_beams": 3},
    "hidden states": {"output_hidden_states": True, "return_dict_in_generate": True},
    "hidden states of beams": {"output_hidden_states": True, "return_dict_in_generate": True, "num_beams": 3},
    "a penalty": {"num_beams": 3, "repetition_penalty": 1.2},
    "sampling": {"do_sample": True},
    "sampled beams": {"do_sample": True, "num_beams": 2},
    "static cache": {"cache_implementation": "static", "disable_compile": True},
    "prompt lookup": {"prompt_lookup_num_tokens": 2},
    "assisted": {"assistant_model": True},
}


@pytest.mark.parametrize("name", LOOPS)
def test_every_loop_keeps_its_past(shipped, tokenizer, name):
    """The same text as with whole passes."""
    if IS_5_14 and name in ("prompt lookup", "assisted"):
        pytest.skip("5.14 cannot crop the cache of any encoder-decoder: it raises an AttributeError")
    batch, found = tokenizer(SOURCE, return_tensors="pt"), []
    for whole in (True, False):
        options = {"num_beams": 1, "max_new_tokens": 20, **LOOPS[name]}
        if options.get("stopping_criteria"):
            goes_on = [lambda tokens, scores, **kwargs: torch.zeros(len(tokens), dtype=torch.bool)]
            options["stopping_criteria"] = StoppingCriteriaList(goes_on)
        if options.get("assistant_model"):
            options["assistant_model"] = shipped
        if whole:
            for one in ("cache_implementation", "prompt_lookup_num_tokens", "assistant_model"):
                options.pop(one, None)
            options["use_cache"] = False
        torch.manual_seed(1)
        tokens = shipped.generate(**batch, **options)
        found.append(tokenizer.decode(getattr(tokens, "sequences", tokens)[0], skip_special_tokens=True))
    assert found[0] == found[1]
    if "sampl" not in name and name != "a penalty":
        assert found[1] == TARGET


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"output_hidden_states": True}], ids=str)
def test_padding_without_a_mask_changes_no_translation(shipped, tokenizer, options):
    batch = tokenizer([SOURCE, " ".join([SOURCE] * 3)], padding=True, return_tensors="pt")
    tokens = shipped.generate(batch["input_ids"], max_new_tokens=20, **options)
    assert tokenizer.decode(tokens[0], skip_special_tokens=True) == TARGET


ALONE = """
import json
import sys
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

folder, again, loops = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32)
batch = tokenizer(sys.stdin.read(), return_tensors="pt")


def translation(**options):
    torch.manual_seed(1)
    found = model.generate(**batch, max_new_tokens=20, **options)
    return tokenizer.decode(getattr(found, "sequences", found)[0], skip_special_tokens=True)


for name, options in json.loads(loops).items():
    if options.get("assistant_model"):
        options["assistant_model"] = model
    print(json.dumps([name, translation(**options)]))
samples = {"do_sample": True, "num_beams": 1, "temperature": 3.0}
print(json.dumps(["a sample of whole passes", translation(use_cache=False, **samples)]))
print(json.dumps(["a sample", translation(**samples)]))
loss = model.train()(**batch, labels=batch["input_ids"]).loss
loss.backward()
model.save_pretrained(again)
tokenizer.save_pretrained(again)
assert "vanilla_transformer_hf" not in sys.modules
"""


def test_a_saved_folder_opens_without_the_package(shipped, tokenizer, tmp_path):
    """In a process that cannot import it; what that process saves opens in the same way."""
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    shipped.save_pretrained(first)
    tokenizer.save_pretrained(first)
    hide = "import sys; sys.modules['vanilla_transformer_hf'] = None; del sys.modules['vanilla_transformer_hf']\n"
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths = [path for path in paths if not (Path(path) / "vanilla_transformer_hf").exists()]
    finder = "sys.meta_path[:] = [one for one in sys.meta_path if 'editable' not in str(one).lower()]\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_MODULES_CACHE": str(tmp_path / "modules")}
    left_out = (
        "a stopping criterion",
        "a penalty",
        "sampling",
        "sampled beams",
    )  # the last two have texts of their own
    loops = {name: {"num_beams": 1, **options} for name, options in LOOPS.items() if name not in left_out}
    if IS_5_14:
        del loops["prompt lookup"], loops["assisted"]
    for folder, again in ((first, second), (second, third)):
        done = subprocess.run(
            [sys.executable, "-c", hide + finder + ALONE, folder, again, json.dumps(loops)],
            input=SOURCE, capture_output=True, encoding="utf-8", env=environment, cwd=tmp_path, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        found = dict(json.loads(line) for line in done.stdout.splitlines())
        sample = found.pop("a sample")
        assert found.pop("a sample of whole passes") == sample != TARGET
        assert found == dict.fromkeys(loops, TARGET)


def test_ten_steps_of_the_trainer(shipped, tokenizer, tmp_path):
    model = AutoModelForSeq2SeqLM.from_config(shipped.config)
    rows = [tokenizer(f"{SOURCE[: 20 + place]}", text_target=TARGET) for place in range(8)]
    arguments = Seq2SeqTrainingArguments(
        tmp_path, max_steps=10, per_device_train_batch_size=4, learning_rate=1e-3, logging_steps=1, report_to=[],
        use_cpu=True, save_steps=10, predict_with_generate=True, disable_tqdm=True, eval_strategy="steps",
        eval_steps=10,
    )  # fmt: skip
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    trainer = Seq2SeqTrainer(model, arguments, collator, train_dataset=rows, eval_dataset=rows[:2])
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 10 and losses[-1] < losses[0] - 1
    assert (tmp_path / "checkpoint-10" / "model.safetensors").exists()
    opened = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "checkpoint-10")
    assert torch.equal(opened.model.shared.weight, model.model.shared.weight)


@pytest.mark.parametrize("kind", ["lora", "prefix"])
def test_adapters_of_peft(shipped, tokenizer, kind):
    task = {"task_type": TaskType.SEQ_2_SEQ_LM}
    config = LoraConfig(**task) if kind == "lora" else PrefixTuningConfig(**task, num_virtual_tokens=2)
    model = get_peft_model(AutoModelForSeq2SeqLM.from_pretrained(FOLDER, dtype=torch.float32), config).eval()
    batch = tokenizer(SOURCE, return_tensors="pt")
    found = model.generate(**batch, num_beams=1, max_new_tokens=5, min_new_tokens=5)
    ids = torch.full((1, 1), shipped.config.decoder_start_token_id)
    with torch.no_grad():
        for _ in range(5):
            logits = model(**batch, decoder_input_ids=ids, use_cache=False).logits[:, -1]
            logits[:, shipped.config.eos_token_id] = -torch.inf
            ids = torch.cat((ids, logits.argmax(-1, keepdim=True)), dim=1)
    assert torch.equal(found, ids)
    model(**batch, labels=batch["input_ids"]).loss.backward()


def test_pipeline_and_translator(tokenizer):
    translate = pipeline("translation", model=str(FOLDER), trust_remote_code=False)
    assert translate(SOURCE)[0]["translation_text"] == TARGET
    assert [str(one) for one in Translator.from_pretrained(FOLDER).translate([SOURCE])] == [TARGET]


def test_the_command_translate(command):
    assert command("translate", FOLDER, "--device", "cpu", stdin=f"{SOURCE}\n") == f"{TARGET}\n"
    assert command("translate", FOLDER, "--repetition_penalty", "1.0", "--num_beams", "1", stdin=f"{SOURCE}\n") == (
        f"{TARGET}\n"
    )


def test_the_command_train(command, tmp_path, capsys):
    text = "".join(f"one two three {word}\n" for word in ("one", "two", "three", "four", "five", "six"))
    for name in ("train.en", "train.de", "val.en", "val.de"):
        (tmp_path / name).write_text(text, encoding="utf-8")
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
             "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 270,
             "max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "save_strategy": "steps",
             "warmup_steps": 1,
             "train_source": tmp_path / "train.en", "train_target": tmp_path / "train.de", "use_cpu": True,
             "validation_source": tmp_path / "val.en", "validation_target": tmp_path / "val.de",
             "output_dir": tmp_path / "out"}  # fmt: skip
    options = [f"--{name}={value}" for name, value in sizes.items()]
    if not hasattr(Seq2SeqTrainer, "_run_epoch"):  # before 5.3
        with pytest.raises(SystemExit):
            command("train", "multi30k_raw", *options)
        assert "too old for training from recipes: expected 5.3 or newer" in capsys.readouterr().err
        return
    command("train", "multi30k_raw", *options)
    assert len(command("translate", tmp_path / "out", "--device", "cpu", stdin="one two\n").splitlines()) == 1


def test_the_command_convert(command, tmp_path):
    folder = write("torch_nn", tmp_path / "theirs")
    command("convert", "torch_nn", folder, tmp_path / "ours")
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").config.model_type == "vanilla_transformer"


def test_the_server():
    model = ServedModel("en-de", Batcher(Translator.from_pretrained(FOLDER)), "en", {"de": None})
    with TestClient(create_application([model], None)) as client:
        answer = client.post("/translate", json={"q": SOURCE, "source": "en", "target": "de"})
        assert answer.json() == {"translatedText": TARGET}
