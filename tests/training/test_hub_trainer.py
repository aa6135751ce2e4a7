"""A run whose checkpoints are on the Hub goes on from there, and its token stays out of all that it writes."""

import pytest
from hub_api import READ_ONLY_TOKEN, TOKEN
from huggingface_hub import snapshot_download
from safetensors.torch import load_file

from vanilla_transformer_hf.publishing.hub import PublishError
from vanilla_transformer_hf.training.run import run_job


REPOSITORY = "someone/numbers"
RUN = {"max_steps": 3, "load_best_model_at_end": False}


@pytest.mark.slow
def test_it_ends_bit_by_bit_as_it_would_have(prepare, hub, monkeypatch, tmp_path, capfd):
    monkeypatch.delenv("HF_TOKEN")
    published = {"push_to_hub": True, "hub_model_id": REPOSITORY, "hub_token": TOKEN}
    run_job(prepare(**RUN, **published, hub_strategy="all_checkpoints"))
    *_, last = hub.repositories[REPOSITORY].commits.values()
    folders = {name.split("/")[0] for name in last.files if "/" in name}
    assert folders == {"checkpoint-1", "checkpoint-2", "checkpoint-3"}
    for path in prepare.out.rglob("*"):
        assert path.is_dir() or TOKEN.encode() not in path.read_bytes(), path
    assert TOKEN not in "".join(capfd.readouterr())

    place = snapshot_download(REPOSITORY, token=TOKEN, allow_patterns="checkpoint-2/*")
    other = tmp_path / "other"
    run_job(prepare(**RUN, output_dir=str(other), resume_from_checkpoint=f"{place}/checkpoint-2"))
    one, two = [load_file(folder / "model.safetensors") for folder in (prepare.out, other)]
    assert all(one[name].equal(two[name]) for name in one)


@pytest.mark.parametrize(
    ("fault", "message"),
    [({"hub_token": READ_ONLY_TOKEN}, "has no write access"), ({"hub_model_id": "some/one/else"}, "owner/name")],
)
def test_a_run_that_cannot_be_published_does_not_start(fault, message, prepare, hub):
    with pytest.raises(PublishError, match=message) as caught:
        prepare(**{"push_to_hub": True, "hub_model_id": REPOSITORY, **fault})
    assert "\n" not in str(caught.value) and READ_ONLY_TOKEN not in str(caught.value)
