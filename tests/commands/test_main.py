"""The console command `vanilla-transformer`: which commands there are, how each answers --help, how mistakes end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vanilla_transformer_hf import __version__
from vanilla_transformer_hf.commands.main import COMMANDS, asks_for_help, main


ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*.py"))


def test_help_lists_every_command_with_one_line(command):
    code, out, err = command("--help")
    assert (code, err) == (0, "")
    listed = [line.split()[0] for line in out.splitlines() if line.startswith(" " * 4) and line[4] != " "]
    assert listed == list(COMMANDS)
    assert "examples:\n  vanilla-transformer " in out
    assert command("--version") == (0, f"vanilla-transformer {__version__}\n", "")


def test_every_file_of_a_command_is_listed():
    files = {path.stem.replace("_", "-") for path in (ROOT / "vanilla_transformer_hf" / "commands").glob("*.py")}
    assert files - {"--init--", "main"} == set(COMMANDS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_answers_under_its_own_name(name, script):
    code, out, _ = script(name, "--help")
    assert code == 0 and out.startswith(f"usage: {name} ")


@pytest.mark.parametrize("argv", [[], ["trian"], ["--no"]])
def test_mistakes_name_the_commands(command, argv):
    code, _, err = command(*argv)
    assert code == 2 and err.splitlines()[-1].startswith("vanilla-transformer: error: ")
    if argv == ["trian"]:
        assert all(name in err for name in COMMANDS)


HELP = """
import io, json, sys
from contextlib import redirect_stdout
import vanilla_transformer_hf_command as command
texts = dict.fromkeys({names})
for name in texts:
    sys.argv = ["vanilla-transformer", *name.split(), "--help"]
    with redirect_stdout(io.StringIO()) as out:
        try:
            command.main()
        except SystemExit as end:
            assert end.code == 0, name
    texts[name] = out.getvalue()
print(json.dumps([texts, [name for name in {heavy} if name in sys.modules]]))
"""


@pytest.mark.parametrize(
    ("names", "heavy"),
    [
        (["", *(name for name in COMMANDS if name != "train")], ["torch", "transformers", "numpy"]),
        # The fields of transformers' training arguments are among its options.
        pytest.param(["train"], ["datasets", "matplotlib", "sacrebleu", "onnx"], marks=pytest.mark.slow),
    ],
)
def test_help_of_every_command_imports_nothing_that_it_does_not_need(names, heavy):
    code = HELP.format(names=names, heavy=heavy)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    texts, imported = json.loads(done.stdout)
    assert imported == []
    for name, text in texts.items():
        assert text.startswith(f"usage: vanilla-transformer {name}".rstrip()), name
        assert not name or f"\n    vanilla-transformer {name} " in text, f"no example in the help of {name}"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [(["a", "--help"], True), (["-h"], True), (["--", "-h"], False), (["a", "--helper"], False), ([], False)],
)
def test_help_is_told_from_arguments(argv, expected):
    assert asks_for_help(argv) is expected


@pytest.mark.slow
def test_the_console_command_opens_models_and_imports_no_pipeline(counting_folder):
    code = f"""
import sys
import vanilla_transformer_hf_command as command
sys.argv = ["vanilla-transformer", "translate", {str(counting_folder)!r}]
command.main()
heavy = "transformers.pipelines", "transformers.trainer", "peft", "datasets", "sacrebleu", "ctranslate2", "matplotlib"
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], input="two\n", capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "zwei\n[]\n"), done.stderr


def test_choices_of_light_parsers_are_those_of_the_modules():
    from vanilla_transformer_hf.commands.attention import parse_arguments
    from vanilla_transformer_hf.translation.pictures.attention_maps import PARTS

    for part in PARTS:
        assert parse_arguments("attention", ["model", "picture", "text", "--part", part]).part == part


@pytest.mark.slow
def test_messages_begin_with_how_the_command_was_called(tmp_path):
    arguments = ["average", str(tmp_path / "nothing"), "--output", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-m", "vanilla_transformer_hf", *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("vanilla-transformer average: ") and done.stderr.count("\n") == 1


def test_verify_tells_a_changed_file(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    main(["verify", str(tmp_path), "--write"])
    assert capsys.readouterr().out == "1 files are as they were\n"
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(tmp_path)])
    printed = capsys.readouterr().err
    assert ended.value.code == 2 and "wrong or missing: config.json" in printed
    assert "1 of 1 files are not as they were" in printed
