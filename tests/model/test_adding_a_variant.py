"""A made-up position scheme and a made-up kind of attention, added as docs/adding_a_variant.md says, with its code."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from host_search import same

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.model.config.attention_kinds import ATTENTION_KINDS
from vanilla_transformer_hf.model.config.position_schemes import POSITION_SCHEMES, PositionScheme
from vanilla_transformer_hf.model.modeling_vanilla_transformer import (
    ATTENTION_TYPES,
    POSITION_ENCODINGS,
    PositionEncoding,
    VanillaTransformerAttention,
)
from vanilla_transformer_hf.model.positions.relative import RelativePositionEncoding


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding_a_variant.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
TABLES = (POSITION_SCHEMES, POSITION_ENCODINGS, ATTENTION_KINDS, ATTENTION_TYPES)
BOTH = {
    "position_encoding": "log_distance",
    "encoder_attention_type": "look_back",
    "decoder_attention_type": "look_back",
    "attention_window": 3,
}


@pytest.fixture
def page(capsys):
    """What the page's code prints; what it adds is there during a test."""
    exec(compile("\n".join(BLOCKS), "adding_a_variant.md", "exec"), {})
    yield capsys.readouterr().out.split()
    for table in TABLES:  # and what was imported with the first use stays
        for name in ("log_distance", "look_back"):
            table.pop(name, None)


@pytest.mark.parametrize("fields", [{"position_encoding": "log_distance"}, BOTH], ids=["positions", "both"])
def test_a_model_trains_is_saved_opened_and_searched(fields, page, tiny_config, batch, tmp_path):
    assert page == ["True", "True"], "the page's own checks of the search"
    model = VanillaTransformerForConditionalGeneration(tiny_config(**fields, dropout=0.0))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()(**batch, labels=torch.randint(3, 90, (2, 6))).loss.backward()
    optimizer.step()
    assert [name for name, weight in model.named_parameters() if torch.equal(weight, before[name])] == []
    model.eval().save_pretrained(tmp_path)
    again = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert again.config.position_encoding == "log_distance"
    assert torch.equal(again(**batch).logits, model(**batch).logits)
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    for beams in (1, 3):
        same(again, source, num_beams=beams, max_new_tokens=7)


def test_what_the_rows_say_is_refused_in_one_line(page, tiny_config):
    kept = {"encoder_heads_by_layer": [1] * tiny_config().encoder_layers}
    for fields, message in (
        (
            {"encoder_attention_type": "performer"},
            "encoder_attention_type='performer' with position encoding 'log_dis",
        ),
        (kept, "which has a bias for each of"),
        ({"attention_window": 7}, "only attention of the type 'look_back' or 'window' or 'window_global' has it"),
        ({"encoder_pooling": [1]}, "a mean of two tokens has no position"),
    ):
        with pytest.raises(ValueError, match=message):
            tiny_config(position_encoding="log_distance", **fields)
    with pytest.raises(ValueError, match=r"'encoder_attention_type' expected one of .*'look_back'\), got look_ahead"):
        tiny_config(encoder_attention_type="look_ahead")
    config = tiny_config(position_encoding="log_distance")
    config._attn_implementation = "flex_attention"
    with pytest.raises(ValueError, match="this kernel cannot add the scores of the position encoding"):
        VanillaTransformerForConditionalGeneration(config)


def test_a_class_without_its_row_is_refused():
    with pytest.raises(ValueError, match="Near: 'near' is not a row of a table in config/; add it there first"):
        type("Near", (PositionEncoding,), {}, scheme="near")
    with pytest.raises(ValueError, match="Near: 'near' is not a row of a table in config/; add it there first"):
        type("Near", (VanillaTransformerAttention,), {}, kind="near")
    POSITION_SCHEMES["near"] = PositionScheme()
    try:
        with pytest.raises(ValueError, match="Near: is_relative=True, and the row 'near' has is_relative=False"):
            type("Near", (RelativePositionEncoding,), {}, scheme="near")
    finally:
        del POSITION_SCHEMES["near"]


def test_each_row_has_a_class_and_each_option_a_text():
    for table, rows in ((POSITION_ENCODINGS, POSITION_SCHEMES), (ATTENTION_TYPES, ATTENTION_KINDS)):
        assert all(table[name].__module__.endswith(row.module) for name, row in rows.items())
    hints = VanillaTransformerConfig.__annotations__
    assert hints["position_encoding"].__args__ == (*POSITION_SCHEMES,)
    assert hints["encoder_attention_type"].__args__ == (*ATTENTION_KINDS,)
    for name in (*POSITION_SCHEMES, *ATTENTION_KINDS):
        assert f'`"{name}"`' in (VanillaTransformerConfig.__doc__ or ""), name


# ------------------------------------------------------------------------------------------ as a part of the package

SCRIPT = """
import sys, torch
from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.training.recipe import RecipeParser, all_options
options = "--preset base --position_encoding log_distance --encoder_attention_type look_back --look_back_share 5"
RecipeParser(prog="train").parse(["--output_dir", "x", *options.split()])
helps = {option.name: option.about for group in all_options().values() for option in group}
assert "; log_distance: made up;" in helps["position_encoding"], helps["position_encoding"]
assert "; look_back: made up;" in helps["encoder_attention_type"] and "made up, too" in helps["look_back_share"]
for fields, message in (
    ({}, "look_back_share=3: only attention of the type 'look_back' has it"),
    ({"encoder_attention_type": "look_back"}, ""),
    ({"encoder_attention_type": "look_back", "look_back_share": 0}, "look_back_share=0: must be greater than 0"),
):
    try:
        VanillaTransformerConfig(**{"look_back_share": 3, **fields})
        assert not message
    except ValueError as error:
        assert message and message in str(error), error
torch.manual_seed(0)
sizes = dict(vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=64, decoder_ffn_dim=64)
model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**sizes, **eval(sys.argv[2])))
source = torch.randint(4, 90, (2, 9))
model.train()(source, labels=source).loss.backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
model.eval().save_pretrained(sys.argv[1])
torch.save([source, *(model.generate(source, num_beams=beams, max_new_tokens=6) for beams in (1, 3))], sys.argv[3])
"""
WITHOUT_THE_PACKAGE = """
import sys, torch
sys.modules["vanilla_transformer_hf"] = None
from transformers import AutoModelForSeq2SeqLM
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1], trust_remote_code=True)
source, *expected = torch.load(sys.argv[2], weights_only=True)
for beams, ids in zip((1, 3), expected):
    assert torch.equal(model.generate(source, num_beams=beams, max_new_tokens=6), ids), beams
"""


def put_into(package: Path, code: str, table_file: str, table: str, folder: str) -> None:
    """Do the page's first two steps: the class into a file of its own, the row into its table, words for its name."""
    tree = ast.parse(code)
    assigned = [each for each in tree.body if isinstance(each, ast.Assign)]
    row = next(each for each in assigned if isinstance(each.targets[0], ast.Subscript))
    (kind,) = [each for each in tree.body if isinstance(each, ast.ClassDef)]
    target = row.targets[0]
    assert isinstance(target, ast.Subscript) and ast.unparse(target.value) == table
    rows = package / "model" / "config" / table_file
    text, opening = rows.read_text(encoding="utf-8"), re.compile(rf"^{table}: .* = {{$", re.MULTILINE)
    written = ast.unparse(row.value).replace("(", f"(module='{folder}.made_up', ", 1)
    line = f"    {ast.unparse(target.slice)}: {written},"
    rows.write_text(opening.sub(lambda found: f"{found[0]}\n{line}", text), encoding="utf-8")
    package_name = "from vanilla_transformer_hf.model."
    homes = {f"{package_name}{folder}.": "from .", package_name: "from .."}
    imports = [ast.unparse(each) for each in tree.body if isinstance(each, (ast.Import, ast.ImportFrom))]
    kept = [each for each in imports if "torch" in each and "hf" not in each]
    for each in imports:
        kept += [each.replace(home, near) for home, near in homes.items() if each.startswith(home)][:1]
    add_behind(
        package / "model" / "configuration_vanilla_transformer.py",
        {"positions": '`"none"`: no positions;', "attention": '`"chunk"`: those of its own block;'}[folder],
        f" `{ast.unparse(target.slice)}`: made up;".replace("'", '"'),
    )
    (package / "model" / folder / "made_up.py").write_text(
        "\n".join(['"""Made up."""\n', *kept, "\n", ast.get_source_segment(code, kind) or ""]) + "\n", encoding="utf-8"
    )


def add_behind(path: Path, place: str, words: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(place) == 1, place
    path.write_text(text.replace(place, place + words), encoding="utf-8")


@pytest.mark.slow
def test_as_a_part_of_the_package(tmp_path):
    """Two files, two rows, words for both, and an option; nothing else changes, and saved models bring them."""
    package = tmp_path / "vanilla_transformer_hf"
    ignored = shutil.ignore_patterns("__pycache__", "saved_files")
    shutil.copytree(ROOT / "vanilla_transformer_hf", package, ignore=ignored)
    positions, attention = (next(block for block in BLOCKS if f"{name}[" in block) for name in ("SCHEMES", "KINDS"))
    put_into(package, positions, "position_schemes.py", "POSITION_SCHEMES", "positions")
    put_into(package, attention, "attention_kinds.py", "ATTENTION_KINDS", "attention")
    config = package / "model" / "configuration_vanilla_transformer.py"
    add_behind(config, "    attention_window: int = 128\n", "    look_back_share: int = 2\n")
    about = '        attention_window (`int`): Positions on each side of `"window"` and `"window_global"` attention.\n'
    add_behind(config, about, "        look_back_share (`int`): Made up, too.\n")
    row = "module='attention.made_up', options=('attention_window',"
    add_behind(package / "model" / "config" / "attention_kinds.py", row, " 'look_back_share',")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path / "hf")}
    saved, found = str(tmp_path / "saved"), str(tmp_path / "found.pt")
    for program, arguments in ((SCRIPT, [saved, repr(BOTH), found]), (WITHOUT_THE_PACKAGE, [saved, found])):
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
