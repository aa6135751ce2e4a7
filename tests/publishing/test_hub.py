"""Publishing a folder, with the real client in front of a Hub on loopback: what arrives, and what a fault leaves."""

import logging
import re
import subprocess
import sys
import traceback

import pytest
from hub_api import FIRST_COMMIT, OTHER_TOKEN, READ_ONLY_TOKEN, TOKEN
from hub_server import ROOT
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from pictures import png

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.publishing.hub import PublishError, plan_upload, publish_folder


REPOSITORY = "someone/numbers"
WRONG_TOKEN = f"hf_{'wrong':x<34}"


@pytest.fixture
def folder(tiny_model, tmp_path):
    """A model as training leaves it, and beside it what training leaves too."""
    folder = tmp_path / "model"
    tokenizer = VanillaTransformerTokenizer.train(["one two three"], vocab_size=300, show_progress=False)
    tiny_model(vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: cc0-1.0\n---\n# Numbers\n")
    (folder / "training_curves.png").write_bytes(png())
    (folder / "training_args.bin").write_bytes(b"pickle")
    (folder / "checkpoints" / "checkpoint-1").mkdir(parents=True)
    return folder


@pytest.fixture
def publish(hub, folder, monkeypatch):
    """`publish(**options)`: the folder goes to the Hub."""
    monkeypatch.setattr("vanilla_transformer_hf.publishing.hub.time.sleep", hub.waits.append)
    said = []

    def publish(repo_id=REPOSITORY, **options):
        return publish_folder(folder, repo_id, say=said.append, **options)

    publish.said = said
    return publish


def planned(folder):
    """What is to be on the Hub."""
    sources = {file.name: file.source for file in plan_upload(folder, REPOSITORY).files}
    return {name: source if isinstance(source, bytes) else source.read_bytes() for name, source in sources.items()}


def test_a_folder_is_published_in_one_commit(publish, hub, folder):
    done = publish(message="First")
    repository = hub.repositories[REPOSITORY]
    assert repository.files() == planned(folder)
    assert {"model.safetensors", "README.md", "training_curves.png", "modeling_vanilla_transformer.py"} <= {
        *repository.files()
    }
    assert "training_args.bin" not in repository.files()
    first, commit = repository.commits
    assert (first, repository.commits[commit].title) == (FIRST_COMMIT, "First")
    assert (done.repo_id, done.commit, done.url) == (REPOSITORY, commit, f"{hub.endpoint}/{REPOSITORY}")
    assert not repository.private
    assert len(hub.sent("PUT /lfs/.*")) == 7, "a file in six parts, and one whole"
    assert len(hub.sent("POST .*/verify")) == 2


def test_again_only_what_has_changed_is_sent(publish, hub, folder):
    publish()
    sent = len(hub.sent("PUT .*"))
    assert publish().commit == hub.repositories[REPOSITORY].commit_id()
    assert len(hub.repositories[REPOSITORY].commits) == 2, "nothing has changed: no commit"
    (folder / "README.md").write_text("---\nlicense: cc0-1.0\n---\n# More numbers\n")
    done = publish()
    assert hub.repositories[REPOSITORY].commits[done.commit].changed == ["README.md"]
    assert len(hub.sent("PUT .*")) == sent
    assert hub.repositories[REPOSITORY].files() == planned(folder)


def test_weights_of_an_earlier_upload_go(publish, hub, folder, tiny_model):
    model = tiny_model()
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="50KB")
    publish()
    assert "model.safetensors.index.json" in hub.repositories[REPOSITORY].files()
    for path in folder.glob("model*"):
        path.unlink()
    model.save_pretrained(folder)
    publish()
    weights = {name for name in hub.repositories[REPOSITORY].files() if name.startswith("model") and name[5] in ".-"}
    assert weights == {"model.safetensors"}


def test_private(publish, hub, folder):
    publish(private=True)
    assert hub.repositories[REPOSITORY].private
    publish()  # stays so
    assert hub.repositories[REPOSITORY].private
    for token in (OTHER_TOKEN, False):
        with pytest.raises(RepositoryNotFoundError):
            HfApi().model_info(REPOSITORY, token=token)
    publish("numbers-too")  # of the token's owner
    assert hub.repositories["someone/numbers-too"].files() == planned(folder)
    with pytest.raises(PublishError, match="public"):
        publish("numbers-too", private=True)


def test_branch_and_tag(publish, hub, folder):
    publish()
    (folder / "README.md").write_text("---\nlicense: cc0-1.0\n---\n# Other numbers\n")
    done = publish(revision="smaller/one", tag="v2")
    repository = hub.repositories[REPOSITORY]
    assert repository.files("smaller/one") == planned(folder) != repository.files()
    refs = HfApi().list_repo_refs(REPOSITORY)
    assert {branch.name for branch in refs.branches} == {"main", "smaller/one"}
    assert [(tag.name, tag.target_commit) for tag in refs.tags] == [("v2", done.commit)]


@pytest.mark.parametrize("token", [TOKEN, OTHER_TOKEN])
def test_pull_request(publish, hub, folder, token):
    publish()
    before = hub.repositories[REPOSITORY].files()
    (folder / "README.md").write_text("---\nlicense: cc0-1.0\n---\n# Better numbers\n")
    (folder / "training_curves.png").write_bytes(png(1))
    done = publish(create_pr=True, token=token)
    assert done.pull_request == f"{hub.endpoint}/{REPOSITORY}/discussions/1"
    assert hub.repositories[REPOSITORY].files() == before
    assert hub.repositories[REPOSITORY].files("refs/pr/1") == planned(folder)


# Faults that pass: (request, what becomes of it, seconds to wait that are asked for).
PASSING = {
    "storage answers 500": ("PUT /lfs/.*", {"status": 500, "times": 2}, 0),
    "storage is busy": ("PUT /lfs/.*", {"status": 429, "retry_after": 7}, 7),
    "upload breaks off": ("PUT /lfs/.*", {"cut_after": 1000}, 0),
    "last part breaks off": ("PUT /lfs/.*/3", {"cut_after": 10}, 0),
    "answer of the storage is lost": ("POST /lfs/.*/complete", {"answer_is_lost": True}, 0),
    "check of the upload": ("POST .*/verify", {"status": 502}, 0),
    "list of large files": ("POST .*/batch", {"status": 503}, 0),
    "list of files": ("POST .*/preupload/.*", {"status": 500, "times": 3}, 0),
    "is it there": ("GET /api/models/.*", {"status": 500}, 0),
    "too many questions": ("GET /api/models/.*", {"status": 429, "retry_after": 5}, 5),
    "no repository yet": ("POST /api/repos/create", {"status": 504}, 0),
    "answer of the new repository is lost": ("POST /api/repos/create", {"answer_is_lost": True}, 0),
    "check of the card": ("POST /api/validate-yaml", {"status": 500}, 0),
    "too many commits": ("POST .*/commit/.*", {"status": 429, "retry_after": 11}, 11),
    "commit answers 500": ("POST .*/commit/.*", {"status": 500, "times": 3}, 0),
    "commit breaks off": ("POST .*/commit/.*", {"cut_after": 1000}, 0),
    "answer of the commit is lost": ("POST .*/commit/.*", {"answer_is_lost": True}, 0),
}


@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_is_tried_again(fault, publish, hub, folder):
    pattern, what, seconds = PASSING[fault]
    hub.fail(pattern, **what)
    done = publish()
    assert not hub.faults[0].times, "it did happen"
    assert hub.repositories[REPOSITORY].files() == planned(folder)
    assert [*hub.repositories[REPOSITORY].commits] == [FIRST_COMMIT, done.commit], "one commit, not two"
    assert seconds <= max(hub.waits) <= 30, hub.waits


# Faults that stay: (request, answer, part of the message, the most requests of that kind that make sense).
LASTING = {
    "storage": ("PUT /lfs/.*", {"status": 500}, "500", 20),
    "uploads break off": ("PUT /lfs/.*", {"cut_after": 1000}, "connection", 20),
    "the disk of the Hub is full": ("POST .*/verify", {"status": 507}, "507", 2),
    "commit": ("POST .*/commit/.*", {"status": 500}, "500", 6),
    "commit is refused": ("POST .*/commit/.*", {"status": 400, "message": "bad\nfile"}, "bad file", 1),
    "commit is too large": ("POST .*/commit/.*", {"status": 413}, "larger", 1),
    "commit may wait a day": ("POST .*/commit/.*", {"status": 429, "retry_after": 86400}, "too many requests", 1),
    "commits break off": ("POST .*/commit/.*", {"cut_after": 1000}, "connection", 6),
    "card": ("POST /api/validate-yaml", {"status": 500}, "500", 6),
    "card is refused": ("POST /api/validate-yaml", {"status": 400}, "Invalid metadata", 1),
    # The client itself would sleep as long as it is told.
    **{
        f"{what} may wait for days": (pattern, {"status": status, "retry_after": 100_000}, "100,000 s", 3)
        for what, pattern, status in (
            ("storage", "PUT /lfs/.*", 429),
            ("list of files", "POST .*/preupload/.*", 503),
            ("list of large files", "POST .*/batch", 429),
            ("check of the upload", "POST .*/verify", 500),
        )
    },
    "xet": ("GET .*/xet-write-token/.*", {"status": 501}, "501", 1),
}


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("fault", LASTING)
def test_what_stays_changes_nothing(fault, is_new, publish, hub, folder, monkeypatch):
    if not is_new:
        publish()
        (folder / "training_curves.png").write_bytes(png(2))
        (folder / "README.md").write_text("---\nlicense: cc0-1.0\n---\n# Never seen\n")
    before = hub.repositories[REPOSITORY].commit_id() if not is_new else FIRST_COMMIT
    hub.requests.clear()
    pattern, what, message, most = LASTING[fault]
    if fault == "xet":
        pytest.importorskip("hf_xet")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
    hub.fail(pattern, times=10**6, **what)
    with pytest.raises(PublishError, match=message) as caught:
        publish()
    line = str(caught.value)
    assert "\n" not in line and REPOSITORY in line
    assert ("the new repository exists and is empty" if is_new else "nothing was changed") in line
    assert hub.repositories[REPOSITORY].commit_id() == before
    assert 0 < len(hub.sent(pattern)) <= most
    assert max(hub.waits, default=0) <= 30


def test_a_model_that_is_there_without_its_tag_is_told(publish, hub):
    hub.fail("POST .*/tag/.*", 403)
    with pytest.raises(PublishError, match="the model itself was published") as caught:
        publish(tag="v1")
    assert hub.repositories[REPOSITORY].commit_id() in str(caught.value)


def test_a_pull_request_is_not_opened_twice(publish, hub, folder):
    publish()
    (folder / "README.md").write_text("---\nlicense: cc0-1.0\n---\n# Better numbers\n")
    hub.fail("POST .*/commit/.*", answer_is_lost=True)
    with pytest.raises(PublishError, match=r"connection failed .* pull request"):
        publish(create_pr=True, message="Once")
    assert [ref for ref in hub.repositories[REPOSITORY].refs if "pr" in ref] == ["refs/pr/1"]


def test_without_a_network(publish, hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PublishError, match="HF_HUB_OFFLINE is set; nothing was sent"):
        publish()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(PublishError, match=r"the connection failed .*; nothing was sent"):
        publish(endpoint="http://127.0.0.1:1")  # where nobody listens
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(PublishError, match="no Hub token found: run `hf auth login`"):
        publish()
    assert not hub.requests


# Tokens that may not: (token, name of the repository, part of the message).
TOKENS = {
    "wrong": (WRONG_TOKEN, REPOSITORY, "token is not accepted"),
    "wrong, without an owner's name": (WRONG_TOKEN, "numbers", "token is not accepted"),
    "read-only": (READ_ONLY_TOKEN, REPOSITORY, "has no write access"),
    "name of somebody else": (TOKEN, "somebody-else/numbers", "has no write access"),
}


def test_a_name_that_the_hub_cannot_have(publish, hub):
    with pytest.raises(ValueError, match="'some one/numbers': must be owner/name"):
        publish("some one/numbers")
    assert not hub.requests


@pytest.mark.parametrize("case", TOKENS)
@pytest.mark.parametrize("is_there", [False, True])
def test_tokens(case, is_there, publish, hub, caplog, capfd):
    token, repo_id, message = TOKENS[case]
    if is_there:
        publish()
        publish("somebody-else/numbers", token=OTHER_TOKEN)
    before = {name: dict(repository.refs) for name, repository in hub.repositories.items()}
    hub.requests.clear()
    with caplog.at_level(logging.DEBUG), pytest.raises(PublishError, match=message) as caught:
        publish(repo_id, token=token)
    assert "\n" not in str(caught.value) and not hub.sent("PUT .*")
    assert {name: repository.refs for name, repository in hub.repositories.items()} == before
    captured = capfd.readouterr()
    trace = "".join(traceback.format_exception(caught.value))
    for text in (trace, caplog.text, captured.out, captured.err, *publish.said):
        assert token not in text


ECHOES = {"the token in use": TOKEN, "another token": OTHER_TOKEN, "a GitHub token": "ghp_" + "a1B2c3D4e5F6" * 3}


@pytest.mark.parametrize("secret", ECHOES)
@pytest.mark.parametrize("times", [2, 10**6])
def test_a_token_that_the_server_repeats_is_not_printed(secret, times, publish, hub, caplog, capfd):
    secret = ECHOES[secret]
    hub.fail("POST .*/commit/.*", 500, message=f"no use of Bearer {secret} today", times=times)
    with caplog.at_level(logging.DEBUG, "vanilla_transformer_hf"):
        try:
            publish()
            trace = ""
        except PublishError as error:
            trace = "".join(traceback.format_exception(error))
            assert "<token> today" in str(error)
    assert any("<token> today" in text and "trying again" in text for text in publish.said)
    captured = capfd.readouterr()
    for text in (trace, caplog.text, captured.out, captured.err, *publish.said):
        assert secret not in text


SCRIPT = str(ROOT / "scripts" / "push_to_hub.py")


@pytest.mark.parametrize("has_token", [True, False])
def test_a_dry_run_shows_all_and_sends_nothing(has_token, script, hub, folder, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    if not has_token:
        monkeypatch.delenv("HF_TOKEN")
    status, out, _ = script("push_to_hub.py", folder, REPOSITORY, *["--dry-run"] * has_token)
    assert status == 0
    for name, content in planned(folder).items():
        assert re.search(rf"{name}\s+{len(content):,}\b", out), name
    assert "training_args.bin" in out and planned(folder)["README.md"].decode() in out
    assert not hub.requests and before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_the_script_ends_in_one_line(script, publish, hub, folder, monkeypatch):
    for token, repo_id in ((WRONG_TOKEN, REPOSITORY), (READ_ONLY_TOKEN, REPOSITORY), (TOKEN, "somebody-else/numbers")):
        monkeypatch.setenv("HF_TOKEN", token)
        status, out, error = script("push_to_hub.py", folder, repo_id)
        assert status == 2 and re.fullmatch(rf"push_to_hub.py: {repo_id}: .+\n", error)
        assert token not in out + error
    status, _, error = script("push_to_hub.py", folder / "nowhere", REPOSITORY)
    assert status == 2 and re.fullmatch(r"push_to_hub.py: .*nowhere.*\n", error)
    assert not hub.repositories


@pytest.mark.slow
def test_the_script_in_a_process_of_its_own(hub, folder, tmp_path):
    """As users run it: with Xet, which is what the client uses unless told otherwise."""
    pytest.importorskip("hf_xet", reason="huggingface_hub asks for it on the processors that it supports")
    command = [sys.executable, SCRIPT, str(folder), "numbers", "--tag", "v1"]
    environment = hub.environment(tmp_path / "home", xet=True)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert f"{hub.endpoint}/{REPOSITORY}" in done.stdout
    assert hub.repositories[REPOSITORY].files("v1") == planned(folder)
    assert len(hub.repositories[REPOSITORY].commits) == 2
    assert hub.sent("POST /xet/v1/shards") and not hub.sent("PUT .*")
    assert TOKEN not in done.stdout + done.stderr
