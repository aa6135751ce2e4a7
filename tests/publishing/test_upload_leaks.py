"""
Private files and secrets in a model's folder: nothing of them is in what is published.

`test_no_secret_leaves_from_any_place` is the trial whose numbers docs/security.md has.
"""

import json
import os
import pickle
from functools import cache
from pathlib import Path

import pytest
import secret_samples
import torch
from hub_api import TOKEN
from huggingface_hub import ModelCard
from machine import is_linear, seconds_of, within
from peft import LoraConfig, get_peft_model
from pictures import png
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.publishing import upload_plan
from vanilla_transformer_hf.publishing.hub import publish_folder
from vanilla_transformer_hf.publishing.model_card import CardFacts, write_card
from vanilla_transformer_hf.publishing.private_text import find_private_text, hide_secrets
from vanilla_transformer_hf.publishing.upload_plan import plan_upload
from vanilla_transformer_hf.publishing.weight_files import CleanedWeights
from vanilla_transformer_hf.training.checkpoints.files import resumable_files


NAME = "someone/numbers"
PRIVATE = b"what nobody else should read"

# None of them is real.
SECRETS = {
    "AWS key": "AKIAQ7ZK3M5N2P4R6T8V",
    "GitHub token": "ghp_" + "a1B2c3D4e5F6" * 3,
    "fine-grained GitHub token": "github_pat_" + "11ABCDEFG0" * 6,
    "sk- key": "sk-" + "aB3dE6gH9jK2" * 4,
    "sk-proj- key": "sk-proj-" + "aB3_dE6gH9jK2mN4pQ7sT1vX5zC8bF" * 4,
    "Hugging Face token": "hf_" + "QwErTyUiOp" * 3 + "AsDf",
    "Slack token": "xoxb-123456789012-1234567890123-abcdefghijklmnopqrstuvwx",
    "Google key": "AIza" + "SyD3f4g5H6j7K8l9M0n1B2v3C4x5Z6a7S8d",
    "Stripe key": "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc",
    "private key": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "password in an address": "https://somebody:Tr0ub4dor@example.org/data",
    "absolute path": "/srv/customers/acme/train.en",
    "home folder": "~/customers/train.en",
    "Windows path": "C:\\Users\\somebody\\train.en",
}


@pytest.fixture
def folder(tiny_model, tmp_path):
    """A model in two shards as training leaves it, and beside the folder a file that is nobody's business."""
    folder = tmp_path / "model"
    tokenizer = VanillaTransformerTokenizer.train(
        ["one two"], ["eins"], vocab_size=270, src_lang="en", tgt_lang="de", show_progress=False
    )
    tiny_model(vocab_size=len(tokenizer)).save_pretrained(folder, max_shard_size="60KB")
    tokenizer.save_pretrained(folder)
    (folder / "training_curves.png").write_bytes(png())
    write_card(CardFacts(name="model", corpus="number words"), folder)
    (tmp_path / "private").write_bytes(PRIVATE)
    return folder


def contents(plan, place):
    """Name -> bytes of every file that would be sent."""
    for file in plan.files:
        if isinstance(file.source, CleanedWeights):
            file.source.write(place / file.name)
    return {
        file.name: file.source
        if isinstance(file.source, bytes)
        else (place / file.name if isinstance(file.source, CleanedWeights) else file.source).read_bytes()
        for file in plan.files
    }


def change_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes, indent=2, sort_keys=True) + "\n")


@pytest.mark.parametrize(
    "name",
    ["optimizer.pt", "training_args.bin", ".env", "../private", "/etc/hostname", "model.safetensors.bak", 5, None],
)
def test_names_in_the_index_are_those_of_shards(name, folder):
    for each in ("optimizer.pt", "training_args.bin", ".env", "model.safetensors.bak"):
        (folder / each).write_bytes(PRIVATE)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.extra"] = name
    index.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="which is not the name of a file of weights"):
        plan_upload(folder, NAME)


def test_a_shard_is_opened_as_safetensors(folder):
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.extra"] = "model-00009-of-00009.safetensors"
    index.write_text(json.dumps(content))
    shard = folder / "model-00009-of-00009.safetensors"
    shard.write_bytes(pickle.dumps({"private": PRIVATE}))
    with pytest.raises(ValueError, match=r"model-00009-of-00009.safetensors is damaged or incomplete"):
        plan_upload(folder, NAME)
    save_file({"something.else": torch.zeros(3)}, shard)
    with pytest.raises(ValueError, match=r"disagree on whether it holds model.extra"):
        plan_upload(folder, NAME)


def test_the_index_holds_names_and_sizes_alone(folder, tmp_path):
    index = folder / "model.safetensors.index.json"
    before = index.read_bytes()
    content = json.loads(before)
    content["metadata"]["note"] = content["note"] = SECRETS["AWS key"]
    index.write_text(json.dumps(content))
    assert contents(plan_upload(folder, NAME), tmp_path)[index.name] == before


def test_headers_of_weights_hold_tensors_alone(folder, tmp_path):
    tensors = {}
    for path in folder.glob("model*.safetensors*"):
        tensors |= load_file(path) if path.suffix == ".safetensors" else {}
        path.unlink()
    weights = folder / "model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt", "token": SECRETS["Hugging Face token"]})
    data = weights.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["model.encoder.layers.0.fc1.bias"]["note"] = SECRETS["AWS key"]  # which safetensors reads over
    text = json.dumps(header).encode()
    weights.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    load_file(weights)
    (tmp_path / "sent").mkdir()
    plan = plan_upload(folder, NAME)
    sent = contents(plan, tmp_path / "sent")
    assert all(len(sent[file.name]) == file.size for file in plan.files)
    found = {}
    for name, content in sent.items():
        assert not any(secret.encode() in content for secret in SECRETS.values()), name
        if name.endswith(".safetensors"):
            with safe_open(tmp_path / "sent" / name, "pt") as file:
                assert file.metadata() == {"format": "pt"}
                found |= {tensor: file.get_tensor(tensor) for tensor in file.keys()}  # noqa: SIM118
    assert found.keys() == tensors.keys() and all(found[name].equal(tensors[name]) for name in tensors)


@pytest.mark.parametrize(
    "name",
    [
        *("README.md", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
        *("modeling_vanilla_transformer.py", "training_curves.png", "card_facts.json", "shown.png"),
        *("model.safetensors.index.json", "model-00001-of-00005.safetensors"),
    ],
)
@pytest.mark.parametrize("to", ["itself", "private", "/etc/hostname", "nothing"])
def test_links_are_not_followed(name, to, folder, tmp_path):
    if name == "shown.png":
        (folder / "README.md").write_text("# Shows ![a picture](shown.png)\n")
    path = folder / name
    if to == "itself" and path.exists():
        path.rename(tmp_path / "original")
        to = "original"
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / to)
    with pytest.raises(ValueError, match=f"{name} is a symbolic link, which is not followed"):
        plan_upload(folder, NAME)


def test_a_pipe_is_not_waited_for(folder):
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(ValueError, match=r"config.json is not a regular file"):
        plan_upload(folder, NAME)


@pytest.mark.slow
def test_pictures_are_decoded(folder, tmp_path):
    path = folder / "training_curves.png"
    for content in (pickle.dumps({"private": PRIVATE}), png()[:43], PRIVATE, b"\x89PNG\r\n\x1a\n" + PRIVATE):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"training_curves.png is not a (complete )?PNG picture"):
            plan_upload(folder, NAME)
    path.write_bytes(png(7, Comment=SECRETS["AWS key"]) + PRIVATE)
    sent = contents(plan_upload(folder, NAME), tmp_path)["training_curves.png"]
    assert SECRETS["AWS key"].encode() not in sent and PRIVATE not in sent
    path.write_bytes(sent)
    assert Image.open(path).getpixel((0, 0)) == 7
    for mode in ("RGBA", "P", "1", "RGB"):
        before = Image.effect_noise((9, 9), 50).convert(mode)
        before.save(path)
        (tmp_path / "sent.png").write_bytes(contents(plan_upload(folder, NAME), tmp_path)["training_curves.png"])
        assert Image.open(tmp_path / "sent.png").convert("RGBA").tobytes() == before.convert("RGBA").tobytes(), mode


def in_json(name, field):
    return lambda folder, text: change_json(folder / name, **{field: text})


def nested_in_config(folder, text):
    change_json(folder / "config.json", task_specific_params={"translation": {"notes": ["", text]}})


def as_a_key(folder, text):
    change_json(folder / "config.json", notes={text: 1})


def escaped(folder, text):
    path = folder / "config.json"
    code = "".join(f"\\u{ord(character):04x}" for character in text)
    path.write_text(path.read_text().replace("{", f'{{\n  "notes": "{code}",', 1))


def given_twice(folder, text):
    path = folder / "config.json"
    path.write_text(path.read_text().replace("{", f'{{\n  "notes": {json.dumps(text)},\n  "notes": 1,', 1))


def in_code(before):
    def change(folder, text):
        path = folder / "modeling_vanilla_transformer.py"
        path.write_text(f"{path.read_text()}\n{before(text)}\n")

    return change


def in_card(text_of):
    return lambda folder, text: (folder / "README.md").write_text(text_of(text))


def in_facts(folder, text):
    facts = CardFacts.read(folder)
    facts.corpus = f"from {text} of us"
    facts.write(folder)


def in_vocabulary(folder, text):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"][text] = len(content["model"]["vocab"])
    path.write_text(json.dumps(content, ensure_ascii=False))


PLACES = {
    "field of the config": in_json("config.json", "notes"),
    "inner field of the config": nested_in_config,
    "name of a field": as_a_key,
    "escaped in the config": escaped,
    "given twice in the config": given_twice,
    "generation config": in_json("generation_config.json", "notes"),
    "tokenizer's config": in_json("tokenizer_config.json", "notes"),
    "string in the code": in_code(lambda text: f"X = {text!r}"),
    "comment in the code": in_code(lambda text: f"# {text}"),
    "card": in_card(lambda text: f"# Title\n\nIt was made with `{text}`.\n"),
    "card's metadata": in_card(lambda text: f"---\nlicense: mit\nnotes: {json.dumps(text)}\n---\n# Title\n"),
    "facts of the card": in_facts,
    "vocabulary": in_vocabulary,
}
# What was learned from text has pieces such as "/usr/lib"; keys of a JSON object are no values that a path is.
PATHS = ("absolute path", "home folder", "Windows path")
EXPECTED = {("vocabulary", kind) for kind in PATHS}
CHECKED = [(place, kind) for place in PLACES for kind in SECRETS if (place, kind) not in EXPECTED]


def held(folder, place, kind, sent_to):
    """Whether a secret in a place is refused, without being shown, or is not in what is sent."""
    PLACES[place](folder, SECRETS[kind])
    try:
        sent = contents(plan_upload(folder, NAME), sent_to)
    except ValueError as error:
        shown = str(error).replace(str(folder), "")
        is_hidden = kind in PATHS or SECRETS[kind] not in shown  # a field may be called by a path
        return is_hidden and ("contains" in shown or "given twice" in shown)
    written = {SECRETS[kind].encode(), json.dumps(SECRETS[kind])[1:-1].encode()}
    return not any(text in content for content in sent.values() for text in written)


@pytest.mark.parametrize("kind", ["AWS key", "GitHub token", "sk- key", "absolute path"])
def test_a_secret_is_named_by_file_and_field(kind, folder):
    nested_in_config(folder, SECRETS[kind])
    with pytest.raises(ValueError, match=r"config.json, field task_specific_params.translation.notes.1: contains"):
        plan_upload(folder, NAME)


@pytest.mark.parametrize("place", PLACES)
def test_a_secret_is_found_in_every_place(place, folder, tmp_path):
    assert held(folder, place, "AWS key", tmp_path)


@pytest.mark.slow
def test_no_secret_leaves_from_any_place(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(upload_plan, "find_private_text", cache(find_private_text))  # most files stay the same
    before = {path: path.read_bytes() for path in folder.iterdir()}
    lost = []
    for place, kind in CHECKED:
        if not held(folder, place, kind, tmp_path):
            lost.append((place, kind))
        for path, content in before.items():
            path.write_bytes(content)
    print(f"{len(CHECKED) - len(lost)} of {len(CHECKED)} held")
    assert not lost


@pytest.mark.parametrize(
    "text",
    [
        "sk-en-wikipedia-2026-cleaned-corpus of Slovak and English",
        "SHA-256 `3f2c9d4b5a6e7f8091a2b3c4d5e6f70812a3b4c5d6e7f8091a2b3c4d5e6f7081`",
        "[numbers](https://huggingface.co/datasets/someone/numbers) and [more](/datasets/someone/more)",
        "BLEU `nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0`, 3/4 of them, and/or 1 / 2 / 3",
        "`python scripts/train.py scripts/recipes/quickstart.yaml --output_dir outputs/quickstart` > /dev/null",
        "APFELKUCHENREZEPT and a token, a key, a password and a secret",
        "`hf auth login`, HF_TOKEN, api_key=<your key>",
    ],
)
def test_what_is_no_secret_is_published(text):
    assert find_private_text("README.md", text.encode()) == []


def found_in(text):
    """What is found of a text as a line of a card, of a recipe and of a log, and in a field of a config."""
    lines = f"before\n{text}\nafter".encode()
    json_text = json.dumps({"task_specific_params": {"notes": text}}).encode()
    files = {"README.md": lines, "recipe.yaml": lines, "train.log": lines, "config.json": json_text}
    return [find_private_text(name, content) for name, content in files.items()]


@pytest.mark.parametrize("group", ["KEYS", "ASSIGNED", "ADDRESSES", "ARMOURS", "WRITTEN_OTHERWISE"])
def test_secrets_of_known_forms_are_found_everywhere(group):
    texts = getattr(secret_samples, group)
    for text in texts.values() if isinstance(texts, dict) else texts:
        for problems in found_in(text):
            assert any("secret" in problem or "password or key" in problem for problem in problems), text
            assert not any(text in problem for problem in problems)


def test_keys_are_found_in_every_file():
    for key in secret_samples.KEYS.values():
        assert find_private_text("tokenizer.json", json.dumps({"model": {"vocab": {key: 1}}}).encode()), key
        assert find_private_text("modeling_x.py", f'X = "{key}"'.encode()), key


def test_fields_that_are_called_a_secret_are_refused_with_any_value():
    for name, value in secret_samples.FIELDS:
        for content in ({name: value}, {"outer": {name: value}}, {"outer": [{name: value}]}):
            for file in ("config.json", "generation_config.json", "tokenizer_config.json", "trainer_state.json"):
                assert find_private_text(file, json.dumps(content).encode()), (name, value)


def test_absolute_paths_are_found_everywhere():
    for path in (*secret_samples.PATHS, *secret_samples.PATHS_WRITTEN_OTHERWISE):
        for problems in found_in(path):
            assert any("absolute path" in problem for problem in problems), path


def test_what_looks_only_a_little_like_a_secret_is_published():
    for text in secret_samples.HARMLESS:
        assert found_in(text) == [[]] * 4, text
        assert find_private_text("modeling_x.py", f"# {text}".encode()) == [], text
    for name, value in secret_samples.HARMLESS_FIELDS:
        assert find_private_text("tokenizer_config.json", json.dumps({name: value}).encode()) == [], (name, value)


@pytest.mark.parametrize(
    "unit", ["a", "token-", "sk-", "http ", "http://a:", "cookie=", "password=opensesame ", "| a |"]
)
def test_a_long_line_takes_time_that_grows_with_its_length(unit):
    """18 s for 500,000 characters, before what a pattern repeats was bounded."""
    text = (unit * 50_000)[:100_000].encode()
    with within(0.5):
        find_private_text("README.md", text)


def test_names_of_fields_that_are_long_take_time_that_grows_with_their_length():
    def seconds(size):
        deep = 0
        for _ in range(50):
            deep = {"k" * size: deep}
        contents = [json.dumps(each).encode() for each in ({"k" * size: [0] * size}, [deep, *([0] * size)])]
        return seconds_of(lambda: [find_private_text("a.json", content) for content in contents])

    assert is_linear(seconds, 1000)
    long = {"k" * 5000: {"password": "hunter22aB3dE5"}}
    assert find_private_text("a.json", json.dumps(long).encode()), "the last name of a field counts"


def test_there_are_enough_samples():
    groups = ("KEYS", "ASSIGNED", "ADDRESSES", "ARMOURS", "FIELDS")
    assert sum(len(getattr(secret_samples, group)) for group in groups) >= 200
    assert len(secret_samples.HARMLESS) + len(secret_samples.HARMLESS_FIELDS) >= 150


def test_secrets_of_the_environment_are_found(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "opensesame")
    monkeypatch.setenv("WANDB_PROJECT", "numbers-en-de")
    assert find_private_text("README.md", b"It was opensesame.") == [
        "README.md, line 1: contains a secret (one of this process)"
    ]
    assert find_private_text("README.md", b"The project is numbers-en-de.") == []
    assert hide_secrets("it was opensesame") == "it was <token>"


def test_the_cards_and_the_code_of_this_repository_are_clean():
    root = Path(__file__).resolve().parents[2]
    texts = [path for kind in (".md", ".json") for path in root.glob(f"model_cards/**/*{kind}")]
    for path in [*texts, *root.glob("vanilla_transformer_hf/model/*.py")]:
        assert find_private_text(path.name, path.read_bytes()) == [], path


def test_pieces_of_a_vocabulary_are_no_paths_or_passwords():
    content = {"model": {"vocab": {"/usr/lib": 1, "/home/me": 2, "password": 3}, "merges": [["/home", "/me"]]}}
    assert find_private_text("tokenizer.json", json.dumps(content).encode()) == []
    assert find_private_text("tokenizer.json", json.dumps({"x": "/home/me"}).encode()) == [
        "tokenizer.json, field x: contains an absolute path"
    ]


def test_an_adapter_is_cleaned_too(folder, tmp_path):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    adapter = tmp_path / "adapter"
    get_peft_model(model, LoraConfig(task_type="SEQ_2_SEQ_LM")).save_pretrained(adapter)
    weights = adapter / "adapter_model.safetensors"
    tensors = load_file(weights)
    save_file(tensors, weights, metadata={"format": "pt", "note": SECRETS["AWS key"]})
    sent = contents(plan_upload(adapter, NAME, base_model="someone/base"), tmp_path)
    assert SECRETS["AWS key"].encode() not in sent[weights.name]
    save_file(tensors | {SECRETS["AWS key"]: torch.zeros(1)}, weights)
    with pytest.raises(ValueError, match=r"names of tensors, line .*: contains a secret"):
        plan_upload(adapter, NAME, base_model="someone/base")
    weights.write_bytes(PRIVATE)
    with pytest.raises(ValueError, match="is damaged or incomplete"):
        plan_upload(adapter, NAME, base_model="someone/base")


def test_what_a_run_needs_is_searched_too(folder, hub, tmp_path):
    checkpoint = tmp_path / "checkpoint-1"
    checkpoint.mkdir()
    (checkpoint / ".env").write_bytes(PRIVATE)
    (checkpoint / "notes.json").write_text(json.dumps({"key": SECRETS["AWS key"]}))
    beside = resumable_files(checkpoint, "last-checkpoint")
    assert beside.keys() == {"last-checkpoint/notes.json"}
    with pytest.raises(ValueError, match=r"notes.json, field key: contains a secret .*; nothing was sent"):
        publish_folder(folder, NAME, beside=beside)
    (checkpoint / "notes.json").unlink()
    (checkpoint / "optimizer.pt").symlink_to(tmp_path / "private")
    with pytest.raises(ValueError, match=r"optimizer.pt is a symbolic link"):
        publish_folder(folder, NAME, beside=resumable_files(checkpoint, "last-checkpoint"))
    assert not hub.requests


def test_a_broken_file_beside_the_weights_does_not_matter(folder):
    (folder / "model-broken.safetensors").write_bytes(PRIVATE)
    plan = plan_upload(folder, NAME)
    assert "model-broken.safetensors" in plan.left_out
    assert ModelCard(plan.card).text


def test_a_broken_shard_is_one_line(folder):
    shard = sorted(folder.glob("model-*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:200])
    with pytest.raises(ValueError, match=rf"{shard.name} is damaged or incomplete") as caught:
        plan_upload(folder, NAME)
    assert "\n" not in str(caught.value)


def test_secrets_are_hidden_in_what_is_printed():
    for kind in ("AWS key", "GitHub token", "sk- key", "Hugging Face token", "Slack token"):
        assert hide_secrets(f"the server says {SECRETS[kind]}, twice: {SECRETS[kind]}") == (
            "the server says <token>, twice: <token>"
        )
    assert hide_secrets("own-secret", "own-secret") == "<token>"
    assert TOKEN not in hide_secrets(f"Bearer {TOKEN}", TOKEN)
