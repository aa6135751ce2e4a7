"""`make lint` finds the words that CONTRIBUTING.md replaces, in pages and in the prose of the package."""

import importlib.util

from hub_server import ROOT


spec = importlib.util.spec_from_file_location("check_words", ROOT / "scripts" / "check_words.py")
check_words = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_words)


def test_the_table_of_the_guide_is_read():
    words = check_words.vocabulary((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert words["trained further"] == "fine-tuned" and words["the host's"] == "transformers'"
    assert "python scripts/check_words.py" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_phrases_are_found_over_the_end_of_a_line_and_not_inside_words():
    words = {"trained further": "fine-tuned", "died": "pruned"}
    text = "One.\nA model that is Trained\n    further; studied.\n# trained\n# further\n"
    assert [*check_words.places(text, words)] == [(2, "trained further"), (4, "trained further")]


def test_a_docstring_that_needs_the_one_above_it_is_found():
    text = 'def f():\n    """The same in float32."""\n\n\ndef g():\n    """\n    As `f`.\n    """\n\n\n"""A same."""\n'
    found = [*check_words.places(text, {})]
    assert found == [(2, "docstring that begins with The same"), (6, "docstring that begins with As")]


def test_pages_and_package_have_none(capsys):
    assert check_words.main() == 0, capsys.readouterr().out
