"""What is the same for every engine: names, folders and libraries are checked, and the script says it in one line."""

import ast
import json
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from vanilla_transformer_hf.commands.main import main
from vanilla_transformer_hf.conversion.targets import export as export_checkpoint
from vanilla_transformer_hf.export import ExportError
from vanilla_transformer_hf.export.export import ENGINES, export_for


ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "vanilla_transformer_hf"


def test_names_of_engines_and_folders_are_checked(save_model, tmp_path):
    _, folder = save_model()
    engines = "ctranslate2, onnx, torch_export"
    message = rf"'fairseq' is not an engine: expected one of {engines} \(checkpoints of other toolkits: "
    with pytest.raises(ExportError, match=message):
        export_for("fairseq", folder, tmp_path / "out")
    with pytest.raises(ExportError, match="nowhere is not a folder: expected the folder of a model"):
        export_for("onnx", tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(ValueError, match="exists already; name a new folder"):
        export_for("onnx", folder, folder)


@pytest.mark.parametrize("change", ["weights", "layers", "width", "no config"])
def test_weights_that_are_not_those_of_the_config_are_refused(change, save_model, tmp_path):
    """transformers would draw what lacks at random, and the comparison would find no difference."""
    _, folder = save_model()
    fields = json.loads((folder / "config.json").read_text())
    if change == "weights":
        weights = load_file(folder / "model.safetensors")
        del weights["model.decoder.layers.0.fc1.weight"]
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    else:
        fields |= {"layers": {"decoder_layers": 2}, "width": {"decoder_ffn_dim": 48}}.get(change, {})
    (folder / "config.json").write_text(json.dumps(fields))
    if change == "no config":
        (folder / "config.json").unlink()
    messages = {
        "weights": "the weights lack model.decoder.layers.0.fc1.weight",
        "layers": "the weights lack model.decoder.layers.1.fc1",
        "width": r"model.decoder.layers.0.fc1.bias has the shape \[64\] instead of \[48\]",
        "no config": "no config.json there",
    }
    for export, name in ((export_for, "onnx"), (export_checkpoint, "marianmt")):
        with pytest.raises((OSError, ValueError), match=messages[change]):
            export(name, folder, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_missing_library_is_named(save_model, tmp_path, monkeypatch):
    _, folder = save_model()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "vanilla_transformer_hf.export.onnx", raising=False)
    message = r"onnx needs onnxruntime, which is not installed: pip install 'vanilla_transformer_hf\[export\]'"
    with pytest.raises(ExportError, match=message):
        export_for("onnx", folder, tmp_path / "out")


def test_no_engine_imports_another():
    for engine in ENGINES:
        tree = ast.parse((PACKAGE / "export" / f"{engine}.py").read_text(encoding="utf-8"))
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1}
        assert imported <= {None, "comparison", "ctranslate2_options", "export", "steps", "transformers_js"}, engine


def test_the_command_knows_the_engines_and_says_errors_in_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    described = capsys.readouterr().out
    assert all(f"\n    {engine}" in described for engine in ENGINES)
    with pytest.raises(SystemExit) as end:
        main(["export", "torch_export", str(tmp_path / "nowhere"), str(tmp_path / "out")])
    assert end.value.code == 2
    assert (
        capsys.readouterr().err
        == f"vanilla-transformer export: {tmp_path / 'nowhere'} is not a folder: expected the folder of a model\n"
    )
