"""`make release`: a commit is tagged only if it is clean, tested, and in the changelog."""

import importlib.util
import subprocess
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)


def git(folder, *arguments):
    author = ["-c", "user.name=Tester", "-c", "user.email=tester@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *author, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository whose only commit may be released as version 1.2.0."""
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Tester")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "tester@example.org")
    (tmp_path / release.VERSION_FILE).parent.mkdir(parents=True)
    (tmp_path / release.VERSION_FILE).write_text('VERSION = "1.2.0"\n')
    sections = [
        "# Changelog",
        "## [Unreleased]",
        "## [1.2.0] - 2026-11-25",
        "### Added",
        "- This.",
        "## [1.1.0] - 2026-01-01",
    ]
    changelog = "\n\n".join(sections) + "\n"
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    (tmp_path / ".gitignore").write_text("outputs/\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def commit(folder):
    """Commit all, and note that it was tested."""
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "A change")
    (folder / "outputs").mkdir(exist_ok=True)
    (folder / release.TESTED_FILE).write_text(git(folder, "rev-parse", "HEAD") + "\n")


def test_a_tested_commit_in_the_changelog_is_tagged_with_its_notes(repository):
    assert "git push origin v1.2.0" in release.main(repository)
    assert git(repository, "tag", "--list", "--format", "%(contents)") == "v1.2.0\n\n### Added\n\n- This."
    with pytest.raises(SystemExit, match=r"the tag v1\.2\.0 exists"):
        release.main(repository)


def test_a_tree_with_changes_is_refused(repository):
    (repository / "new.py").touch()
    with pytest.raises(SystemExit, match=r"the tree has changes \(\?\? new\.py"):
        release.main(repository)


def test_a_commit_that_was_not_tested_is_refused(repository):
    (repository / "new.py").touch()
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "Another one")
    with pytest.raises(SystemExit, match=r"is not tested; run \.ci/run"):
        release.main(repository)
    (repository / release.TESTED_FILE).unlink()
    with pytest.raises(SystemExit, match=r"is not tested; run \.ci/run"):
        release.main(repository)


@pytest.mark.parametrize("version", ["1.3.0", "1.1.0", "1.2"])
def test_a_changelog_without_the_version_or_its_changes_is_refused(repository, version):
    (repository / release.VERSION_FILE).write_text(f'VERSION = "{version}"\n')
    commit(repository)
    with pytest.raises(SystemExit, match=rf"no section '## \[{version}\] - YYYY-MM-DD' with changes"):
        release.main(repository)
    assert git(repository, "tag") == ""


def test_ci_notes_the_commit_that_it_passed():
    assert f"git rev-parse HEAD > {release.TESTED_FILE}\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert (ROOT / release.VERSION_FILE).exists()
