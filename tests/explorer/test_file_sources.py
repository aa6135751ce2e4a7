"""Models that read recordings and images in the explorer: files in the place of a sentence, and the same numbers."""

import base64
import io
import re

import pytest
import torch
from files_to_explore import hears, sees
from PIL import Image
from starlette.testclient import TestClient

from vanilla_transformer_hf.commands.main import main
from vanilla_transformer_hf.evaluation.diagonality import diagonality
from vanilla_transformer_hf.explorer import file_sources
from vanilla_transformer_hf.explorer.explorer import Explorer
from vanilla_transformer_hf.explorer.page import key_of, page_of
from vanilla_transformer_hf.explorer.requests import LONGEST_FILE, FileRequest, RequestError
from vanilla_transformer_hf.explorer.results import from_json
from vanilla_transformer_hf.explorer.server import make_app
from vanilla_transformer_hf.explorer.subject import Subject
from vanilla_transformer_hf.translation.recognition import Recognizer, batch_of, read_image, read_speech


READ = {"speech": read_speech, "image": read_image}
FILES = {"speech": "tones.wav", "image": "glyph.png"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {
        "speech": hears(tmp_path_factory.mktemp("speech") / "hears"),
        "image": sees(tmp_path_factory.mktemp("image") / "sees"),
    }


@pytest.fixture(scope="module", params=["speech", "image"])
def opened(request, folders):
    """An explorer with one file, its kind, and what transformers makes of it: ids and the outputs of a pass."""
    kind, folder = request.param, folders[request.param]
    explorer = Explorer.open([folder])
    explorer.open_files(kind, [folder / FILES[kind]])
    recognizer = Recognizer(str(folder))
    batch = batch_of(recognizer.input_name, [READ[kind](folder / FILES[kind], recognizer.processor)])
    ids = recognizer.model.generate(**batch, num_beams=3, num_return_sequences=3)
    recognizer.model.set_attn_implementation("eager")
    with torch.no_grad():
        outputs = recognizer.model(**batch, decoder_input_ids=ids[:1, :-1], output_attentions=True)
    return explorer, kind, recognizer, ids, outputs


def test_the_numbers_are_those_of_the_model(opened):
    explorer, kind, recognizer, ids, outputs = opened
    text = FILES[kind]
    found = explorer.answer("translate", {"text": text, "num_beams": 3})
    texts = recognizer.processor.tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert [one["text"] for one in found["hypotheses"]] == texts and len(found["tree"]) > 6
    pair = {"text": text, "target_ids": ids[0, 1:].tolist()}
    probabilities = outputs.logits[0].softmax(dim=-1)
    for step, row in zip(explorer_steps(explorer, text), probabilities):
        assert step["probability"] == pytest.approx(float(row[step["piece"]["id"]]), abs=1e-6)
    for part, name in {
        "encoder": "encoder_attentions",
        "decoder": "decoder_attentions",
        "cross": "cross_attentions",
    }.items():
        for layer, weights in enumerate(getattr(outputs, name)):
            answer = explorer.answer("attention", {**pair, "part": part, "layer": layer})
            torch.testing.assert_close(from_json(answer["weights"]), weights[0], atol=1e-6, rtol=1e-6)
            head = explorer.answer("head", {**pair, "part": part, "layer": layer, "head": 1})
            torch.testing.assert_close(from_json(head["weights"]), weights[0, 1], atol=1e-6, rtol=1e-6)
    boxes = {box["name"]: box for box in explorer.answer("walk", pair)["boxes"]}
    assert boxes["encoder.embedding"]["formula"] == {"speech": "Conv(frames)", "image": "[patch] W + b"}[kind]
    logits = from_json(explorer.answer("tensor", {**pair, "box": "logits"}))
    torch.testing.assert_close(logits, outputs.logits[0], atol=1e-6, rtol=1e-6)
    assert explorer.answer("positions", {"length": 5})["scheme"] == "sinusoidal"


def explorer_steps(explorer, text):
    return explorer.answer("translate", {"text": text, "num_beams": 3})["hypotheses"][0]["steps"]


def test_the_source_is_what_the_model_reads(opened):
    explorer, kind, _, ids, _ = opened
    (info,) = explorer.answer("models", {})
    assert (info["reads"], info["files"], info["example"]) == (kind, [FILES[kind]], FILES[kind])
    found = explorer.answer("source", {"text": FILES[kind]})
    picture, cells = from_json(found["picture"]), from_json(found["cells"])
    attention = explorer.answer("attention", {"text": FILES[kind], "target_ids": ids[0, 1:].tolist()})
    assert [piece["text"] for piece in attention["columns"]] == found["names"] and len(cells) == len(found["names"])
    if kind == "speech":
        assert picture.shape[0] == 16 and found["seconds"] == 0.01 and found["seen"] == 7
        assert found["names"][:3] == ["0.00 s", "0.04 s", "0.08 s"]
    else:
        assert picture.shape == (8, 24) and found["names"][-1] == "patch 5" and picture[2, 3] == 1
        assert cells[2].tolist() == [8, 0, 12, 8]


def test_diagonality_is_that_of_the_weights(opened):
    explorer, kind, recognizer, ids, outputs = opened
    target = ids[0, 1:].tolist()
    found = explorer.answer("diagonality", {"text": FILES[kind], "target_ids": target, "layer": 1})
    rows = [index not in recognizer.processor.tokenizer.all_special_ids for index in target]
    used = 4 if kind == "image" else None  # 16 of 24 pixels are no padding
    weights = outputs.cross_attentions[1][0][:, rows, :used]
    expected = diagonality(torch.cat((weights.mean(dim=0, keepdim=True), weights)))
    assert found["order"] == pytest.approx(expected.order.tolist(), abs=1e-6)
    assert found["off_diagonal"] == pytest.approx(expected.off_diagonal.tolist(), abs=1e-6)


def sent(folder, kind):
    return base64.b64encode((folder / FILES[kind]).read_bytes()).decode()


def test_a_page_opens_files(folders):
    explorer = Explorer.open([folders["image"], folders["speech"]])
    with pytest.raises(RequestError, match=r"'glyph\.png' is not an open file: none is open"):
        explorer.answer("translate", {"text": "glyph.png"})
    data = sent(folders["image"], "image")
    found = explorer.answer("file", {"name": "/home/someone/glyph.png", "data": data})
    assert found == {"name": "glyph.png", "files": ["glyph.png"]}  # without its path
    assert explorer.answer("file", {"name": "glyph.png", "data": data})["files"] == ["glyph.png"]
    other = io.BytesIO()
    Image.new("L", (9, 8), color=90).save(other, "PNG")
    more = {"name": "glyph.png", "data": base64.b64encode(other.getvalue()).decode()}
    assert explorer.answer("file", more)["name"] == "glyph.png (2)"
    assert explorer.answer("translate", {"text": "glyph.png (2)"})["hypotheses"]
    heard = explorer.answer("file", {"model": "hears", "name": "a.wav", "data": sent(folders["speech"], "speech")})
    assert heard["files"] == ["a.wav"]
    with pytest.raises(ValueError, match=r"glyph.png is not a recording|soundfile"):
        explorer.open_files("speech", [folders["image"] / "glyph.png"])


def test_files_may_be_larger_than_other_questions(folders):
    client = TestClient(make_app(Explorer.open([folders["speech"]])), "http://127.0.0.1")
    for question, status in (("file", 422), ("translate", 413)):
        answer = client.post(f"/api/{question}", json={"name": "a.wav", "data": "A" * 2**21})
        assert answer.status_code == status and answer.json()["error"]


def test_old_files_give_way(folders, monkeypatch):
    monkeypatch.setattr(file_sources, "MOST_FILES", 2)
    subject = Explorer.open([folders["image"]]).subjects["sees"]
    for number in range(3):
        content = io.BytesIO()
        Image.new("L", (8, 8), color=number).save(content, "PNG")
        subject.open_file(f"{number}.png", content.getvalue())
    assert [*subject.files] == ["1.png", "2.png"] and subject.example in subject.files


@pytest.mark.parametrize(
    ("kind", "values", "field", "message"),
    [
        ("image", {"data": "?"}, "data", "is not base64"),
        ("image", {"data": ""}, "data", "is empty: send a file"),
        ("image", {"data": "QUJD"}, "data", "x.png is not an image"),
        ("image", {"data": "A" * (LONGEST_FILE + 4)}, "data", "characters; expected at most"),
        ("speech", {"name": "x.wav", "data": "QUJD"}, "data", "x.wav is not a WAV file"),
        ("speech", {"name": "", "data": "QUJD"}, "name", "is empty"),
    ],
)
def test_files_that_cannot_be_read_are_refused(kind, values, field, message, folders):
    explorer = Explorer.open([folders[kind]])
    with pytest.raises(RequestError, match=re.escape(message)) as caught:
        explorer.answer("file", {"name": "x.png", **values})
    assert caught.value.field == field and "\n" not in str(caught.value)
    assert not explorer.answer("models", {})[0]["files"]


def test_long_recordings_are_refused_by_their_positions(folders, monkeypatch):
    monkeypatch.setattr(file_sources, "MOST_PIECES", 5)
    explorer = Explorer.open([folders["speech"]])
    with pytest.raises(ValueError, match=r"tones.wav has 13 positions in the encoder; expected at most 5"):
        explorer.open_files("speech", [folders["speech"] / "tones.wav"])


def test_models_of_text_have_no_files(opened_translator):
    explorer = Explorer([Subject("counting", opened_translator.model, opened_translator.tokenizer)])
    for question in ("file", "source"):
        with pytest.raises(RequestError, match="counting reads text, no files"):
            explorer.answer(question, {"text": "one"})
    with pytest.raises(ValueError, match="no model reads speech: counting reads text"):
        explorer.open_files("speech", ["one.wav"])
    assert FileRequest.read({"data": "A" * 30_000}).data  # longer than a text may be


def test_a_kept_page_holds_the_picture_and_no_path(folders, tmp_path, capsys, monkeypatch):
    explorer = Explorer.open([folders["image"]])
    (name,) = explorer.open_files("image", [folders["image"] / "glyph.png"])
    page = page_of(explorer, name, {"num_beams": 2})
    for question in ("source", "diagonality"):
        assert f'"{question} ' in page
    assert key_of("source", {"model": "sees", "text": name}).replace('"', '\\"') in page
    main(
        [
            "explore",
            str(folders["speech"]),
            "--html",
            str(tmp_path / "a.html"),
            "--audio",
            str(folders["speech"] / "tones.wav"),
        ]
    )
    assert capsys.readouterr().out == f"saved in {tmp_path / 'a.html'}\n"
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert str(tmp_path) not in text and str(folders["speech"]) not in text and "tones.wav" in text
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.html").write_bytes(b"RIFF")
    for arguments, message in (
        (["--html", "x.html", "--audio", "a.wav", "b.wav"], "--html shows one source"),
        (["--html", "x.html", "--text", "a", "--audio", "a.wav"], "--html shows one source"),
        (["--image", "glyph.png"], "no model reads image: hears reads speech"),
        (["--html", "x.html", "--audio", "nowhere.wav"], "nowhere.wav"),
        (["--html", "x.html", "--audio", "./x.html"], "./x.html is also the output"),
        (["--html", str(tmp_path / "none" / "x.html"), "--audio", "a.wav"], "expected a file in a folder that exists"),
        (["--num_beams", "2", "--audio", "a.wav"], "--num_beams is that of --html"),
        (
            ["--html", "x.html", "--audio", "a.wav", "--port", "80", "--open"],
            "serves nothing: leave out --open, --port",
        ),
        (["--html", "x.html", "--text", "a sentence"], "'a sentence' is not an open file"),
    ):
        with pytest.raises(SystemExit):
            main(["explore", str(folders["speech"]), *arguments])
        assert message in capsys.readouterr().err and (tmp_path / "x.html").read_bytes() == b"RIFF"
