"""The command line of `compare`: its help, its mistakes, and its exit status."""

import pytest

from vanilla_transformer_hf.commands import compare
from vanilla_transformer_hf.training.comparison import comparison
from vanilla_transformer_hf.training.comparison import run as comparison_run


def test_help_shows_examples_and_the_variants_of_the_package(command):
    code, out, err = command("compare", "--help")
    assert (code, err) == (0, "")
    assert "vanilla-transformer compare quickstart --variants positions --output outputs/positions" in out
    for name in compare.VARIANTS:
        assert f"\n  {name}: " in out
    for option in ("--variants", "--seeds", "--processes", "--seconds", "--output"):
        assert option in out


@pytest.mark.parametrize(
    "argv, message",
    [
        (["quickstart", "--variants", "position", "--output", "o"], "'position' is neither a file nor the name of"),
        (["quickstrt", "--variants", "norms", "--output", "o"], "'quickstrt' is neither a file nor the name of a rec"),
        (["--variants", "norms"], "the first argument is the recipe, got '--variants'"),
        (["quickstart", "--variants", "norms"], "the following arguments are required: --output"),
        (["quickstart", "--variants", "norms", "--output", "o", "--seeds", "0"], "number of at least 1"),
        (
            ["quickstart", "--variants", "norms", "--output", "o", "--drpout", "0"],
            "unknown field 'drpout'; the nearest",
        ),
        (["quickstart", "--variants", "norms", "--output", "o", "--output_dir", "p"], "give --output"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(command, tmp_path, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = command("compare", *argv)
    assert (code, out) == (2, "") and message in err and "Traceback" not in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("status, code", [("finished", 0), ("diverged", 1)])
def test_the_exit_status_says_whether_all_finished(command, tmp_path, monkeypatch, status, code):
    (tmp_path / "recipe.yaml").write_text("max_steps: 7\nseed: 3\n")
    (tmp_path / "two.yaml").write_text("variants: {a: {}, b: {dropout: 0.2}}\n")
    found = {
        **{"status": status, "error": None if status == "finished" else "nan", "steps": 7, "steps_per_second": 1.0},
        "device": "cuda",
    }
    result = {**found, "curves": {"training_loss": [[7, 2.0]], "validation_loss": []}}

    def measured(plan, output, *args):
        output.mkdir()
        return [comparison.MeasuredRun(run, result) for run in plan.runs]

    monkeypatch.setattr(comparison, "run_comparison", measured)
    files = [tmp_path / "recipe.yaml", "--variants", tmp_path / "two.yaml", "--output", tmp_path / "out"]
    ended, out, _ = command("compare", *files, "--seeds", 2)
    assert ended == code
    assert out.startswith("`recipe`, `two`: 7 steps a run; seeds: 3, 4.\n\n| variant | steps/s |")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"table.md", "table.csv", "curves.png"}
    assert comparison_run.FINISHED == "finished"
