"""What the Trainer publishes, on a Hub on loopback: the same card and files as scripts/push_to_hub.py."""

import json

import pytest
from hub_server import TOKEN
from huggingface_hub import ModelCard
from transformers import AutoModelForSeq2SeqLM

from vanilla_transformer_hf.publishing.hub import PublishError
from vanilla_transformer_hf.publishing.upload_plan import plan_upload
from vanilla_transformer_hf.training.finishing import UnfinishedRunError
from vanilla_transformer_hf.training.run import run_job
from vanilla_transformer_hf.training.trainer.translation import TranslationTrainer


REPOSITORY = "someone/numbers"


@pytest.fixture
def job(prepare, hub, monkeypatch):
    """`job(**settings)`: a run of two steps, each saved, that is published."""
    monkeypatch.setattr("vanilla_transformer_hf.publishing.hub.time.sleep", hub.waits.append)
    return lambda **settings: prepare(
        push_to_hub=True, hub_model_id=REPOSITORY, hub_token=TOKEN, license="cc0-1.0", **settings
    )


def planned(folder):
    """What scripts/push_to_hub.py would publish."""
    sources = {file.name: file.source for file in plan_upload(folder, REPOSITORY).files}
    return {name: source if isinstance(source, bytes) else source.read_bytes() for name, source in sources.items()}


def test_a_run_publishes_each_checkpoint_and_its_end(job, prepare, hub):
    run = job()
    run_job(run)
    repository = hub.repositories[REPOSITORY]
    titles = [commit.title for commit in repository.commits.values()][1:]
    assert titles == ["Training in progress, step 1", "Training in progress, step 2", "End of training"]
    assert repository.files() == planned(prepare.out), "as the script publishes the folder"

    first = [commit.files for commit in repository.commits.values()][1]
    assert first.keys() == repository.files().keys(), "a card and curves from the first checkpoint on"
    assert json.loads(first["config.json"])["use_cache"] is True
    card = ModelCard(first["README.md"].decode())
    assert card.data.license == "cc0-1.0" and " 1 steps (" in card.text and not card.data.eval_results
    assert ModelCard(repository.files()["README.md"].decode()).data.eval_results

    count = len(repository.commits)
    done = run.trainer.push_to_hub()
    assert len(repository.commits) == count and done.commit == repository.commit_id(), "nothing has changed"
    run.trainer.push_to_hub("With more facts", finetuned_from="someone/base", tag=None)
    assert ModelCard(repository.files()["README.md"].decode()).data.base_model == "someone/base"
    for path in prepare.out.rglob("*"):
        if path.suffix in (".md", ".yaml", ".json"):
            assert TOKEN not in path.read_text(encoding="utf-8"), path


def test_the_last_checkpoint_comes_along_to_continue_from(job, prepare, hub, tmp_path):
    run_job(job(hub_strategy="checkpoint", hub_private_repo=True))
    files = hub.repositories[REPOSITORY].files()
    assert hub.repositories[REPOSITORY].private
    beside = {name.split("/")[1] for name in files if name.startswith("last-checkpoint/")}
    there = {path.name for path in (prepare.out / "checkpoints" / "checkpoint-2").iterdir()}
    assert beside == there - {"training_args.bin"}
    for name, data in files.items():
        assert TOKEN.encode() not in data and str(tmp_path).encode() not in data, name
    place = tmp_path / "last-checkpoint"
    place.mkdir()
    for name in beside:
        (place / name).write_bytes(files[f"last-checkpoint/{name}"])
    further = prepare(max_steps=3, output_dir=str(tmp_path / "further"), resume_from_checkpoint=str(place))
    run_job(further)
    assert further.trainer.state.global_step == 3


def test_a_run_that_is_over_is_published_by_the_same_command(job, prepare, hub):
    run_job(prepare())
    before = {
        path.name: path.read_bytes() for path in prepare.out.iterdir() if path.suffix != ".md" and path.is_file()
    }
    run_job(job())
    published = hub.repositories[REPOSITORY].files()
    assert published == planned(prepare.out)
    assert published["model.safetensors"] == before["model.safetensors"]


def test_a_trainer_of_one_s_own_makes_the_same_card(prepare, hub, tmp_path):
    plain = {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": None, "max_steps": 1}
    ours = prepare(hub_model_id=REPOSITORY, **plain).trainer
    ours.model.name_or_path = "someone/base"  # as if it had been opened from there
    ours.args.output_dir = str(tmp_path / "own")
    trainer = TranslationTrainer(
        ours.model,
        ours.args,
        data_collator=ours.data_collator,
        train_dataset=ours.train_dataset,
        processing_class=ours.processing_class,
    )
    trainer.train()
    trainer.push_to_hub(license="cc0-1.0", tasks="translation", dataset_tags="someone/pairs", dataset="Pairs")
    data = ModelCard(hub.repositories[REPOSITORY].files()["README.md"].decode()).data
    assert (data.license, data.datasets, data.language) == ("cc0-1.0", ["someone/pairs"], ["en", "de"])
    assert (data.base_model, data.base_model_relation) == ("someone/base", "finetune")
    trainer.save_model()
    trainer.create_model_card(license="cc0-1.0")
    assert ModelCard.load(tmp_path / "own" / "README.md").data.base_model == "someone/base"
    assert plan_upload(tmp_path / "own", REPOSITORY).card
    for wrong in ({"licence": "cc0-1.0"}, {"datasets": ["a"], "speed": 3}):
        with pytest.raises(TypeError):
            trainer.push_to_hub(**wrong)


def test_nothing_but_the_end(job, hub):
    run_job(job(hub_strategy="end"))
    assert len(hub.repositories[REPOSITORY].commits) == 2


def test_a_hub_that_fails_does_not_stop_the_training(job, hub, caplog, prepare):
    run = job(hub_strategy="every_save")
    hub.fail("POST .*/commit/.*", 500, times=10**6)
    with pytest.raises(UnfinishedRunError, match=r"was not published: .*500 .*; nothing was changed.*same command"):
        run_job(run)
    assert run.trainer.state.global_step == 2
    AutoModelForSeq2SeqLM.from_pretrained(prepare.out)
    assert "Training continues" in caplog.text and TOKEN not in caplog.text


def test_without_a_token_it_is_told_before_training(prepare, hub, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(PublishError, match=f"^{REPOSITORY}: the token is not accepted"):
        prepare(push_to_hub=True, hub_model_id=REPOSITORY)


def test_a_repository_that_cannot_be_made_is_told_before_training(job, hub):
    hub.fail("POST /api/repos/create", 403)
    with pytest.raises(PublishError, match=f"^{REPOSITORY}: this token has no write access there"):
        job()
