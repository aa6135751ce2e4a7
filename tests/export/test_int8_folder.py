"""`quantize`, and `quantization` of a Translator."""

import json

import pytest
import torch
from counting_model import SOURCES
from safetensors import safe_open

from vanilla_transformer_hf import Translator
from vanilla_transformer_hf.commands.main import main
from vanilla_transformer_hf.common.checksums import verify_folder
from vanilla_transformer_hf.serving.server import ServerSettings, open_models


PAIRS = (["one two", "three"], ["zwei eins", "drei"])


@pytest.fixture
def quantized(counting_folder):
    return Translator.from_pretrained(counting_folder, "cpu", matmul_backend="default", quantization="int8")


def test_quantize_writes_a_whole_folder(counting_folder, quantized, tmp_path, capsys):
    main(["quantize", counting_folder, "--output_dir", str(tmp_path / "int8")])
    assert "MB of weights instead of" in capsys.readouterr().out
    verify_folder(tmp_path / "int8")
    assert "int8 with one step for each output" in (tmp_path / "int8" / "README.md").read_text()
    assert json.loads((tmp_path / "int8" / "config.json").read_text())["quantization_config"]
    with safe_open(tmp_path / "int8" / "model.safetensors", "pt") as file:
        matrices = [name for name in list(file.keys()) if f"{name}_scale" in set(file.keys())]
        assert matrices and all(file.get_tensor(name).dtype == torch.int8 for name in matrices)
    opened = Translator.from_pretrained(tmp_path / "int8", "cpu", matmul_backend="default")
    assert opened.translate(SOURCES[:4]) == quantized.translate(SOURCES[:4])
    for folder, message in ((tmp_path / "int8", "its weights are quantized already"), (counting_folder, "exists")):
        out = tmp_path / "int8" if message == "exists" else tmp_path / "more"
        with pytest.raises(SystemExit):
            main(["quantize", str(folder), "--output_dir", str(out)])
        assert message in capsys.readouterr().err and not (tmp_path / "more").exists()
    with pytest.raises(SystemExit):
        main(["export", "torch_export", str(tmp_path / "int8"), str(tmp_path / "more")])
    assert "int8: its weights are quantized; export the model that it was made from" in capsys.readouterr().err


def test_scores_are_computed_with_the_rounded_products_of_the_search(translator, quantized):
    plain = [score.log_probability for score in translator.score(*PAIRS)]
    found = [score.log_probability for score in quantized.score(*PAIRS)]
    assert plain != found and found == pytest.approx(plain, abs=0.2)
    beam = quantized.translate("one two", num_beams=2, return_scores=True)
    greedy = quantized.translate("one two", return_scores=True)  # by a second pass
    assert greedy == beam == "zwei eins" and greedy.score == pytest.approx(beam.score, abs=1e-5)
    with pytest.raises(ValueError, match="quantization='int4': expected 'int8', 'int8_reduced' or None"):
        Translator(translator.model, translator.tokenizer, quantization="int4")


def test_server_and_score_command_take_it(counting_folder, tmp_path, capsys):
    (served,) = open_models(ServerSettings([counting_folder], device="cpu", quantization="int8"))
    assert served.batcher.translator.quantization == "int8"
    for name, lines in zip(("a.en", "a.de"), PAIRS):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    files = [str(tmp_path / "a.en"), str(tmp_path / "a.de"), "--matmul", "default", "--device", "cpu"]
    outputs = []
    for more in ([], ["--quantization", "int8"]):
        main(["score", counting_folder, *files, *more])
        outputs.append([float(line) for line in capsys.readouterr().out.splitlines()])
    assert outputs[0] != outputs[1] and outputs[1] == pytest.approx(outputs[0], abs=0.2)
