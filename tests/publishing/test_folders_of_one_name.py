"""Two saved folders with the same last name and different code: each model is made by the code of its own folder."""

import sys

import torch
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from vanilla_transformer_hf import VanillaTransformerConfig


MODEL = "modeling_vanilla_transformer.VanillaTransformerForConditionalGeneration"


def test_each_folder_has_its_own_code(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    model = tiny_model().eval()
    folders = [tmp_path / release / "model" for release in ("older", "newer")]
    for folder in folders:
        model.save_pretrained(folder)
    layers = folders[1] / "layers_vanilla_transformer.py"  # not in the file of the class: in one that it imports
    layers.write_text(layers.read_text(encoding="utf-8") + "\nRELEASE = 'newer'\n", encoding="utf-8")
    classes = [get_class_from_dynamic_module(MODEL, str(folder)) for folder in folders]
    rooms = [each.__module__.rpartition(".")[0] for each in classes]
    assert rooms[0] != rooms[1]
    found = [hasattr(sys.modules[f"{room}.layers_vanilla_transformer"], "RELEASE") for room in rooms]
    assert found == [False, True]
    ids = torch.tensor([[4, 5, 1]])
    for each in classes:
        opened = each(VanillaTransformerConfig.from_pretrained(folders[0])).eval()
        opened.load_state_dict(model.state_dict())
        assert torch.equal(opened(ids, decoder_input_ids=ids).logits, model(ids, decoder_input_ids=ids).logits)
