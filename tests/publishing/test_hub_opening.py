"""What a stranger does with a published model in fresh processes: with the package, without it, without a network."""

import json
import subprocess
import sys

import pytest
from hub_api import OTHER_TOKEN
from huggingface_hub import CommitOperationAdd, HfApi
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.common.opening import open_model
from vanilla_transformer_hf.model.configuration_vanilla_transformer import VERSION
from vanilla_transformer_hf.publishing.hub import publish_folder


REPOSITORY, ADAPTER, FINE_TUNED = "someone/numbers", "someone/numbers-adapter", "someone/numbers-finetuned"
TEXTS = ["one two three", "four five six"]

# Run here too.
LOOK = """
def look(model, tokenizer):
    batch = tokenizer(["two six one", "five"], return_tensors="pt", padding=True)
    ids = model.generate(**batch, max_new_tokens=8, do_sample=False)
    logits = model(**batch, decoder_input_ids=ids).logits.float()
    return {"ids": ids.tolist(), "logits": logits.flatten()[:300].tolist(), "dtype": str(model.dtype)}
"""
START = """
import json, sys
settings = json.loads(sys.argv[1])
if settings["hidden"]:
    sys.modules["vanilla_transformer_hf"] = None
else:
    import vanilla_transformer_hf
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

seen, folder, repository = {}, settings["folder"], settings["repository"]
trust = {"trust_remote_code": True} if settings["hidden"] else {}
tokenizer = AutoTokenizer.from_pretrained(repository, **trust)

def load(name, place=repository, **options):
    model = AutoModelForSeq2SeqLM.from_pretrained(place, **options, **trust)
    assert ("transformers_modules" in type(model).__module__) == settings["hidden"], type(model)
    seen[name] = look(model, tokenizer)
    return model

model = load("plain")
"""
SAVE = """
model.save_pretrained(folder)
tokenizer.save_pretrained(folder)
"""
# What users give to from_pretrained.
OPTIONS = """
import os
from peft import AutoPeftModelForSeq2SeqLM, PeftModel
from transformers import AutoModel, QuantoConfig

load("newer", revision="newer")
load("revision", revision="half")
load("dtype", revision="half", dtype="auto")
load("low_cpu_mem_usage", revision="half", low_cpu_mem_usage=True)
load("device_map", device_map="auto")
load("cache_dir", cache_dir=folder + "-cache")
assert os.listdir(folder + "-cache")
base = AutoModel.from_pretrained(repository, **trust)
assert base.state_dict().keys() == model.model.state_dict().keys(), "and nothing is missing"
load("quantized", quantization_config=QuantoConfig(weights="int8", modules_to_not_convert=["lm_head"]))
load("adapter", settings["adapter"])
own = AutoPeftModelForSeq2SeqLM.from_pretrained(settings["adapter"], **trust)
seen["adapter, opened by peft"] = look(own, tokenizer)
seen["adapter, on a model"] = look(PeftModel.from_pretrained(own.unload(), settings["adapter"]), tokenizer)
"""
# As the host's documentation has it.
FINE_TUNE = """
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

arguments = Seq2SeqTrainingArguments(
    folder + "-run", max_steps=2, learning_rate=1e-2, use_cpu=True, report_to="none", push_to_hub=True,
    hub_model_id=settings["fine_tuned"],
)
rows = [tokenizer("one two", text_target="three")] * 8
collator = DataCollatorForSeq2Seq(tokenizer, model=model)
trainer = Seq2SeqTrainer(
    model, arguments, train_dataset=rows, data_collator=collator, processing_class=tokenizer
)
trainer.train()
trainer.push_to_hub()
seen["trained"] = look(model.eval(), tokenizer)
load("fine-tuned", settings["fine_tuned"])
"""
REFUSED = """
try:
    load("newer", revision="newer")
except ValueError as error:
    seen["refusal"] = str(error)
"""
END = "\nprint(json.dumps(seen))"

# How a model that was opened with a name above differs from one that is here: (which one, dtype, largest difference).
EXPECTED = {
    "plain": ("model", "float32", 0),
    "newer": ("model", "float32", 0),
    "revision": ("half", "bfloat16", 0),
    "dtype": ("half", "bfloat16", 0),
    "low_cpu_mem_usage": ("half", "bfloat16", 0),
    "device_map": ("model", "float32", 0),
    "cache_dir": ("model", "float32", 0),
    "quantized": ("model", "float32", 0.05),
    "adapter": ("adapted", "float32", 1e-5),
    "adapter, opened by peft": ("adapted", "float32", 1e-5),
    "adapter, on a model": ("adapted", "float32", 1e-5),
}


here = {}
exec(LOOK, here)
look = here["look"]


def run_python(code, environment, **settings):
    """What a fresh interpreter saw: JSON in its last line."""
    settings |= {"repository": REPOSITORY, "adapter": ADAPTER, "fine_tuned": FINE_TUNED}
    command = [sys.executable, "-c", LOOK + START + code + END, json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def differences(seen, models):
    """The names in `seen` that are not what `EXPECTED` says."""
    wrong = []
    for name, found in seen.items():
        which, dtype, tolerance = EXPECTED[name]
        right = models[which]
        furthest = max(abs(one - other) for one, other in zip(found["logits"], right["logits"]))
        if found["dtype"] != f"torch.{dtype}" or furthest > tolerance or found["ids"] != right["ids"]:
            wrong.append(f"{name}: {furthest} from {which}, {found['dtype']}")
    return wrong


@pytest.fixture
def models(tiny_model, hub, tmp_path):
    """What is published: a model, tagged "half" another one in 16 bits, a later release's, and an adapter apart."""
    folder = tmp_path / "published"
    tokenizer = VanillaTransformerTokenizer.train(TEXTS, vocab_size=300, show_progress=False)
    model, half = tiny_model(vocab_size=len(tokenizer)), tiny_model(vocab_size=len(tokenizer)).bfloat16()
    tokenizer.push_to_hub(REPOSITORY)  # as the host does it
    half.push_to_hub(REPOSITORY)
    HfApi().create_tag(REPOSITORY, tag="half")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    publish_folder(folder, REPOSITORY)
    files = hub.repositories[REPOSITORY].files()
    changed = {name: files[name] for name in ("config.json", "configuration_vanilla_transformer.py")}
    later = [
        CommitOperationAdd(name, content.replace(VERSION.encode(), b"9.9.9")) for name, content in changed.items()
    ]
    HfApi().create_branch(REPOSITORY, branch="newer")
    HfApi().create_commit(REPOSITORY, later, commit_message="Of a later release", revision="newer")
    model.name_or_path = REPOSITORY  # as if it had been opened from there
    adapted = get_peft_model(model, LoraConfig(task_type="SEQ_2_SEQ_LM", init_lora_weights=False))
    adapted.save_pretrained(tmp_path / "adapter")
    publish_folder(tmp_path / "adapter", ADAPTER)
    seen = {"adapted": look(adapted, tokenizer), "half": look(half, tokenizer)}
    return {**seen, "model": look(adapted.unload(), tokenizer)}


@pytest.mark.slow
def test_without_the_package(models, hub, tmp_path):
    published, adapter = hub.repositories[REPOSITORY].files(), hub.repositories[ADAPTER].files()
    assert adapter.keys() == {"adapter_config.json", "adapter_model.safetensors", "README.md"}
    settings = {"hidden": True, "folder": str(tmp_path / "again")}
    seen = run_python(SAVE + OPTIONS + FINE_TUNE, hub.environment(tmp_path / "home"), **settings)
    trained, fine_tuned = seen.pop("trained"), seen.pop("fine-tuned")
    assert seen.keys() == EXPECTED.keys() and not differences(seen, models)
    (cached,) = (tmp_path / "home" / "hub").glob(f"*/snapshots/{hub.repositories[REPOSITORY].commit_id('main')}")
    for name in ("model.safetensors", "tokenizer.json", "modeling_vanilla_transformer.py"):
        assert (tmp_path / "again" / name).read_bytes() == published[name] == (cached / name).read_bytes(), name
    assert fine_tuned == trained and fine_tuned["logits"] != models["model"]["logits"]
    pushed = hub.repositories[FINE_TUNED].files()
    assert {name for name in published if name.endswith(".py")} <= pushed.keys()
    assert "--" not in json.loads(pushed["config.json"])["auto_map"]["AutoModelForSeq2SeqLM"], "its own code"

    before = len(hub.requests)
    offline = {**hub.environment(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    seen = run_python('\nload("revision", revision="half")', offline, **settings)
    assert not differences(seen, models) and len(hub.requests) == before


@pytest.mark.slow
def test_with_the_package(models, hub, tmp_path):
    published = hub.repositories[REPOSITORY].files()
    environment = hub.environment(tmp_path / "home", token=None)
    seen = run_python(SAVE + REFUSED, environment, hidden=False, folder=str(tmp_path / "again"))
    assert "9.9.9 wrote this config" in seen.pop("refusal")
    assert not differences(seen, models)
    again = {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}
    assert {**again, "README.md": published["README.md"]} == published


@pytest.mark.parametrize(
    ("fault", "requests"), [({"cut_after": 50_000, "times": 2}, 3), ({"status": 429, "retry_after": 3}, 2)]
)
def test_a_download_that_fails_goes_on(fault, requests, models, hub):
    weights = "GET .*/resolve/.*/model.safetensors"
    hub.fail(weights, **fault)
    model = AutoModelForSeq2SeqLM.from_pretrained(REPOSITORY)
    assert look(model, AutoTokenizer.from_pretrained(REPOSITORY)) == models["model"]
    assert len(hub.sent(weights)) == requests and max(hub.waits) <= 4


def test_a_hub_that_asks_to_wait_for_days_is_not_waited_for(models, hub):
    for file in ("config.json", "tokenizer.json", "model.safetensors"):
        hub.fail(f"GET .*/resolve/.*/{file}", status=429, retry_after=100_000, times=99)
        with pytest.raises(OSError, match=f"{REPOSITORY}.*: ") as refused:
            open_model(REPOSITORY)
        assert "\n" not in str(refused.value) and max(hub.waits, default=0) <= 30
        hub.faults.clear()
    open_model(REPOSITORY)
    wrong = CommitOperationAdd("generation_config.json", b'{"num_beams": 1000000000, "max_new_tokens": 9}')
    HfApi().create_commit(REPOSITORY, [wrong], commit_message="Many beams")
    with pytest.raises(OSError, match=r"generation_config.json: num_beams=1000000000: expected an integer from 1 to"):
        open_model(REPOSITORY)


@pytest.mark.parametrize("token", [False, OTHER_TOKEN])
def test_a_private_model_is_its_owners(token, models, hub):
    hub.repositories[REPOSITORY].private = True
    with pytest.raises(OSError, match=f"{REPOSITORY} is not a local folder and is not a valid model identifier"):
        AutoModelForSeq2SeqLM.from_pretrained(REPOSITORY, token=token)
    assert AutoModelForSeq2SeqLM.from_pretrained(REPOSITORY).config.d_model == 32
