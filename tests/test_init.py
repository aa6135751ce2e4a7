"""Registration with transformers: in every order of imports, and in saved folders without the package."""

import ast
import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import vanilla_transformer_hf
from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerModel, VanillaTransformerTokenizer


PACKAGE = Path(vanilla_transformer_hf.__file__).parent


def run_python(code: str, **environment: str) -> str:
    """Standard output of a fresh interpreter that runs `code`."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture
def saved_folder(tiny_model, tmp_path):
    """A model and a tokenizer as training leaves them, and the ids that the model generates for one sentence."""
    tokenizer = VanillaTransformerTokenizer.train(["one two three", "four five six"], vocab_size=300)
    model = tiny_model(vocab_size=len(tokenizer))
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ids = model.generate(**tokenizer("two six one", return_tensors="pt"), max_new_tokens=8)[0].tolist()
    return folder, ids


OPEN = """
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained({folder!r}, **{arguments})
model = AutoModelForSeq2SeqLM.from_pretrained({folder!r}, **{arguments})
print(model.generate(**tokenizer("two six one", return_tensors="pt"), max_new_tokens=8)[0].tolist())
"""

HIDE_PACKAGE = """
import sys
sys.modules["vanilla_transformer_hf"] = None
"""


def test_importing_the_package_imports_no_model_and_nothing_that_a_model_does_without():
    code = "import sys, vanilla_transformer_hf; print(*sys.modules)"
    imported = run_python(code).split()
    heavy = {"datasets", "evaluate", "matplotlib", "sacrebleu", "sacremoses", "onnx", "onnxruntime", "pandas"}
    # What transformers' models, pipelines and adapters bring.
    heavy |= {"transformers.modeling_utils", "transformers.pipelines", "torch._dynamo", "torch.distributed.tensor"}
    heavy |= {"sympy", "peft", "ctranslate2", "accelerate"}
    assert not heavy.intersection(imported)
    rooms = ("commands", "conversion", "export", "serving", "training", "translation", "evaluation", "explorer")
    later = tuple(f"vanilla_transformer_hf.{room}" for room in (*rooms, "model.modeling_vanilla_transformer"))
    assert not [name for name in imported if name.startswith(later)]


def test_registering_again_changes_nothing_and_leaves_the_imports_of_python_alone_until_programs_are_left_out():
    code = """
import sys
before = list(sys.meta_path)
from transformers.pipelines import PIPELINE_REGISTRY, SUPPORTED_TASKS
import vanilla_transformer_hf, transformers
pipeline, listeners = SUPPORTED_TASKS["translation"], vanilla_transformer_hf.model.saving.saved_code
vanilla_transformer_hf.registration.register()
assert SUPPORTED_TASKS["translation"] is pipeline
assert len(listeners.CONFIG_MADE) == len(listeners.MODEL_DEFINED) == 1
targets = vanilla_transformer_hf.model.layers.lora_targets.LoraTargets
vanilla_transformer_hf.registration.register(for_programs=False)
assert targets.are_entered and listeners.MODEL_DEFINED, "what a program has registered stays"
for _ in range(2):
    vanilla_transformer_hf.registration.leave_out_programs()
    assert not targets.are_entered and not listeners.MODEL_DEFINED
print([type(finder).__name__ for finder in sys.meta_path if finder not in before], *sys.modules)
"""
    finders, *modules = run_python(code).split()
    assert "vanilla" not in finders.lower() and "transformers.models.vanilla_transformer" not in modules


OPEN_OBJECTS = """
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
given = {"model": AutoModelForSeq2SeqLM.from_pretrained(folder), "tokenizer": AutoTokenizer.from_pretrained(folder)}
"""
UNPICKLE = """
import pickle
from pathlib import Path
given = pickle.loads(Path(folder, "pickled").read_bytes())
"""


@pytest.mark.parametrize(
    "before",
    [
        "import vanilla_transformer_hf\ngiven = {'model': folder}",
        pytest.param(
            "import transformers.pipelines, vanilla_transformer_hf\ngiven = {'model': folder}", marks=pytest.mark.slow
        ),
        pytest.param("import vanilla_transformer_hf" + OPEN_OBJECTS, marks=pytest.mark.slow),
        pytest.param(UNPICKLE, marks=pytest.mark.slow),
    ],
)
def test_pipelines_and_converters_know_our_models_whenever_they_are_imported(before, saved_folder):
    folder, ids = saved_folder
    opened = {
        "model": AutoModelForSeq2SeqLM.from_pretrained(folder),
        "tokenizer": AutoTokenizer.from_pretrained(folder),
    }
    (folder / "pickled").write_bytes(pickle.dumps(opened))
    after = """
from transformers import AutoConfig, pipeline
made = pipeline("translation_en_to_de", **given)
print(type(made).__name__)
print(made.model.generate(**made.tokenizer("two six one", return_tensors="pt"), max_new_tokens=8)[0].tolist())
from ctranslate2.converters import transformers as converters
AutoConfig.from_pretrained(folder)
print("VanillaTransformerConfig" in converters._MODEL_LOADERS)
"""
    out = run_python(f"folder = {str(folder)!r}\n{before}\n{after}")
    assert out.splitlines() == ["TranslationPipeline", str(ids), "True"]


def test_a_name_in_the_tables_of_the_auto_classes_is_copied_and_called_as_its_class_is(tiny_config):
    from vanilla_transformer_hf.registration import ModelByName

    named = ModelByName(VanillaTransformerConfig, "model.modeling_vanilla_transformer.VanillaTransformerModel")
    assert (
        named.__name__ == VanillaTransformerModel.__name__ and named.__module__ == VanillaTransformerModel.__module__
    )
    for copied in (copy.deepcopy(named), pickle.loads(pickle.dumps(named))):
        assert copied.load() is VanillaTransformerModel and copied.base_model_prefix == "model"
    assert type(named(tiny_config())) is VanillaTransformerModel

    class Extended(named):
        pass

    assert Extended.__bases__ == (VanillaTransformerModel,)
    assert pickle.loads(pickle.dumps(AutoModelForSeq2SeqLM._model_mapping))[VanillaTransformerConfig].load


@pytest.mark.parametrize(
    "first",
    [  # the package first: the pipeline above
        pytest.param("from transformers import AutoConfig; import vanilla_transformer_hf", marks=pytest.mark.slow),
        "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer; import vanilla_transformer_hf",
        pytest.param(
            "import vanilla_transformer_hf; from transformers import GradientCheckpointingLayer, Seq2SeqTrainer",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "from vanilla_transformer_hf.model.modeling_vanilla_transformer import VanillaTransformerModel",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_saved_folder_opens_in_every_order_of_imports(first, saved_folder):
    folder, ids = saved_folder
    out = run_python(first + OPEN.format(folder=str(folder), arguments={}))
    assert json.loads(out.splitlines()[-1]) == ids


REFUSED = """
from transformers import AutoConfig
try:
    AutoConfig.from_pretrained({folder!r})
except ValueError as error:
    print("\\nrefused:", "trust_remote_code" in str(error))
"""
OPEN_STACKS = """
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM
for name, auto in (("encoder", AutoModelForMaskedLM), ("decoder", AutoModelForCausalLM)):
    for opens in (auto, AutoModel):
        print(type(opens.from_pretrained({folder!r} + "/" + name, trust_remote_code=True)).__name__)
"""


def test_saved_folders_open_without_the_package_and_save_again_whole(saved_folder, tiny_config, tmp_path):
    """In one process: to import transformers takes seconds. Each folder's code is a module of its own."""
    folder, ids = saved_folder
    stacks, again = tmp_path / "stacks", tmp_path / "again"
    vanilla_transformer_hf.VanillaTransformerForMaskedLM(tiny_config()).save_pretrained(stacks / "encoder")
    vanilla_transformer_hf.VanillaTransformerForCausalLM(tiny_config()).save_pretrained(stacks / "decoder")
    arguments = {"trust_remote_code": True}
    save = f"\nmodel.save_pretrained({str(again)!r}); tokenizer.save_pretrained({str(again)!r})"
    lines = run_python(
        HIDE_PACKAGE
        + REFUSED.format(folder=str(folder))
        + OPEN_STACKS.format(folder=str(stacks))
        + OPEN.format(folder=str(folder), arguments=arguments)
        + save
        + OPEN.format(folder=str(again), arguments=arguments)
        + "print(type(model).__module__)",
        HF_MODULES_CACHE=str(tmp_path / "modules"),
    ).splitlines()
    assert lines[-8:-1] == [  # before them stands the question of transformers
        "refused: True",
        "VanillaTransformerForMaskedLM",
        "VanillaTransformerEncoderModel",
        "VanillaTransformerForCausalLM",
        "VanillaTransformerDecoderModel",
        *[str(ids)] * 2,
    ]
    assert lines[-1].startswith("transformers_modules.again."), "its own code"
    assert {path.name for path in again.iterdir()} == {path.name for path in folder.iterdir()}
    for name in ("model.safetensors", "tokenizer.json", "modeling_vanilla_transformer.py"):
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


def test_the_tokenizer_is_ours_and_reopens(saved_folder):
    tokenizer = AutoTokenizer.from_pretrained(saved_folder[0])
    assert type(tokenizer) is VanillaTransformerTokenizer


def test_every_public_name_exists():
    for name in vanilla_transformer_hf.__all__:
        assert getattr(vanilla_transformer_hf, name) is not None
    public = {name for name, value in vars(vanilla_transformer_hf).items() if isinstance(value, (type, dict))}
    others = {"__version__", "explore"}
    assert {name for name in public if name[0] != "_"} == set(vanilla_transformer_hf.__all__) - others
    assert set(vanilla_transformer_hf.__all__) <= set(dir(vanilla_transformer_hf))
    with pytest.raises(AttributeError, match="'vanilla_transformer_hf' has no attribute 'VanillaTransformer'"):
        vanilla_transformer_hf.VanillaTransformer  # noqa: B018


def test_type_checkers_see_the_names_that_are_imported_on_use():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    seen = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If) and getattr(block.test, "id", "") == "TYPE_CHECKING"
        for node in block.body
        for alias in node.names
    }
    assert seen == vanilla_transformer_hf._HOMES and {*seen, "__version__"} == set(vanilla_transformer_hf.__all__)


# The rooms, from the ground up: each imports from those before it. Those of one row do not know each other.
FLOORS = [
    *(["model"], ["recurrent"], ["common"], ["evaluation"], ["publishing"], ["export"], ["translation"]),
    *(["training", "conversion", "serving"], ["explorer"], ["commands"]),
]
FLOORS_OF_TRANSLATION = [
    *(["text"], ["scoring"], ["results"], ["search"], ["text_translator"], ["kept_copy"]),
    *(["translator"], ["documents", "pipeline", "recognition"], ["pictures", "streams"]),
]


def imports_of(path: Path) -> set[str]:
    """Modules that a file imports, ours as `vanilla_transformer_hf.room.module`."""
    names = set()
    package = path.relative_to(PACKAGE.parent).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = [*base, *([node.module] if node.module else [])]
            names.add(".".join(module))
            names |= {".".join([*module, alias.name]) for alias in node.names}
    return names


def test_hub_files_import_only_what_every_user_has():
    # transformers needs numpy, too
    allowed = {"torch", "transformers", "huggingface_hub", "tokenizers", "safetensors", "numpy"}
    for path in (*PACKAGE.glob("model/**/*.py"), *PACKAGE.glob("recurrent/*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        optional = {inner for node in ast.walk(tree) if isinstance(node, ast.Try) for inner in ast.walk(node)}
        for node in ast.walk(tree):
            if node in optional:  # what opening a model does without
                continue
            if isinstance(node, ast.ImportFrom) and node.level:
                source = path.parents[node.level - 1].joinpath(*str(node.module).split("."))
                travelling = {PACKAGE / "model", PACKAGE / "recurrent"}
                assert travelling & {*source.parents}, f"{path.name}, line {node.lineno}"
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                for name in [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]:
                    root = str(name).split(".")[0]
                    assert root in allowed or root in sys.stdlib_module_names, f"{path.name} imports {name}"


def test_no_toolkit_imports_another():
    sources = PACKAGE / "conversion" / "sources"
    shared = {"__init__", "opennmt_common", "saved_model", "state_dicts"}
    toolkits = {path.stem for path in sources.glob("*.py")} - shared
    assert toolkits
    for stem in toolkits | shared:
        inner = {
            name.removeprefix("vanilla_transformer_hf.conversion.sources.")
            for name in imports_of(sources / f"{stem}.py")
        }
        assert not inner & (toolkits - {stem}), f"{stem} imports {inner & toolkits}"


@pytest.mark.parametrize(("house", "floors"), [("", FLOORS), ("translation", FLOORS_OF_TRANSLATION)])
def test_imports_point_one_way(house, floors):
    folder, rooms = PACKAGE / house, {room for floor in floors for room in floor}
    folders = {path.name for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"}
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"} if house else set()
    assert folders | modules == rooms
    for level, floor in enumerate(floors):
        known = {room for below in floors[:level] for room in below}
        for room in floor:
            for path in [*folder.glob(f"{room}/**/*.py"), *(folder.glob(f"{room}.py") if house else ())]:
                for name in imports_of(path):
                    if name.startswith(
                        prefix := ".".join(["vanilla_transformer_hf", *([house] if house else []), ""])
                    ):
                        found = name.removeprefix(prefix).split(".")[0]
                        assert found not in rooms or found in known | {room}, f"{path.relative_to(PACKAGE)}: {name}"


def test_the_tables_of_transformers_know_what_our_models_are():
    """Tables that lm-evaluation-harness reads: first that of encoder-decoders, then that of language models."""
    from transformers.models.auto import modeling_auto as tables

    seq2seq, causal = tables.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, tables.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    assert seq2seq["vanilla_transformer"] == "VanillaTransformerForConditionalGeneration"
    assert seq2seq["recurrent_seq2seq"] == "RecurrentSeq2SeqForConditionalGeneration"
    assert causal["vanilla_transformer"] == "VanillaTransformerForCausalLM" and "recurrent_seq2seq" not in causal
    # The lazy mappings over these tables still list transformers' own models.
    for mapping in (tables.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, tables.MODEL_FOR_CAUSAL_LM_MAPPING):
        assert len(mapping.keys()) > 5
