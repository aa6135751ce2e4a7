"""`back-translate`: synthetic pairs are made once, continued, filtered, counted, mixed with real ones and learned."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from counting_model import SOURCES, TARGETS
from host_search import forbid_host_loops

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.commands import back_translate as command
from vanilla_transformer_hf.commands.main import main
from vanilla_transformer_hf.translation.streams.resumable_output import ResumableOutput


SIZES = "--preset multi30k_tiny --vocab_size 300 --d_model 16 --encoder_layers 1 --decoder_layers 1 --max_steps 2"
SIZES += " --warmup_steps 2 --matmul default --use_cpu true --disable_tqdm true --num_beams 1"
# The model that counts backwards translates English; what is trained translates into English.
RECIPE = "source_lang: de\ntarget_lang: en\n"


@pytest.fixture
def texts(tmp_path, datasets_cache):
    """Real pairs in `train.de` and `train.en`, more English in `mono.en`, and a recipe."""
    files = {"train.de": TARGETS[:20], "train.en": SOURCES[:20], "val.de": TARGETS[40:43], "val.en": SOURCES[40:43]}
    files["mono.en"] = ["", *SOURCES[30:80], SOURCES[30], " "]
    for name, lines in files.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


@pytest.fixture
def back_translate(texts, counting_folder):
    """`back_translate(*arguments)` of `mono.en`, with the synthetic text in `text`."""
    shutil.copytree(counting_folder, texts / "reverse")
    path = texts / "reverse" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"src_lang": "en", "tgt_lang": "de"}))
    common = [str(texts / "reverse"), "--target", str(texts / "mono.en"), "--text_dir", str(texts / "text")]
    return lambda *arguments: main(["back-translate", *common, *arguments])


def lines_of(path):
    return path.read_text().splitlines()


def test_pairs_are_written_and_told(back_translate, texts, capsys):
    back_translate()
    said = capsys.readouterr().out
    assert "mono.en: 53 lines, 2 empty and 1 duplicate ones left out, 50 to translate" in said
    assert lines_of(texts / "text" / "synthetic.en") == SOURCES[30:80]
    found = lines_of(texts / "text" / "synthetic.de")
    assert all(line.startswith("<bt> ") for line in found)
    right = sum(line == f"<bt> {target}" for line, target in zip(found, TARGETS[30:80]))
    assert right > 45
    made = json.loads((texts / "text" / "synthetic.json").read_text())
    assert (made["read"], made["kept"], made["side"], made["files"]) == (
        50,
        50,
        "target",
        ["synthetic.de", "synthetic.en"],
    )


def test_a_line_in_the_other_form_of_letters_with_accents_is_a_duplicate(back_translate, texts, capsys):
    (texts / "mono.en").write_text("a caf\u00e9\na cafe\u0301\nthe cafes\n", encoding="utf-8")
    back_translate()
    assert "3 lines, 0 empty and 1 duplicate ones left out, 2 to translate" in capsys.readouterr().out


def test_samples_of_a_seed_are_the_same_and_go_on_after_a_kill(back_translate, texts, monkeypatch):
    options = ["--search", "sampling", "--temperature", "3", "--tag", "", "--window", "16"]
    forbid_host_loops(monkeypatch)  # the faster search of this package draws
    back_translate(*options)
    whole = (texts / "text" / "translations.jsonl").read_bytes()
    assert len(set(lines_of(texts / "text" / "synthetic.de")) & set(TARGETS[30:80])) < 50, "samples"
    with pytest.raises(SystemExit):  # another seed does not mix with this one
        back_translate(*options, "--search_seed", "2")

    # Killed after two of four windows.
    write, calls = ResumableOutput.write, []

    def killed(self, *arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        write(self, *arguments)

    monkeypatch.setattr(ResumableOutput, "write", killed)
    for path in (texts / "text").iterdir():
        path.unlink()
    with pytest.raises(SystemExit):
        back_translate(*options)
    assert not (texts / "text" / "translations.jsonl").exists() and not (texts / "text" / "synthetic.de").exists()
    back_translate(*options)
    assert len(calls) == 3 + 2, "the first two windows were not translated again"
    assert (texts / "text" / "translations.jsonl").read_bytes() == whole


def recipe_of(texts):
    """The recipe and its fields."""
    names = {"train": "train", "validation": "val"}
    sides = {"source": "de", "target": "en"}
    files = [f"--{role}_{side}={texts / names[role]}.{sides[side]}" for role in names for side in sides]
    return [str(texts / "recipe.yaml"), *files, *SIZES.split()]


@pytest.mark.slow
def test_a_model_learns_real_and_synthetic_pairs(back_translate, texts, capsys):
    out = texts / "out"
    arguments = [*recipe_of(texts), f"--output_dir={out}", "--rate", "1:1", "--drop_duplicates", "true"]
    for name, lines in (("train.de", TARGETS), ("train.en", SOURCES)):  # the first pair, again
        with open(texts / name, "a") as file:
            file.write(f"{lines[0]}\n")
    back_translate(*arguments)
    said = capsys.readouterr().out
    assert "3 that stand in the validation or test text left out (held_out)" in said
    assert "20 real pairs (each 2.35 times) and 47 synthetic pairs" in said
    rows = [json.loads(line) for line in lines_of(out / "back_translation" / "pairs.jsonl")]
    tagged = [row for row in rows if row["source"].startswith("<bt> ")]
    assert len(rows) == 2 * len(tagged) == 94
    assert {row["target"] for row in rows if row not in tagged} == set(SOURCES[:20])
    tokenizer = VanillaTransformerTokenizer.from_pretrained(out)
    ids = tokenizer("<bt> eins zwei")["input_ids"]
    assert ids == [tokenizer.convert_tokens_to_ids("<bt>"), *tokenizer("eins zwei")["input_ids"]]
    assert ids[0] == len(tokenizer) - 1 != tokenizer.unk_token_id
    card = (out / "README.md").read_text()
    assert r"translated mono.en into sources, marked \<bt\>; the rate 1 real to 1 synthetic" in card
    before = (out / "back_translation" / "pairs.jsonl").stat()
    back_translate(*arguments)  # which is complete
    assert (out / "back_translation" / "pairs.jsonl").stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--search", "beam", "--temperature", "2"], "temperature=2.0 has no effect with --search beam"),
        (["--search", "greedy", "--beams", "2"], "beams=2 has no effect"),
        (["--search", "sampling", "--top_k", "5"], "top_k=5 has no effect with --search sampling"),
        (["--search_seed", "2"], "search_seed=2 has no effect with --search beam"),
        (["--search", "top_k", "--shuffle_words", "0"], "shuffle_words=0 has no effect with --search top_k"),
        (["--rate", "1"], "rate='1': expected two whole numbers such as 1:4"),
        (["--drop_worst", "1"], "drop_worst=1.0: must be at least 0 and less than 1"),
        (["--min_round_trip", "30"], "name the model that translates back"),
        (["--max_steps", "2"], "--max_steps: fields of a recipe need a recipe"),
        (["--source", "a.de"], "one of --target and --source is needed"),
        (["--rounds", "2"], "--rounds 2 needs text of both languages"),
        (["--rounds", "0"], "--rounds 0: must be at least 1"),
        (["--keep", "words"], "keep='words': expected one of held_out, empty, copied"),
        (["--target", "missing.en"], "missing.en: no such file"),
        (["--window", "0"], "window=0: must be at least 1"),
        (["--processes", "0"], "processes=0: must be at least 1"),
        (["--processes", "auto", "--threads", "0"], "threads=0: must be at least 1"),
        (["--processes", "1.5"], "argument --processes: '1.5' is not a number: expected 1, 2, … or auto"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(arguments, message, back_translate, texts, capsys):
    with pytest.raises(SystemExit):
        back_translate(*arguments)
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (texts / "text").exists()


@pytest.mark.parametrize(
    "fields, message",
    [
        ([], "train_source is not given: name the real pairs"),
        (["--train_source", "no.de", "--train_target", "no.en"], "no.de"),
    ],
)
def test_real_pairs_are_read_before_anything_is_translated(fields, message, back_translate, texts, capsys):
    with pytest.raises(SystemExit):
        back_translate(str(texts / "recipe.yaml"), "--output_dir", str(texts / "out"), *SIZES.split(), *fields)
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (texts / "text").exists()


def test_a_model_of_the_other_direction_is_refused(back_translate, texts, capsys):
    (texts / "recipe.yaml").write_text("source_lang: en\ntarget_lang: de\n")
    with pytest.raises(SystemExit):
        back_translate(str(texts / "recipe.yaml"), "--output_dir", str(texts / "out"))
    assert "translates from en to de: this recipe and text of its target language need" in capsys.readouterr().err


@pytest.mark.slow
def test_rounds_train_one_model_after_the_other(texts, back_translate, capsys):
    (texts / "mono.de").write_text("".join(f"{line}\n" for line in TARGETS[30:60]))
    out = texts / "out"
    common = [str(texts / "reverse"), "--source", str(texts / "mono.de"), "--target", str(texts / "mono.en")]
    common += ["--rounds", "2", "--search", "sampling", "--max_ratio", "1000"]
    # Sentences of models that have learned nothing are empty.
    enough = ["--max_steps", "40", "--learning_rate", "0.01", f"--output_dir={out}"]
    main(["back-translate", *common, *recipe_of(texts), *enough])
    said = capsys.readouterr().out
    assert said.count("reverse translates it") == 2 and said.count("forward translates it") == 1
    for folder, language in ((out, "en"), (out / "rounds" / "2" / "reverse", "de"), (out / "rounds/1/forward", "en")):
        assert VanillaTransformerTokenizer.from_pretrained(folder).init_kwargs["tgt_lang"] == language
        made = json.loads((folder / "back_translation" / "synthetic.json").read_text())
        assert made["texts"] == [f"mono.{language}"]


def test_rounds_pass_on_what_is_given(texts, monkeypatch):
    stages = []
    monkeypatch.setattr(command, "learn", lambda prog, own, parser, recipe: stages.append((own, recipe)))
    monkeypatch.chdir(texts)
    search = ["--rounds", "2", "--search", "top_k", "--keep_duplicates", "--keep", "copied"]
    fields = ["--test_source", "t.de", "--output_dir", "out", "--max_steps", "5"]
    text = ["--target", "m.en", "--source", "m.de", "--source", "n.de"]
    command.main("prog", ["model", *text, *search, "recipe.yaml", *fields])
    forward, reverse = str(Path("out/rounds/1/forward")), str(Path("out/rounds/2/reverse"))
    assert [(own.model, own.target, own.source) for own, _ in stages] == [
        ("model", ["m.en"], None), (forward, ["m.de", "n.de"], None), (reverse, ["m.en"], None)
    ]  # fmt: skip
    assert all((own.search, own.keep_duplicates, own.keep) == ("top_k", True, ["copied"]) for own, _ in stages)
    common = {"source_lang": "de", "target_lang": "en", "max_steps": 5}
    assert [recipe for _, recipe in stages] == [
        {**common, "reverse": False, "output_dir": forward},
        {**common, "reverse": True, "output_dir": reverse},
        {**common, "test_source": "t.de", "reverse": False, "output_dir": "out"},
    ]


@pytest.mark.slow
def test_killed_processes_go_on(texts, back_translate):
    """SIGKILL to all processes: what they have written is not translated again, and the end is that of a whole run."""
    many = [line for line in SOURCES for _ in range(40)]
    (texts / "mono.en").write_text("".join(f"{line}\n" for line in many))
    options = ["--keep_duplicates", "--search", "top_k", "--temperature", "5", "--window", "64", "--processes", "2"]

    def start(folder):
        arguments = [str(texts / "reverse"), "--target", str(texts / "mono.en"), "--text_dir", str(folder), *options]
        command = [sys.executable, "-m", "vanilla_transformer_hf", "back-translate", *arguments]
        return subprocess.Popen(
            command, start_new_session=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    killed = start(texts / "killed")
    journal = texts / "killed" / "translations.jsonl.partial.json"
    while not journal.exists():
        assert killed.poll() is None, killed.stderr.read()
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    done = json.loads(journal.read_text())["lines"]
    assert 0 < done < len(many)
    again, whole = start(texts / "killed"), start(texts / "whole")
    assert f"continued after line {done:,}" in again.communicate()[1] and again.returncode == 0
    assert whole.communicate() and whole.returncode == 0
    for name in ("translations.jsonl", "synthetic.de", "synthetic.en"):
        assert (texts / "killed" / name).read_bytes() == (texts / "whole" / name).read_bytes()
    assert not journal.exists()
