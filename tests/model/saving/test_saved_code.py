"""What of code is written beside a config, a tokenizer or a model that is saved or pushed, and by whom."""

import copy
import json
import os
import subprocess
import sys

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
from travelling_code import CODE, MODEL_CODE

from vanilla_transformer_hf import (
    Int8Config,
    RecurrentSeq2SeqConfig,
    RecurrentSeq2SeqForConditionalGeneration,
    TranslationPipeline,
    VanillaTransformerConfig,
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForMaskedLM,
    VanillaTransformerTokenizer,
)
from vanilla_transformer_hf.model.saving.bundle import join_modules, modules_in
from vanilla_transformer_hf.publishing.upload_plan import plan_upload


def code_in(folder):
    """The files of code in a folder, each as it should be."""
    hidden = [path.name for path in folder.iterdir() if path.name.startswith(".")]
    assert not hidden, "what is unfinished is renamed"
    found = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
    for name, text in found.items():
        assert join_modules(modules_in(text))[name] == text
    return found.keys()


@pytest.fixture
def tokenizer():
    return VanillaTransformerTokenizer.train(["one two three"], vocab_size=280, show_progress=False)


def test_each_brings_its_own_files(tiny_config, tiny_model, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    assert code_in(tmp_path / "tokenizer") == {"tokenization_vanilla_transformer.py"}
    for config in (tiny_config(), RecurrentSeq2SeqConfig(vocab_size=9, d_model=8)):
        config.save_pretrained(tmp_path / "config")
        assert code_in(tmp_path / "config") == {"configuration_vanilla_transformer.py"}
        stated = json.loads((tmp_path / "config" / "config.json").read_text())["auto_map"]
        assert stated == {"AutoConfig": f"configuration_vanilla_transformer.{type(config).__name__}"}
    tiny_model().save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    assert code_in(tmp_path / "model") == CODE


PIPELINE = """
import json, sys
sys.modules["vanilla_transformer_hf"] = None  # as if it were not installed
from transformers import pipeline
translate = pipeline("translation", model=sys.argv[1], trust_remote_code=True)
found = [translate("one two"), translate(["three", "one"], batch_size=2, num_beams=2, num_return_sequences=2)]
translate.save_pretrained(sys.argv[2])
found.append(pipeline("translation", model=sys.argv[2], trust_remote_code=True)("one two"))
print(json.dumps(found))
"""


@pytest.mark.slow
def test_the_translation_pipeline_travels(counting_folder, hub, tmp_path):
    """As a folder of the Hub: pushed, and opened in a process without the package."""
    model = AutoModelForSeq2SeqLM.from_pretrained(counting_folder)
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(counting_folder).save_pretrained(tmp_path / "model")
    planned = plan_upload(tmp_path / "model").files
    assert "pipeline_vanilla_transformer.py" in [each.name for each in planned]
    for each in (model, AutoTokenizer.from_pretrained(counting_folder)):
        each.push_to_hub("someone/pipeline")
    arguments = [sys.executable, "-c", PIPELINE, "someone/pipeline", str(tmp_path / "again")]
    environment = hub.environment(tmp_path / "home")
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    one, several, again = json.loads(done.stdout.splitlines()[-1])
    ours = pipeline("translation", model=str(tmp_path / "model"))  # with the package, no code of the folder is needed
    assert type(ours) is TranslationPipeline
    assert one == again == ours("one two")
    assert [len(texts) for texts in several] == [2, 2]
    assert [texts[0] for texts in several] == [ours(text)[0] for text in ("three", "one")]


def kinds(tiny_config):
    """Models of every kind, by their names."""
    yield "decoder", VanillaTransformerForCausalLM(tiny_config())
    yield "encoder", VanillaTransformerForMaskedLM(tiny_config())
    yield "whole", VanillaTransformerForConditionalGeneration(tiny_config())
    yield "recurrent", RecurrentSeq2SeqForConditionalGeneration(RecurrentSeq2SeqConfig(vocab_size=99, d_model=16))
    adapter = LoraConfig(task_type="SEQ_2_SEQ_LM", init_lora_weights=False)
    yield (
        "merged",
        get_peft_model(VanillaTransformerForConditionalGeneration(tiny_config()), adapter).merge_and_unload(),
    )


OPEN = """
import copy, inspect, json, pickle, sys
from pathlib import Path
sys.modules["vanilla_transformer_hf"] = None
import torch
import transformers
root = Path(sys.argv[1])
for folder in sorted(root.iterdir()):
    entries = json.loads((folder / "config.json").read_text())["auto_map"]
    for auto in [name for name in entries if name != "AutoConfig"]:
        model = getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True)
        assert type(model).__name__ == entries[auto].split(".")[1], (folder, auto)
        assert type(model).__module__.endswith(".modeling_vanilla_transformer")
        if auto in ("AutoModelForSeq2SeqLM", "AutoModelForCausalLM", "AutoModelForMaskedLM"):
            model.save_pretrained(sys.argv[2] + "/" + folder.name)
        if model.can_generate():
            print(folder.name, model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=3)[0].tolist(), sep="\\t")
        if sys.argv[3:] != ["looked into"]:
            continue
        # What debuggers, pickles and compilers ask of a class.
        model.eval()
        assert inspect.getsource(type(model)).startswith(f"class {type(model).__name__}(")
        batch = {"input_ids": torch.tensor([[5, 6, 7]])}
        if "decoder_input_ids" in inspect.signature(model.forward).parameters:
            batch["decoder_input_ids"] = torch.tensor([[1, 8]])
        expected = model(**batch)[0]
        for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert type(same) is type(model) and torch.equal(same(**batch)[0], expected)
        if folder.name != "recurrent":  # an LSTM breaks the graph
            torch.compiler.reset()  # the wrappers of transformers around all these models are the same functions
            compiled = torch.compile(model, fullgraph=True, backend="eager")
            torch.testing.assert_close(compiled(**batch)[0], expected)
"""


def run_hidden(code, *arguments, home):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(home), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_kind_opens_without_the_package_and_is_saved_again_to_the_byte(tiny_config, tmp_path):
    expected = {}
    for name, model in kinds(tiny_config):
        model.eval().save_pretrained(tmp_path / "saved" / name)
        wanted = {each for each in MODEL_CODE if name not in ("decoder", "encoder") or "pipeline" not in each}
        assert code_in(tmp_path / "saved" / name) == wanted
        if model.can_generate():
            expected[name] = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=3)[0].tolist()
    for path in (tmp_path / "saved").rglob("*"):
        path.chmod(0o555)  # as on a medium that nobody can write to
    out = run_hidden(OPEN, tmp_path / "saved", tmp_path / "again", "looked into", home=tmp_path / "home")
    found = dict(line.split("\t") for line in out.splitlines() if "\t" in line)
    assert {name: json.loads(ids) for name, ids in found.items()} == expected
    for name in ("decoder", "encoder", "whole", "recurrent", "merged"):
        files = {path.name: path.read_bytes() for path in (tmp_path / "saved" / name).iterdir()}
        assert {path.name: path.read_bytes() for path in (tmp_path / "again" / name).iterdir()} == files
    for path in (tmp_path / "saved").rglob("*"):
        path.chmod(0o755)


def test_an_adapter_of_peft_brings_no_code_and_names_a_module_that_stays(tiny_model, tmp_path):
    base = tiny_model()
    adapter = LoraConfig(task_type="SEQ_2_SEQ_LM", init_lora_weights=False)
    tuned = get_peft_model(copy.deepcopy(base), adapter).eval()
    tuned.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py"))
    named = json.loads((tmp_path / "adapter_config.json").read_text())["auto_mapping"]
    module = "vanilla_transformer_hf.model.modeling_vanilla_transformer"  # adapters of others name it: it stays
    assert named in (None, {"base_model_class": type(base).__name__, "parent_library": module})
    ids = torch.tensor([[5, 6, 7]])
    opened = PeftModel.from_pretrained(base, tmp_path).eval()
    assert torch.equal(opened(ids, labels=ids).logits, tuned(ids, labels=ids).logits)


def test_only_the_rank_that_saves_writes(tiny_model, tmp_path, monkeypatch):
    model = tiny_model()
    model.save_pretrained(tmp_path / "other", is_main_process=False)
    model.save_pretrained(tmp_path / "other", False)
    assert not list((tmp_path / "other").glob("*.py")) and not (tmp_path / "other" / "config.json").exists()
    # With tensor parallelism and FSDP2 each rank is the main one of its call, and one saves.
    monkeypatch.setattr(model, "should_save_on_this_rank", lambda is_main_process=True: False)
    model.save_pretrained(tmp_path / "other")
    assert not list((tmp_path / "other").glob("*.py"))


def test_a_class_that_fsdp_makes_of_ours_is_ours(tiny_model, tmp_path):
    model = tiny_model()
    attributes = {"__module__": "torch.distributed.fsdp._fully_shard._fully_shard"}
    model.__class__ = type(f"FSDP{type(model).__name__}", (type(model),), attributes)
    model.save_pretrained(tmp_path)
    assert code_in(tmp_path) == MODEL_CODE


def test_a_class_of_others_is_not_passed_off_as_ours(tiny_config, tmp_path):
    class Changed(VanillaTransformerForConditionalGeneration):
        pass

    Changed(tiny_config()).save_pretrained(tmp_path)
    assert code_in(tmp_path) == {"configuration_vanilla_transformer.py"}
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"].keys() == {"AutoConfig"}


def test_a_file_in_the_way_stays(tiny_model, tokenizer, tmp_path):
    (tmp_path / "file").write_text("mine")
    tiny_model().save_pretrained(tmp_path / "file")
    tokenizer.save_pretrained(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_what_is_pushed_has_its_code(tiny_model, tokenizer, hub, tmp_path):
    model = tiny_model()
    ways = {
        "saved": lambda one, name: one.save_pretrained(tmp_path / name, push_to_hub=True, repo_id=f"someone/{name}"),
        "pushed": lambda one, name: one.push_to_hub(f"someone/{name}"),
    }
    for way, push in ways.items():
        for kind, one in (("model", model), ("tokenizer", tokenizer)):
            push(one, f"{way}-{kind}")
            pushed = hub.repositories[f"someone/{way}-{kind}"].files()
            code = {name: content.decode() for name, content in pushed.items() if name.endswith(".py")}
            names = ["modeling", "pipeline"] if kind == "model" else ["tokenization"]
            assert code == join_modules(tuple(f"{name}_vanilla_transformer" for name in names))


def test_a_config_names_the_classes_of_its_own_stack(tiny_config, tmp_path):
    former = {
        "AutoConfig": "someone/numbers--configuration_vanilla_transformer.VanillaTransformerConfig",
        "AutoModel": "modeling_vanilla_transformer.VanillaTransformerDecoderModel",
        "AutoModelForCausalLM": "modeling_vanilla_transformer.VanillaTransformerForCausalLM",
        "AutoModelForMaskedLM": "modeling_vanilla_transformer.VanillaTransformerForMaskedLM",
        "AutoModelForAnything": "mine.Model",
    }
    VanillaTransformerForCausalLM(tiny_config(auto_map=former)).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"] == {
        "AutoConfig": "configuration_vanilla_transformer.VanillaTransformerConfig",
        "AutoModel": "modeling_vanilla_transformer.VanillaTransformerDecoderModel",
        "AutoModelForCausalLM": "modeling_vanilla_transformer.VanillaTransformerForCausalLM",
        "AutoModelForAnything": "mine.Model",
    }


VARIANTS = {
    "plain": ({}, {"modeling_vanilla_transformer"}),
    "windows": (
        {"encoder_attention_type": "window", "attention_window": 2, "position_encoding": "alibi"},
        {"modeling_vanilla_transformer", "attention.local", "attention.kernel_masks", "attention.kernel_checks"}
        | {"positions.relative"},
    ),
    "linformer": (
        {"cross_attention_type": "linformer", "max_position_embeddings": 9},
        {"modeling_vanilla_transformer", "attention.linformer", "attention.kernel_checks"},
    ),
    "pooling": ({"encoder_pooling": [1]}, {"modeling_vanilla_transformer", "attention.pooling"}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_what_travels_is_what_the_config_needs(name, tiny_model, tmp_path):
    fields, modules = VARIANTS[name]
    tiny_model(**fields).save_pretrained(tmp_path)
    code = (tmp_path / "modeling_vanilla_transformer.py").read_text(encoding="utf-8")
    assert {*modules_in(code)} == modules | {"pipeline_vanilla_transformer"}


@pytest.mark.slow
def test_the_quantizer_travels_with_a_model_in_int8(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path / "plain")
    assert "Int8Quantizer" not in (tmp_path / "plain" / "generation_vanilla_transformer.py").read_text()
    kind = VanillaTransformerForConditionalGeneration
    model = kind.from_pretrained(tmp_path / "plain", quantization_config=Int8Config()).eval()
    model.save_pretrained(tmp_path / "saved" / "int8")
    out = run_hidden(OPEN, tmp_path / "saved", tmp_path / "again", home=tmp_path / "home")
    ids = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=3)[0].tolist()
    assert out.splitlines()[-1] == f"int8\t{ids}"
    again = kind.from_pretrained(tmp_path / "again" / "int8")
    assert again.quantization_method == model.quantization_method
    for path in (tmp_path / "saved" / "int8").iterdir():
        assert (tmp_path / "again" / "int8" / path.name).read_bytes() == path.read_bytes(), path.name


LACKS = """
import sys
sys.modules["vanilla_transformer_hf"] = None
from transformers import AutoModelForSeq2SeqLM
try:
    AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1], trust_remote_code=True)
except ValueError as error:
    print(error)
"""


def test_a_config_changed_to_what_the_folder_lacks_names_the_package(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["encoder_attention_type"] = "performer"
    (tmp_path / "config.json").write_text(json.dumps(config))
    message = run_hidden(LACKS, tmp_path, home=tmp_path / "home").splitlines()[-1]
    assert message == (
        "encoder_attention_type='performer': the code of this folder lacks it; install vanilla_transformer_hf, which "
        "has all of it"
    )


ASKS = """
import sys
sys.modules["vanilla_transformer_hf"] = None
import torch
from transformers import AutoModelForSeq2SeqLM
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1], trust_remote_code=True)
ids = torch.tensor([[5, 6, 7]])
for options in (
    {"prefixes": [[5]]},
    {"required_phrases": [[[5]]], "num_beams": 2},
    {"shortlist": [5, 6]},
    {"ensemble": [model]},
    {"num_beams": 2, "num_beam_groups": 2, "diversity_penalty": 1.0},
    {"quantization": "int8"},
):
    try:
        print(model.generate(ids, max_new_tokens=3, **options))
    except ValueError as error:
        print(error)
for ask in (
    lambda: [*model.generate_stream([{"input_ids": ids}])],
    lambda: model.train()(ids, labels=ids, return_logits=False),
    lambda: type(model.config).from_preset("big"),
):
    try:
        print(ask())
    except ValueError as error:
        print(error)
found = model.eval().generate(ids, max_new_tokens=3, num_beams=2, do_sample=True)
print(len(found), model(ids, labels=ids).loss > 0)
"""


@pytest.mark.slow
def test_what_a_call_asks_and_the_folder_lacks_names_the_package(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    *lines, works = run_hidden(ASKS, tmp_path, home=tmp_path / "home").splitlines()
    asked = ["prefixes", "required_phrases", "shortlist", "ensemble", "num_beam_groups", "'int8'"]
    asked += ["generate_stream()", "return_logits=False", "presets"]
    lacks = "the code of this folder lacks it; install vanilla_transformer_hf, which has all of it"
    assert lines == [f"{each}: {lacks}" for each in asked]
    assert works == "1 tensor(True)"


def test_what_a_generation_config_asks_of_each_call_travels(tiny_model):
    model = tiny_model()
    assert "search.together" not in model.modules_that_travel
    model.generation_config.num_beam_groups = 2
    assert "search.together" in model.modules_that_travel


def test_a_saved_folder_opens_with_the_package_too(tiny_model, tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    assert type(AutoModelForSeq2SeqLM.from_pretrained(tmp_path)) is type(model)
    assert type(AutoConfig.from_pretrained(tmp_path)) is type(model.config)


def test_a_config_saved_over_that_of_a_model_leaves_its_folder_whole(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.py")}
    VanillaTransformerConfig.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.py")} == before
