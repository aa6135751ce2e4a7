"""The console command `vanilla-transformer`: which commands there are, how each answers --help, how mistakes end."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from vanilla_transformer_hf import __version__
from vanilla_transformer_hf.commands.main import COMMANDS, main


ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))


@pytest.fixture
def call(capsys):
    """`call(*argv)`: exit code, output and error output of the console command."""

    def call(*argv):
        with pytest.raises(SystemExit) as end:
            main(argv)
        return end.value.code, *capsys.readouterr()

    return call


def test_help_lists_every_command_with_one_line(call):
    code, out, err = call("--help")
    assert (code, err) == (0, "")
    listed = [line.split()[0] for line in out.splitlines() if line.startswith(" " * 4) and line[4] != " "]
    assert listed == list(COMMANDS)
    assert "examples:\n  vanilla-transformer " in out
    assert call("--version") == (0, f"vanilla-transformer {__version__}\n", "")


def test_every_file_of_a_command_is_listed():
    files = {path.stem.replace("_", "-") for path in (ROOT / "vanilla_transformer_hf" / "commands").glob("*.py")}
    assert files - {"--init--", "main"} == set(COMMANDS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_answers_under_its_own_name(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    assert end.value.code == 0 and capsys.readouterr().out.startswith(f"usage: {script.name} ")


@pytest.mark.parametrize("argv", [[], ["trian"], ["--no"]])
def test_mistakes_name_the_commands(call, argv):
    code, _, err = call(*argv)
    assert code == 2 and err.splitlines()[-1].startswith("vanilla-transformer: error: ")
    if argv == ["trian"]:
        assert all(name in err for name in COMMANDS)


@pytest.mark.slow
def test_help_of_every_command_imports_nothing_that_it_does_not_need():
    code = f"""
import io, json, sys
from contextlib import redirect_stdout
from vanilla_transformer_hf.commands.main import main
texts = dict.fromkeys({list(COMMANDS)})
for name in texts:
    with redirect_stdout(io.StringIO()) as out:
        try:
            main([name, "--help"])
        except SystemExit as end:
            assert end.code == 0, name
    texts[name] = out.getvalue()
print(json.dumps([texts, [name for name in ("datasets", "matplotlib", "sacrebleu", "onnx") if name in sys.modules]]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    texts, heavy = json.loads(done.stdout)
    assert heavy == []
    for name, text in texts.items():
        assert text.startswith(f"usage: vanilla-transformer {name} "), name
        assert f"\n    vanilla-transformer {name} " in text, f"no example in the help of {name}"


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
