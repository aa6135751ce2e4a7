"""
A checkpoint is somebody else's: no name that it states, and no link in it, brings a file of this machine into the
model that is made of it and perhaps published.
"""

import json

import pytest
import test_fairseq
import test_joeynmt
import test_marianmt
import torch
import yaml
from checkpoints import WRITERS, write
from samples import files_on_the_card

from vanilla_transformer_hf.conversion import CONVERTERS, ConversionError, convert
from vanilla_transformer_hf.conversion.formats.files import checked, named


SECRET = ["-----BEGIN-KEY-----", "c2VjcmV0", "a2V5", "bGluZQ", "-----END-KEY-----"]


@pytest.fixture
def secret(tmp_path):
    """A private file of the user's, outside every checkpoint, with as many lines as a vocabulary."""
    (tmp_path / "private").mkdir()
    path = tmp_path / "private" / "id_rsa"
    path.write_text("\n".join(SECRET) + "\n")
    return path


def spelled(path, way):
    return str(path) if way == "absolute" else f"../private/{path.name}"


def refused(source, folder, tmp_path, match):
    with pytest.raises(ConversionError, match=match) as error:
        convert(source, folder, tmp_path / "out")
    assert SECRET[1] not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_every_source_has_a_checkpoint_here():
    assert WRITERS.keys() == CONVERTERS.keys()


@pytest.mark.parametrize("way", ["absolute", "above"])
def test_joeynmt_reads_its_vocabulary_beside_itself_only(way, secret, tmp_path):
    toy, model, _ = test_joeynmt.make()
    words = {"src": [*test_joeynmt.SPECIALS, *SECRET], "trg": test_joeynmt.WORDS["trg"]}
    data = {"src": {"lang": "en", "level": "word", "voc_file": spelled(secret, way)}}
    folder = test_joeynmt.write(tmp_path / "run", toy, model, data=data, words=words)
    (folder / "src_vocab.txt").unlink()
    refused("joeynmt", folder, tmp_path, "lacks src_vocab.txt")
    # Where it lay in training says nothing here: beside the checkpoint it is found by its name.
    (folder / secret.name).write_text("\n".join(test_joeynmt.WORDS["src"]) + "\n")
    convert("joeynmt", folder, tmp_path / "out")
    assert SECRET[1] not in (tmp_path / "out" / "tokenizer.json").read_text()


@pytest.mark.parametrize("way", ["absolute", "above"])
@pytest.mark.parametrize("source", ["torch_nn", "annotated"])
@pytest.mark.parametrize("setting", ["checkpoint", "vocabulary", "source_vocabulary"])
def test_yaml_settings_name_files_beside_them_only(setting, source, way, secret, tmp_path):
    write(source, folder := tmp_path / "run")
    if setting == "checkpoint":
        secret = secret.with_name("private.pt")
        torch.save(torch.load(folder / "model.pt"), secret)
    settings = yaml.safe_load((folder / "settings.yaml").read_text()) | {setting: spelled(secret, way)}
    if setting == "source_vocabulary":
        settings["target_vocabulary"] = "vocab.txt"
        (folder / "vocab.txt").write_text("x\n")
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
    refused(source, folder, tmp_path, r"id_rsa is missing|holds private\.pt")


@pytest.mark.parametrize("way", ["absolute", "above"])
def test_an_index_of_weights_names_files_beside_it_only(way, tmp_path):
    model = test_marianmt.build({})
    test_marianmt.save(model, tmp_path / "private", {})
    test_marianmt.save(model, tmp_path / "run", {})
    (tmp_path / "run" / "model.safetensors").unlink()
    stated = spelled(tmp_path / "private" / "model.safetensors", way)
    index = {"weight_map": dict.fromkeys(["model.shared.weight"], stated)}
    (tmp_path / "run" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises((ConversionError, FileNotFoundError)):
        convert("marianmt", tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_fairseq_reads_the_dictionaries_of_its_own_folders_only(secret, tmp_path):
    content = test_fairseq.Reference({}).content()
    folder = tmp_path / "run"
    test_fairseq.Reference({}).write(folder)
    (folder / "dict.x").mkdir()
    options = content.get("cfg", content.get("args"))
    assert options is not None
    text = secret.with_name("dict.secret.txt")
    text.write_text("".join(f"{line} 1\n" for line in SECRET))

    def rename(value):
        value = vars(value) if hasattr(value, "__dict__") else value
        for name, item in value.items():
            if name == "source_lang":
                value[name] = "x/../../private/dict.secret"
            elif isinstance(item, dict) or hasattr(item, "__dict__"):
                rename(item)

    rename(options)
    torch.save(content, folder / "checkpoint_best.pt")
    refused("fairseq", folder, tmp_path, "not the name of a dictionary")


@pytest.mark.parametrize("source", WRITERS)
def test_no_source_follows_a_link_out_of_its_folder(source, tmp_path):
    write(source, folder := tmp_path / "run")
    (tmp_path / "private").mkdir()
    convert(source, folder, tmp_path / "whole")
    files = [path for path in folder.iterdir() if path.is_file()]
    listed = {path.name for path in files} - {"checkpoint"}  # of tensor2tensor, which only names the latest
    assert files_on_the_card(tmp_path / "whole") == listed
    for path in files:
        path.rename(hidden := tmp_path / "private" / path.name)
        path.symlink_to(hidden)
        refused(source, folder, tmp_path, f"{path.name} is a link to .*, outside its folder")
        path.unlink()
        hidden.rename(path)
    assert len(files) >= 2 - (source == "opennmt_py")


def test_links_inside_a_folder_and_in_the_hubs_cache_are_followed(tmp_path):
    """JoeyNMT's best.ckpt is a link; the cache links its snapshots to its blobs."""
    write("joeynmt", folder := tmp_path / "run")
    (folder / "best.ckpt").rename(folder / "400.ckpt")
    (folder / "best.ckpt").symlink_to("400.ckpt")
    convert("joeynmt", folder, tmp_path / "a")
    snapshot, blobs = tmp_path / "models--x" / "snapshots" / "0a1b", tmp_path / "models--x" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate([*write("marianmt", tmp_path / "marianmt").iterdir()]):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    convert("marianmt", snapshot, tmp_path / "b")


@pytest.mark.parametrize("name", ["", ".", "..", "a/..", "/", "x\0y", None, 7, ["x"]])
def test_what_is_not_the_name_of_a_file_is_refused(name, tmp_path):
    with pytest.raises(ConversionError, match="is not the name of a file"):
        named(tmp_path, name)


def test_links_in_a_circle_and_folders_are_not_files(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "c").mkdir()
    for name in ("a", "c"):
        with pytest.raises(
            (ConversionError, OSError), match=r"broken symbolic link|not a regular file|symbolic links"
        ):
            checked(tmp_path / name)
