"""What of a folder is published: every file that is, every kind that is not, and what is refused before it is sent."""

import hashlib
import json

import pytest
import torch
from huggingface_hub import ModelCard
from peft import LoraConfig, get_peft_model
from pictures import png
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSeq2SeqLM
from travelling_code import CODE, MODEL_CODE

import vanilla_transformer_hf
from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.model.saving.bundle import join_modules
from vanilla_transformer_hf.publishing.model_card import CardFacts, write_card
from vanilla_transformer_hf.publishing.upload_plan import plan_upload
from vanilla_transformer_hf.training.checkpoints.files import resumable_files


NAME = "someone/numbers"


@pytest.fixture
def folder(tiny_model, tmp_path):
    """A folder as training leaves it: a model, its card, curves, and what the training needed."""
    folder = tmp_path / "model"
    tokenizer = VanillaTransformerTokenizer.train(
        ["one two"], ["eins"], vocab_size=270, src_lang="en", tgt_lang="de", show_progress=False
    )
    tiny_model(vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "training_curves.png").write_bytes(png())
    write_card(CardFacts(name="model", corpus="number words", settings={"dropout": 0.3}), folder)
    return folder


def contents(plan):
    """Name -> bytes of every file that is published."""
    return {
        file.name: file.source if isinstance(file.source, bytes) else file.source.read_bytes() for file in plan.files
    }


def snapshot(folder):
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def change_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes, indent=2, sort_keys=True) + "\n")


def test_what_is_published_is_the_model(folder):
    before = snapshot(folder)
    published = contents(plan_upload(folder, NAME))
    assert published.keys() == CODE | {
        *("README.md", "config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json", "training_curves.png"),
    }
    assert {name for name, data in published.items() if (folder / name).read_bytes() != data} == {"README.md"}
    config = json.loads(published["config.json"])
    assert config["auto_map"].keys() == {"AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM"}
    assert config["vanilla_transformer_hf_version"] == vanilla_transformer_hf.__version__
    assert config["model_type"] == "vanilla_transformer"
    assert snapshot(folder) == before, "nothing is written"


@pytest.mark.parametrize(
    "name, why",
    [
        ("training_args.bin", "a pickle, which may contain a token"),
        ("optimizer.pt", "state of the optimizer"),
        ("optimizer_0.bin", "state of the optimizer"),
        ("scheduler.pt", "state of the schedule"),
        ("rng_state.pth", "state of the random numbers"),
        ("moving_average.safetensors", "state of the moving average"),
        ("trainer_state.json", "log of the training"),
        ("predictions.test.tsv", "held-out text"),
        ("card_facts.json", "what the card is written from"),
        ("pytorch_model.bin", "a pickle"),
        ("thoughts.pkl", "a pickle"),
        ("other.png", "a picture that the card does not show"),
        (".env", "hidden"),
        ("notes.txt", "no part of the model"),
        ("own_script.py", "code that the model does not import"),
        ("checkpoints/", "a folder"),
    ],
)
def test_the_rest_is_left_out(name, why, folder):
    (folder / name).mkdir() if name.endswith("/") else (folder / name).touch()
    if name == "card_facts.json":
        CardFacts().write(folder)
    plan = plan_upload(folder, NAME)
    assert plan.left_out[name].startswith(why)
    assert name not in contents(plan)
    assert name in str(plan) and why in str(plan)


def test_configs_do_not_tell_where_they_were_written(folder):
    change_json(folder / "config.json", _name_or_path="/home/somebody/base", use_cache=False)
    change_json(folder / "tokenizer_config.json", name_or_path="/home/somebody/tokenizer")
    auto_map = {"AutoConfig": "a/b--configuration_vanilla_transformer.VanillaTransformerConfig"}
    change_json(folder / "config.json", auto_map=auto_map)
    published = contents(plan_upload(folder, NAME))
    assert not any(b"/home/" in data for data in published.values())
    config = json.loads(published["config.json"])
    assert config["use_cache"] is True, "off only while the host's Trainer trains"
    assert config["auto_map"] == {
        "AutoConfig": "configuration_vanilla_transformer.VanillaTransformerConfig",
        "AutoModel": "modeling_vanilla_transformer.VanillaTransformerModel",
        "AutoModelForSeq2SeqLM": "modeling_vanilla_transformer.VanillaTransformerForConditionalGeneration",
    }


def test_code_that_is_missing_is_the_package_s(folder):
    for path in folder.glob("*.py"):
        path.unlink()
    change_json(folder / "config.json", auto_map=None)
    published = contents(plan_upload(folder, NAME))
    assert published.keys() > CODE
    model = ("modeling_vanilla_transformer", "pipeline_vanilla_transformer")
    for modules in (model, ("tokenization_vanilla_transformer",)):
        assert all(published[name] == text.encode() for name, text in join_modules(modules).items())


def test_code_is_found_by_its_imports(folder):
    modeling = folder / "modeling_vanilla_transformer.py"
    modeling.write_text(modeling.read_text() + "\nfrom .own_layers import OwnLayer\n")
    (folder / "own_layers.py").write_text("from .own_table import TABLE\n\nOwnLayer = TABLE\n")
    (folder / "own_table.py").write_text("try:\n    import something_rare\nexcept ImportError:\n    TABLE = {}\n")
    published = contents(plan_upload(folder, NAME))
    assert published.keys() >= CODE | {"own_layers.py", "own_table.py"}
    assert published["modeling_vanilla_transformer.py"] == modeling.read_bytes()


@pytest.mark.parametrize(
    "line, problem",
    [
        ("import sacrebleu", "modeling_vanilla_transformer.py imports sacrebleu, which others may not have"),
        ("def f():\n    import sacrebleu", "imports sacrebleu, which others may not have"),
        ("from vanilla_transformer_hf.training.data.corpus import x", "imports vanilla_transformer_hf itself"),
        ("from .conversion.flow import x", "imports .conversion.flow: only files beside it travel"),
        ("from ..above import x", "imports from a folder above it"),
        ("from . import layers_vanilla_transformer", "`from . import layers_vanilla_transformer` does not bring the"),
        ("def broken(:", "is not Python code"),
    ],
)
def test_code_that_others_could_not_import_is_refused(line, problem, folder):
    path = folder / "modeling_vanilla_transformer.py"
    path.write_text(f"{path.read_text()}\n{line}\n")
    with pytest.raises(ValueError, match="cannot be published") as caught:
        plan_upload(folder, NAME)
    assert problem in str(caught.value)


def resize(tensors):
    tensors["model.encoder.layers.0.fc1.bias"] = torch.zeros(3)


def poison(value):
    def change(tensors):
        tensors["model.encoder.layers.1.fc1.weight"][3, 5] = value

    return change


@pytest.mark.parametrize(
    "change, problem",
    [
        (lambda tensors: tensors.pop("model.encoder.layers.0.fc1.bias"), "lack model.encoder.layers.0.fc1.bias"),
        (lambda tensors: tensors.update(extra=torch.zeros(1)), "hold extra, which the model has not"),
        (
            lambda tensors: tensors.update({"lm_head.weight": torch.zeros(1)}),
            "hold lm_head.weight a second time, tied",
        ),
        (poison(float("nan")), "model.encoder.layers.1.fc1.weight holds NaN or infinite values"),
        (poison(float("-inf")), "model.encoder.layers.1.fc1.weight holds NaN or infinite values"),
        (resize, r"model.encoder.layers.0.fc1.bias has the shape \[3\] instead of \[64\]"),
    ],
)
def test_weights_have_to_be_those_of_the_config(change, problem, folder):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=problem):
        plan_upload(folder, NAME)


def test_other_refusals(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no config.json there"):
        plan_upload(tmp_path, NAME)
    change_json(folder / "generation_config.json", num_beams=1, length_penalty=0.6, early_stopping=True)
    (folder / "README.md").write_text(f"---\nlicense: CC BY\n---\nTrained in {tmp_path}/data with hf_{'x' * 34}\n")
    with pytest.raises(ValueError, match="cannot be published") as caught:
        plan_upload(folder, NAME)
    for problem in (
        "generation_config.json is not valid",
        "license='CC BY'",
        "README.md, line 6: contains an absolute path",
        "README.md, line 6: contains a secret (Hugging Face token)",
    ):
        assert problem in str(caught.value), problem
    change_json(folder / "generation_config.json", num_beams=2, length_penalty_type="gmnt")
    with pytest.raises(ValueError, match=r"generation_config.json is not valid \(length_penalty_type='gmnt'"):
        plan_upload(folder, NAME)
    with pytest.raises(ValueError, match="'me/x y': must be owner/name"):
        plan_upload(folder, "me/x y")
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match=r"model.safetensors is damaged or incomplete"):
        plan_upload(folder, NAME)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="only weights in safetensors are read"):
        plan_upload(folder, NAME)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}})
    )
    with pytest.raises(FileNotFoundError, match=r"no model-00001-of-00002.safetensors there"):
        plan_upload(folder, NAME)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_outside_the_folder_is_not_published(file, folder):
    (folder.parent / "outside.py").write_text("secret = 1")
    outside = f"{folder.parent}/outside"
    change_json(folder / file, auto_map={"AutoTokenizer": [f"{outside}.Tokenizer", None]})
    with pytest.raises(ValueError, match=f"auto_map names '{outside}', which is not a file beside the model"):
        plan_upload(folder)


def test_the_card_is_written_with_what_is_stated(folder):
    plan = plan_upload(folder, NAME, license="cc-by-4.0", datasets=["someone/pairs"])
    data = ModelCard(plan.card).data
    assert (data.license, data.datasets, data.language) == ("cc-by-4.0", ["someone/pairs"], ["en", "de"])
    assert f'name = "{NAME}"' in plan.card and "| dropout | 0.3 |" in plan.card
    assert plan.missing == ["Scores: no held-out text was scored."]
    assert plan_upload(folder, NAME).missing[0].startswith("Licence:")
    assert plan.card.rstrip() in str(plan)
    with pytest.raises(TypeError, match="licence"):
        plan_upload(folder, NAME, licence="cc-by-4.0")


def test_a_card_of_another_version_is_written_anew(folder):
    path, facts = folder / "README.md", folder / "card_facts.json"
    path.write_text("# As it was once\n")
    change_json(facts, card_sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    assert f'name = "{NAME}"' in plan_upload(folder, NAME).card


def test_a_card_that_somebody_edited_stays(folder):
    path = folder / "README.md"
    path.write_text(path.read_text(encoding="utf-8").replace("# model", "# My model, with notes"), encoding="utf-8")
    plan = plan_upload(folder, NAME, license="cc-by-4.0", source_lang="en", target_lang="fr")
    card = ModelCard(plan.card)
    assert card.text == ModelCard(path.read_text(encoding="utf-8")).text
    assert (card.data.license, card.data.language) == ("cc-by-4.0", ["en", "fr"])
    stated = plan_upload(folder, NAME, corpus="words", example="one")
    assert not {"corpus", "example"} & ModelCard(stated.card).data.to_dict().keys()
    assert not any(sentence.startswith("Training data") for sentence in stated.missing)
    (folder / "card_facts.json").unlink()
    path.write_text("# Only a title\n")
    plan = plan_upload(folder, NAME)
    assert ModelCard(plan.card).data.pipeline_tag == "translation" and "# Only a title" in plan.card
    assert [sentence.split(":")[0] for sentence in plan.missing] == ["Licence", "Languages", "Training data", "Scores"]


def test_a_base_model_is_published_too(tiny_model, tmp_path):
    tiny_model().model.save_pretrained(tmp_path)
    published = contents(plan_upload(tmp_path, NAME))
    assert published.keys() == MODEL_CODE | {*("README.md", "config.json", "model.safetensors")}
    assert type(AutoModel.from_pretrained(tmp_path)).__name__ == "VanillaTransformerModel"


def test_an_adapter_is_published_apart_from_its_base(folder, tmp_path):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    adapter = tmp_path / "adapter"
    get_peft_model(model, LoraConfig(task_type="SEQ_2_SEQ_LM")).save_pretrained(adapter)
    with pytest.raises(ValueError, match="which is not an id on the Hub: give base_model"):
        plan_upload(adapter, NAME)
    plan = plan_upload(adapter, NAME, base_model="someone/base", license="cc0-1.0")
    published = contents(plan)
    assert published.keys() == {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    assert json.loads(published["adapter_config.json"])["base_model_name_or_path"] == "someone/base"
    data = ModelCard(plan.card).data
    assert (data.base_model, data.base_model_relation, data.library_name) == ("someone/base", "adapter", "peft")
    assert not any(str(tmp_path).encode() in data for data in published.values())
    (adapter / "README.md").unlink()
    assert "# Adapter of someone/base" in plan_upload(adapter, NAME, base_model="someone/base").card
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"no adapter_model.safetensors there"):
        plan_upload(adapter, NAME, base_model="someone/base")


def test_a_checkpoint_to_continue_from(folder):
    checkpoint = folder / "checkpoint-2"
    checkpoint.mkdir()
    for name in ("model.safetensors", "optimizer.pt", "training_args.bin"):
        (checkpoint / name).touch()
    (checkpoint / "trainer_state.json").touch()
    files = resumable_files(checkpoint, "last-checkpoint")
    assert files.keys() == {
        f"last-checkpoint/{name}" for name in ("model.safetensors", "optimizer.pt", "trainer_state.json")
    }
    assert files["last-checkpoint/trainer_state.json"] == checkpoint / "trainer_state.json"


@pytest.mark.parametrize(
    "options, status, shown",
    [
        (["--license", "cc-by-4.0"], 0, "license: cc-by-4.0"),
        (["--datasets", "a/b", "c/d", "--example", "one"], 0, "datasets:\n- a/b\n- c/d\n"),
        (["--strict"], 2, "missing in the card:\n  Licence:"),
        (["--license", "CC BY"], 2, ""),
        (["--project_url", "https://example.org/a/b"], 0, '"vanilla_transformer_hf @ git+https://example.org/a/b"'),
        (["--project_url", "nowhere"], 2, ""),
    ],
)
def test_the_script_passes_on_what_is_stated(options, status, shown, folder, tmp_path, monkeypatch, script):
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    code, out, err = script("push_to_hub.py", folder, NAME, *options)
    assert code == status and shown in out
    assert ("This was a dry run: no Hub token was found" in out) == (status == 0)
    assert ("\npush_to_hub.py: " in f"\n{err}") == (status != 0)
