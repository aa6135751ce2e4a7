"""The modules of model/ as the few files that travel, and the rules that let them be joined."""

import ast
from collections import defaultdict

import pytest
from travelling_code import CODE, MODEL_CODE

from vanilla_transformer_hf.model.config.attention_kinds import ATTENTION_KINDS, CROSS_KINDS, OTHER_KINDS
from vanilla_transformer_hf.model.config.auto_classes import CLASSES
from vanilla_transformer_hf.model.config.front_ends import FRONT_ENDS
from vanilla_transformer_hf.model.config.kinds import NORM_KINDS
from vanilla_transformer_hf.model.config.position_schemes import POSITION_SCHEMES
from vanilla_transformer_hf.model.saving import bundle


OF_CALLS = ("constraints", "together")


def modules_of(place):
    """A module's name itself, or those of the modules in a folder."""
    names = (path.stem for path in sorted(bundle.path_of(f"{place}.any").parent.glob("*.py")))
    return [f"{place}.{name}" for name in names if name != "__init__"] or [place]


def tree_of(module):
    return ast.parse(bundle.path_of(module).read_text(encoding="utf-8"))


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """`sources(*roots, **modules)`: the joined files of made-up modules; a first file has those in `low`."""

    def join(*roots, **modules):
        for name, text in modules.items():
            path = tmp_path.joinpath(*name.split("__")).with_suffix(".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        monkeypatch.setattr(bundle, "ROOT", tmp_path)
        monkeypatch.setattr(bundle, "FILES", {"low": "low"})
        bundle.join_modules.cache_clear()
        return bundle.join_modules(roots)

    yield join
    bundle.join_modules.cache_clear()


def test_a_plain_model_has_five_files_and_a_tokenizer_one():
    kinds = ("configuration", "layers", "generation", "pipeline", "modeling")
    assert list(MODEL_CODE) == [f"{kind}_vanilla_transformer.py" for kind in kinds]
    assert {"tokenization_vanilla_transformer.py"} == CODE - MODEL_CODE
    texts = bundle.join_modules(("modeling_vanilla_transformer", "pipeline_vanilla_transformer"))
    assert sum(len(text.splitlines()) for text in texts.values()) <= 6_000
    assert list(bundle.join_modules(("configuration_vanilla_transformer",))) == [
        "configuration_vanilla_transformer.py"
    ]


def test_every_module_travels_with_some_model():
    tables = (ATTENTION_KINDS, CROSS_KINDS, OTHER_KINDS, POSITION_SCHEMES, FRONT_ENDS)
    roots = {row.module for table in tables for row in table.values() if row.module}
    roots |= {"config.variants", *(row.module for row in NORM_KINDS.values() if row.module)}
    roots |= {name.rpartition(".")[0] for classes in CLASSES.values() for name in classes.values()}
    texts = bundle.join_modules(
        (
            *sorted(roots),
            "recurrent.modeling",
            "tokenization_vanilla_transformer",
            "pipeline_vanilla_transformer",
            bundle.INT8_QUANTIZER,
        )
    )
    found = {module for text in texts.values() for module in bundle.modules_in(text)}
    there = {path.relative_to(bundle.ROOT).with_suffix("").as_posix().replace("/", ".")
             for path in bundle.ROOT.rglob("*.py") if path.stem != "__init__"}  # fmt: skip
    stays = {"tokenizer.limits", "saving.bundle", "saving.saved_code"}
    # No config needs them, but options of a call.
    stays |= {"config.presets", "layers.loss", *(f"search.{name}" for name in OF_CALLS)}
    assert {module for module in found if module.startswith("recurrent.")} == {*modules_of("recurrent")}
    assert there - found == stays | {"feature_extraction_vanilla_transformer"}  # which transformers copies by itself


def test_comments_and_code_travel_whole():
    texts = "".join(bundle.join_modules(("modeling_vanilla_transformer", "attention.local")).values())
    lines = bundle.path_of("attention.local").read_text(encoding="utf-8").splitlines()
    tree = tree_of("attention.local")
    cut = {number for node, _ in bundle.own_imports("attention.local", tree)
           for number in range(node.lineno, node.end_lineno + 1)}  # fmt: skip
    assert "\n".join(line for number, line in enumerate(lines, 1) if number not in cut).strip() in texts


def test_names_of_one_file_have_one_meaning():
    """Modules are put one behind the other: what two define, or import under one name from two places, would clash."""
    meanings = defaultdict(set)
    for room in {*FLOORS} - {"saving"}:
        for module in modules_of(room):
            file = bundle.file_of(module)
            for node in tree_of(module).body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    meanings[file, node.name].add(module)
                elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    names = {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
                    for name in names - {"logger"}:
                        meanings[file, name].add(module)
                elif isinstance(node, ast.Import):
                    for alias in node.names:
                        meanings[file, alias.asname or alias.name].add(alias.name)
                elif isinstance(node, ast.ImportFrom):
                    source = node.module
                    if node.level:
                        source = next(found for each, found in bundle.own_imports(module, ast.Module([node], [])))
                    for alias in node.names:
                        if node.level and source != bundle.NOT_HERE:
                            continue  # ours, whose names are those of their modules
                        meanings[file, alias.asname or alias.name].add(f"{source}.{alias.name}")
    assert {name: found for name, found in meanings.items() if len(found) > 1} == {}


def test_no_module_of_model_asks_for_the_class_of_a_config():
    # In a folder, the file of the config is loaded twice, once for each way that leads to it.
    for path in (*bundle.ROOT.rglob("*.py"), *bundle.ROOT.with_name("recurrent").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                assert "Config" not in ast.unparse(node.args[1]) or "GenerationConfig" in ast.unparse(node.args[1]), (
                    path
                )


def test_modules_are_joined_in_the_order_of_their_imports(sources):
    texts = sources(
        "high.a",
        low__table='"""A table."""\n\nimport math\n\n# Two.\nTWO = math.floor(2.5)\n',
        high__a='"""Uses b."""\n\nimport torch.nn.functional as F\n\nfrom ..low.table import TWO\n'
        "from .b import four\n\n\ndef eight():\n    return TWO * four()  # why\n",
        high__b="from ..low.table import TWO\n\n\ndef four():\n    return 2 * TWO\n",
    )
    high = texts[f"{bundle.LAST}.py"]
    assert texts.keys() == {"low.py", f"{bundle.LAST}.py"}
    assert "import math\n" in texts["low.py"] and "# Two.\nTWO = math.floor(2.5)\n" in texts["low.py"]
    assert high.index("def four") < high.index("def eight")
    assert "import torch.nn.functional as F\n" in high and "from .low import TWO\n" in high
    assert "return TWO * four()  # why\n" in high and "from .b" not in high
    assert bundle.modules_in(high) == ("high.b", "high.a")


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ("A = 1", "def f():\n    from .first import A", r"second.py, line 2: write `from .module import Name`"),
        ("A = 1", "from . import first", r"second.py, line 1: write"),
        ("A = 1", "from .first import A as B", r"second.py, line 1: write"),
        ("from .second import B\nA = 1", "from .first import A\nB = 1", "import each other: a.first -> a.second"),
    ],
)  # fmt: skip
def test_what_cannot_be_joined_is_named(first, second, problem, sources):
    with pytest.raises(ValueError, match=problem):
        sources("a.first", "a.second", a__first=first, a__second=second)


def test_what_is_in_a_later_file_is_named(sources):
    with pytest.raises(ValueError, match=r"below.py, line 1: high.table is in a later file"):
        sources("low.below", low__below="from ..high.table import A", high__table="A = 1")


# The rooms of model/, from the ground up: each imports from those before it. The host's names are rooms of one file.
FLOORS = ("releases", "tokenizer", "saving", "feature_extraction_vanilla_transformer", "config",
          "configuration_vanilla_transformer", "tokenization_vanilla_transformer", "layers", "packing",
          "search", "modeling_vanilla_transformer", "positions", "attention", "front_ends", "single_stacks",
          "recognition", "recurrent", "pipeline_vanilla_transformer")  # fmt: skip


def test_imports_between_rooms_point_one_way():
    rooms = {path.relative_to(bundle.ROOT).parts[0].removesuffix(".py") for path in bundle.ROOT.rglob("*.py")}
    assert rooms - {"__init__"} | {"recurrent"} == {*FLOORS}
    for room in FLOORS:
        for name in modules_of(room):
            for _, source in bundle.own_imports(name, tree_of(name)):
                assert FLOORS.index(source.split(".")[0]) <= FLOORS.index(room), f"{name} imports {source}"


def test_the_model_of_the_paper_is_one_file_to_be_read_from_top_to_bottom():
    """At most 900 lines, which import the config, four modules and nothing else of ours."""
    module = "modeling_vanilla_transformer"
    assert len(bundle.path_of(module).read_text(encoding="utf-8").splitlines()) <= 900
    parts = ["PositionEncoding", "SinusoidalPositionEncoding", "eager_attention_forward",
             "VanillaTransformerAttention", "VanillaTransformerCrossAttention", "VanillaTransformerLayer",
             "VanillaTransformerStack", "VanillaTransformerEncoder", "VanillaTransformerDecoder",
             "VanillaTransformerModel", "VanillaTransformerForConditionalGeneration"]  # fmt: skip
    in_order = [node.name for node in tree_of(module).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    assert [name for name in in_order if name in parts] == parts
    imported = {source for _, source in bundle.own_imports(module, tree_of(module))}
    assert {name for name in imported if not name.startswith("config")} == {
        *("releases.models", "layers.base_model", "layers.parts", "search.generate")
    }
