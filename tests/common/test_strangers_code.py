"""The code that a folder brings runs where a user says so, and nowhere else: not because standard input has a "y"."""

import ast
import json
from contextlib import suppress
from pathlib import Path

import pytest

import vanilla_transformer_hf
from vanilla_transformer_hf import Translator
from vanilla_transformer_hf.common.opening import open_any_config, open_processor, open_tokenizer, open_weights
from vanilla_transformer_hf.explorer.explorer import Explorer
from vanilla_transformer_hf.export.int8_folder import quantize_folder
from vanilla_transformer_hf.training.arguments import ModelArguments
from vanilla_transformer_hf.training.pretraining.warm_start import find_origins
from vanilla_transformer_hf.translation.recognition import CLASSES, Recognizer


PACKAGE = Path(vanilla_transformer_hf.__file__).parent
SCRIPTS = PACKAGE.parent / "scripts"

CODE = """
open({mark!r}, "w").write("x")
from transformers import *
class EvilConfig(PretrainedConfig):
    model_type = "evil"
class EvilTokenizer(PreTrainedTokenizerFast): pass
class EvilProcessor(ProcessorMixin): pass
class EvilExtractor(SequenceFeatureExtractor): pass
class EvilModel(PreTrainedModel): pass
"""


def hostile(folder, model_type):
    """A folder whose every settings file names code, which leaves a mark beside the folder when it runs."""
    folder.mkdir()
    mark = folder.parent / "ran"
    (folder / "evil.py").write_text(CODE.format(mark=str(mark)))
    names = {"AutoConfig": "evil.EvilConfig", "AutoTokenizer": ["evil.EvilTokenizer", "evil.EvilTokenizer"]}
    names |= {"AutoProcessor": "evil.EvilProcessor", "AutoFeatureExtractor": "evil.EvilExtractor"}
    names |= dict.fromkeys(("AutoModel", "AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq"), "evil.EvilModel")
    own = {"tokenizer_class": "EvilTokenizer", "processor_class": "EvilProcessor", "auto_map": names}
    sizes = {"d_model": 16, "vocab_size": 9, "encoder_layers": 1, "decoder_layers": 1} if model_type != "evil" else {}
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "auto_map": names, **sizes}))
    for name in ("tokenizer_config.json", "processor_config.json", "preprocessor_config.json"):
        (folder / name).write_text(json.dumps({"feature_extractor_type": "EvilExtractor", **own}))
    return mark


# What opens a folder, of commands and of users.
OPENINGS = {
    "translate": lambda folder: Translator.from_pretrained(folder),
    "translate --audio": lambda folder: Recognizer(folder, "input_features"),
    "translate --image": lambda folder: Recognizer(folder, "pixel_values"),
    "explore": lambda folder: Explorer.open([folder]),
    "quantize": lambda folder: quantize_folder(folder, folder.parent / "int8"),
    "pretrain": lambda folder: find_origins(ModelArguments(encoder_from=str(folder), decoder_from=str(folder))),
    "back-translate": lambda folder: open_tokenizer(folder),
    "train": lambda folder: open_any_config(folder, dropout=0.1),
    "processor": lambda folder: open_processor(folder),
    "weights": lambda folder: open_weights(folder),
    "weights of speech": lambda folder: open_weights(folder, CLASSES["input_features"]),
}


@pytest.mark.parametrize("model_type", ["evil", "whisper", "marian", "vanilla_transformer"])
@pytest.mark.parametrize("opens", OPENINGS.values(), ids=OPENINGS)
def test_it_is_neither_run_nor_asked_about(opens, model_type, tmp_path, monkeypatch):
    mark = hostile(tmp_path / "model", model_type)
    asked = []
    monkeypatch.setattr("builtins.input", lambda text="": asked.append(text) or "y")
    with suppress(OSError, ValueError):
        opens(tmp_path / "model")
    assert not asked
    assert not mark.exists()


# Functions that open, and where each stands, with the reason why it runs nothing there.
ALLOWED = {
    ("from_pretrained", "common/opening.py"): "says whether code may run",
    ("from_pretrained", "registration.py"): "called by an Auto class, which has asked",
    ("load_dataset", "training/data/corpus.py"): "datasets 4 and later has no code of data sets",
    ("load", "export/torch_export.py"): "torch.export: of a folder that the user exported",
    ("loads", "translation/streams/pool.py"): "from the process that started it",
    ("load", "common/settings.py"): "yaml, with a loader of plain values",
    ("load", "training/recipe.py"): "yaml, with a loader of plain values",
    ("load", "conversion/formats/safe_load.py"): "torch.load, of a file that the user trusts, or with weights_only",
}
OPENERS = {"from_pretrained", "load_dataset", "get_class_from_dynamic_module", "run_path", "run_module"}
LOADERS = {"torch", "torch.export", "torch.hub", "torch.jit", "pickle", "yaml"}
LOADERS |= {"joblib", "evaluate", "marshal", "dill"}
# Classes of this package, which run no code of a folder without being told to.
OWN = ("VanillaTransformer", "RecurrentSeq2Seq", "Translator", "GenerationConfig", "super()", "cls")


def openings(tree):
    """The names of functions that may run what a file holds, where a module calls or hands on one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            loads = owner in LOADERS and node.attr.startswith(("load", "unsafe_load", "full_load"))
            if (node.attr in OPENERS and not owner.startswith(OWN)) or loads:
                yield node
        elif isinstance(node, ast.Name) and node.id in (*OPENERS, "exec", "eval", "__import__"):
            yield node
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("pipeline", "transformers.pipeline"):
            yield node.func


def says_no(call):
    return any(
        each.arg in ("trust_remote_code", "weights_only") and isinstance(each.value, ast.Constant)
        for each in call.keywords
    )


def test_one_function_opens():
    beside, used = [], set()
    files = [*PACKAGE.rglob("*.py"), *SCRIPTS.rglob("*.py"), *(PACKAGE.parent / "docs").rglob("*.py")]
    assert len(files) > 300
    for path in files:
        text = path.read_text(encoding="utf-8")
        if not any(word in text for word in (*OPENERS, "load", "exec", "eval", "pipeline", "from_config")):
            continue
        tree = ast.parse(text)
        place = path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else SCRIPTS.parent).as_posix()
        calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in openings(tree):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if (name, place) in ALLOWED:
                used.add((name, place))
            elif id(node) not in calls or not says_no(calls[id(node)]):
                beside.append(f"{place}, line {node.lineno}: {ast.unparse(node)}")
        for node in calls.values():
            if ast.unparse(node.func).endswith(".from_config") and not says_no(node):
                beside.append(f"{place}, line {node.lineno}: {ast.unparse(node.func)}")
    assert not beside, f"open by common.opening.open_by, which says that no code runs: {beside}"
    assert used == ALLOWED.keys(), "a row without a use"


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("AutoModel.from_pretrained(name)", True),
        ("opens = AutoModel.from_pretrained", True),
        ("kind.from_pretrained(name, **hub)", True),
        ("transformers.pipeline('translation', name)", True),
        ("pipeline(task)", True),
        ("pickle.loads(content)", True),
        ("torch.load(path)", True),
        ("evaluate.load('bleu')", True),
        ("VanillaTransformerConfig.from_pretrained(folder)", False),
        ("super().from_pretrained(folder)", False),
        ("json.load(file)", False),
        ("model.eval()", False),
    ],
)
def test_what_counts_as_opening(line, is_found):
    assert any(True for _ in openings(ast.parse(line))) == is_found
