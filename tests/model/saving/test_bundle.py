"""The modules of model/ as the few files that travel, and the rules that let them be joined."""

import ast

import pytest
from travelling_code import CODE, MODEL_CODE

from vanilla_transformer_hf.model.saving import bundle


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """`sources(files, **modules)`: the joined files of made-up modules."""

    def join(files, **modules):
        for name, text in modules.items():
            path = tmp_path.joinpath(*name.split("__")).with_suffix(".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        monkeypatch.setattr(bundle, "ROOT", tmp_path)
        monkeypatch.setattr(bundle, "FILES", files)
        return bundle.join_modules()

    return join


def test_six_files_have_every_module_once():
    kinds = ("configuration", "tokenization", "layers", "generation", "modeling", "pipeline")
    assert list(CODE) == [f"{kind}_vanilla_transformer.py" for kind in kinds]
    assert {"tokenization_vanilla_transformer.py"} == CODE - MODEL_CODE
    assert bundle.files_for("tokenization_vanilla_transformer").keys() == CODE - MODEL_CODE
    assert list(bundle.files_for("configuration_vanilla_transformer")) == ["configuration_vanilla_transformer.py"]
    modules = {path.relative_to(bundle.ROOT).with_suffix("").as_posix().replace("/", ".")
               for path in bundle.ROOT.rglob("*.py")}  # fmt: skip
    stays = {f"saving.{name}" for name in ("bundle", "listeners")}
    stays |= {"feature_extraction_vanilla_transformer"}  # transformers copies it by itself
    modules = {name for name in modules if "__init__" not in name} - stays
    found = [line[2:] for text in bundle.saved_files().values() for line in text.splitlines() if line[2:] in modules]
    assert sorted(set(found)) == sorted(modules)
    three_times = "saving.saved_code"  # what stands in for it
    assert sorted(found) == sorted([*modules, three_times, three_times])


@pytest.mark.parametrize("name", CODE)
def test_a_file_says_where_its_parts_are(name):
    text = bundle.saved_files()[name]
    lines = text.splitlines()
    opening = ast.get_docstring(ast.parse(text))
    assert "vanilla_transformer_hf/model/" in opening.splitlines()[0]
    contents = [line.split() for line in opening.partition("numbers:\n")[2].splitlines() if line]
    assert contents
    for number, title, *_ in contents:
        assert lines[int(number) - 1] == f"# {title.rstrip(':')}"


def test_comments_and_code_travel_whole():
    everything = "".join(bundle.saved_files().values())
    for room in FLOORS[2:]:
        for name in bundle.modules_of(room):
            module = bundle.read_module(name)
            assert module.body in everything
            for number in module.cut:
                line = module.text.splitlines()[number - 1]
                assert not line.startswith("#"), f"{name}, line {number}: a comment between imports would be lost"


def test_no_module_of_model_asks_for_the_class_of_a_config():
    # In a folder, the file of the config is loaded twice, once for each way that leads to it.
    for path in bundle.ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                assert "Config" not in ast.unparse(node.args[1]) or "GenerationConfig" in ast.unparse(node.args[1]), (
                    path
                )


def test_modules_are_joined_in_the_order_of_their_imports(sources):
    files = {"low": ("low",), "high": ("high",)}
    texts = sources(
        files,
        low__table='"""A table."""\n\nimport math\n\n# Two.\nTWO = math.floor(2.5)\n\n__all__ = ["TWO"]\n',
        high__a='"""Uses b."""\n\nimport torch.nn.functional as F\n\nfrom ..low.table import TWO\n'
        "from .b import four\n\n\ndef eight():\n    return TWO * four()  # why\n",
        high__b="from ..low.table import TWO\n\n\ndef four():\n    return 2 * TWO\n",
    )
    assert texts.keys() == {"low.py", "high.py"}
    assert "import math\n" in texts["low.py"] and "# Two.\nTWO = math.floor(2.5)\n" in texts["low.py"]
    assert "__all__" not in texts["low.py"]
    assert texts["high.py"].index("def four") < texts["high.py"].index("def eight")
    assert "import torch.nn.functional as F\n\nfrom .low import TWO\n" in texts["high.py"]
    assert "return TWO * four()  # why\n" in texts["high.py"] and "from .b" not in texts["high.py"]


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ("A = 1", "A = 2", "A: in a.second and in a.first; top-level names must be unique"),
        ("def f(): pass", "class f: pass", "top-level names must be unique"),
        ("from math import pi as logging", "import logging", "logging: imported from"),
        ("A = 1", "def f():\n    from .first import A", r"second.py, line 2: write `from .module import Name`"),
        ("A = 1", "from . import first", r"second.py, line 1: write"),
        ("A = 1", "from .first import A as B", r"second.py, line 1: write"),
        ("from .second import B\nA = 1", "from .first import A\nB = 1", "import each other: a.first -> a.second"),
    ],
)  # fmt: skip
def test_what_cannot_be_joined_is_named(first, second, problem, sources):
    with pytest.raises(ValueError, match=problem):
        sources({"file": ("a",)}, a__first=first, a__second=second)


def test_a_function_may_import_from_what_comes_later(sources):
    plain = '"""A."""\n\n\ndef made(kind):\n    from ..kinds.table import KINDS  # later\n\n    return KINDS[kind]()\n'
    kind = '"""B."""\n\nfrom ..high.plain import made\n\nKINDS = {"near": lambda: made}\n'
    texts = sources({"file": ("high", "kinds")}, high__plain=plain, kinds__table=kind)
    assert "import KINDS" not in texts["file.py"] and texts["file.py"].index("def made") < texts["file.py"].index(
        "KINDS ="
    )
    names: dict = {}
    exec(texts["file.py"], names)
    assert names["made"]("near") is names["made"]
    with pytest.raises(ValueError, match=r"plain.py, line 5: write `from .module import Name` at the top"):
        sources({"file": ("high",), "other": ("kinds",)}, high__plain=plain, kinds__table=kind)


# The rooms of model/, from the ground up: each imports from those before it. The host's names are rooms of one file.
FLOORS = ("saving", "feature_extraction_vanilla_transformer", "config", "configuration_vanilla_transformer",
          "releases", "tokenizer", "tokenization_vanilla_transformer", "layers", "front_ends", "packing", "search",
          "modeling_vanilla_transformer", "positions", "attention", "single_stacks", "recognition",
          "predecessors", "pipeline_vanilla_transformer")  # fmt: skip


def test_imports_between_rooms_point_one_way():
    rooms = {path.relative_to(bundle.ROOT).parts[0].removesuffix(".py") for path in bundle.ROOT.rglob("*.py")}
    assert rooms - {"__init__"} == {*FLOORS}
    for room in FLOORS:
        for name in set(bundle.modules_of(room)) - bundle.STAND_INS.keys():
            for source in bundle.read_module(name).ours.values():
                place = source.split(".")[0]
                assert FLOORS.index(place) <= FLOORS.index(room), f"{name} imports {source}"


def test_only_the_tables_of_kinds_are_imported_when_a_model_is_built():
    """Kinds extend the classes of the paper's model, which asks the tables for others."""
    late = {}
    for room in FLOORS:
        for name in set(bundle.modules_of(room)) - bundle.STAND_INS.keys():
            late |= {(name, source): line for source, line in bundle.read_module(name).late.items()}
    modeling = "modeling_vanilla_transformer"
    assert late.keys() == {(modeling, "attention.types"), (modeling, "positions.types")}


def test_the_model_of_the_paper_is_one_file_to_be_read_from_top_to_bottom():
    """At most 600 lines, and a saved model's file begins with them."""
    module = bundle.read_module("modeling_vanilla_transformer")
    assert len(module.text.splitlines()) <= 600
    parts = ["SinusoidalPositionEncoding", "eager_attention_forward", "VanillaTransformerAttention",
             "VanillaTransformerCrossAttention", "dense_feed_forward", "post_norm", "VanillaTransformerEncoderLayer",
             "VanillaTransformerDecoderLayer", "VanillaTransformerEncoder", "VanillaTransformerDecoder",
             "VanillaTransformerModel", "VanillaTransformerForConditionalGeneration"]  # fmt: skip
    in_order = [node.name for node in module.tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    assert [name for name in in_order if name in parts] == parts
    saved = bundle.saved_files()["modeling_vanilla_transformer.py"]
    first, *others = (saved.index(f"# {name}\n") for name in (module.name, "positions.absolute", "attention.types"))
    assert first < min(others)
