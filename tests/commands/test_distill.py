"""`distill`: the teacher's translations are made once, continued and kept, and the student learns them."""

import json
import shutil
from dataclasses import replace

import pytest
from counting_model import SOURCES
from transformers import GenerationConfig

from vanilla_transformer_hf.commands import distill as command
from vanilla_transformer_hf.commands.main import main
from vanilla_transformer_hf.training.arguments import DataArguments
from vanilla_transformer_hf.training.synthetic import translations


pytestmark = pytest.mark.usefixtures("datasets_cache")
SIZES = "--preset multi30k_tiny --vocab_size 300 --d_model 16 --encoder_layers 1 --decoder_layers 1 --max_steps 2"
SIZES += " --warmup_steps 2 --matmul default --use_cpu true --disable_tqdm true --num_beams 1"


@pytest.fixture
def distill(tmp_path, counting_folder):
    """`distill(*arguments)`: a student of the model that counts backwards, in `out`."""
    (tmp_path / "some.en").write_text("".join(f"{line}\n" for line in ["", *SOURCES[:30]]))
    (tmp_path / "recipe.yaml").write_text("source_lang: en\ntarget_lang: de\ntrain_target: missing.de\n")
    files = ["--train_source", str(tmp_path / "some.en"), "--output_dir", str(tmp_path / "out")]

    def distill(*arguments, teacher=counting_folder):
        main(["distill", teacher, str(tmp_path / "recipe.yaml"), *files, *SIZES.split(), *arguments])

    return distill


def test_a_card_names_a_teacher_of_the_hub_whole(distill, tmp_path, monkeypatch):
    pairs, told = tmp_path / "pairs.jsonl", []
    monkeypatch.setattr(translations, "translate_training_text", lambda *_: pairs)
    monkeypatch.setattr(command, "train", lambda prog, student, settings, about: told.append((about, settings)))
    distill()
    distill("--train_split", "dev", teacher="somebody/big")
    assert "its teacher somebody/big gave" in told[1][0] and "/" not in told[0][0]
    assert "train_split" not in told[1][1]


@pytest.mark.slow
def test_a_student_learns_translations_that_are_kept_and_continued(distill, tmp_path, monkeypatch, capsys):
    pairs = tmp_path / "out" / "distillation" / "pairs.jsonl"
    with monkeypatch.context() as patch, pytest.raises(SystemExit):  # after the translations
        patch.setattr(translations, "write_pairs", interrupted)
        distill("--n_best", "2", "--teacher_beams", "3")
    monkeypatch.setattr(translations, "run_command", lambda *_: pytest.fail("translated again"))
    distill("--n_best", "2", "--teacher_beams", "3")
    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    assert {row["source"] for row in rows} == {"", *SOURCES[:30]}
    by_source = {source: [row["target"] for row in rows if row["source"] == source] for source in SOURCES[:30]}
    assert all(len(set(targets)) == len(targets) <= 2 for targets in by_source.values()), "each text once"
    assert len(rows) > 50
    assert by_source["one two"][0] == "zwei eins", "the best one first"
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Distilled: it learned the 2 best translations that its teacher" in card
    assert "some.en" not in card and "pairs.jsonl" not in card, "a file is not named after its data set"
    before = pairs.read_bytes()
    distill("--n_best", "2", "--teacher_beams", "3")  # which is complete
    assert pairs.read_bytes() == before

    capsys.readouterr()
    with pytest.raises(SystemExit):
        distill("--n_best", "1")
    assert "made with another n_best and num_beams" in capsys.readouterr().err


def test_the_beams_of_a_list_are_those_that_the_teacher_was_saved_with(
    distill, tmp_path, counting_folder, monkeypatch
):
    """They were four, whatever was saved; and the settings of another search were taken for the same."""
    teacher = tmp_path / "teacher"
    shutil.copytree(counting_folder, teacher)
    found = []

    def stop(search, *files):
        found.append(search.options["num_beams"])
        files[-1].write_text("{}\n")  # it has begun
        raise OSError("no space left on device")

    monkeypatch.setattr(translations, "translate_file", stop)
    for saved, n_best in ((6, "2"), (1, "3")):
        settings = GenerationConfig.from_pretrained(teacher)
        settings.num_beams = saved
        settings.save_pretrained(teacher)
        (teacher / "SHA256SUMS").unlink(missing_ok=True)
        with pytest.raises(SystemExit):
            distill("--n_best", n_best, "--output_dir", str(tmp_path / n_best), teacher=str(teacher))
    assert found == [6, 3]


def test_translations_of_a_teacher_with_another_search_are_other_ones(tmp_path, counting_folder):
    teacher = tmp_path / "teacher"
    shutil.copytree(counting_folder, teacher)
    before = translations.ModelSearch(str(teacher)).settings
    (teacher / "README.md").write_text("no part of it")
    assert translations.ModelSearch(str(teacher)).settings == before
    (teacher / "generation_config.json").write_text('{"num_beams": 2}')
    assert translations.ModelSearch(str(teacher)).settings != before


def interrupted(path, *rest):
    raise OSError(f"{path}: no space left on device")


def test_the_sources_of_a_table_of_excel_are_taken_out(tmp_path):
    """Its "Unicode text" is named .txt, as plain text is, which is translated as it is."""
    for name, encoding, expected in (("table.txt", "utf-16", "one\ntwo\n"), ("plain.txt", "utf-8", "en\tde\n")):
        text = "en\tde\none\teins\ntwo\tzwei\n" if encoding == "utf-16" else expected
        (tmp_path / name).write_text(text, encoding=encoding)
        data = DataArguments(train_source=str(tmp_path / name), source_lang="en", target_lang="de")
        assert translations._source_file(data, tmp_path).read_text() == expected


def test_a_header_is_not_translated(tmp_path):
    for name, lines in (("a.en", "English\none\n"), ("a.de", "German\neins\n")):
        (tmp_path / name).write_text(lines)
    sides = {side: str(tmp_path / name) for side, name in (("train_source", "a.en"), ("train_target", "a.de"))}
    data = DataArguments(**sides, source_lang="en", target_lang="de")
    for reverse in (False, True):
        with pytest.raises(ValueError, match="is a header and not a pair of texts; remove this line from both files"):
            translations._source_file(replace(data, reverse=reverse), tmp_path)


def test_sources_that_were_taken_out_of_another_table_are_not_translated(tmp_path):
    data = DataArguments(train_source=str(tmp_path / "a.tsv"), source_lang="en", target_lang="de")
    for line in ("one\teins\n", "two\tzwei\n"):
        (tmp_path / "a.tsv").write_text(f"en\tde\n{line}")
        assert translations._source_file(data, tmp_path).read_text() == f"{line.split()[0]}\n"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--n_best", "4", "--teacher_beams", "2"], "n_best=4: must be at most num_beams="),
        (["--train_target", "a.de"], "--train_target has no effect"),
        (["--reverse", "--unset", "train_target"], "train_target is not given: with reverse, it is the text that"),
        (["--corrections", "a.tsv"], "corrections: distill reads one training corpus and no corrections"),
        (["--teacher_processes", "0"], "processes=0: must be at least 1"),
        (["--teacher_processes", "auto", "--teacher_threads", "0"], "threads=0: must be at least 1"),
        (["--teacher_threads", "all"], "argument --teacher_threads: 'all' is not a number: expected 1, 2, … or auto"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message, distill, capsys, tmp_path):
    with pytest.raises(SystemExit):
        distill(*arguments)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "distillation" / "pairs.jsonl").exists()
