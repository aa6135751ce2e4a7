"""The upload of a model's folder to the Hub, in one commit."""

import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ..common.files import check_regular_file, read_regular_file
from ..common.hub_waits import LONGEST_WAIT, bounded_waits, httpx, wanted_wait
from .private_text import find_private_text, hide_secrets
from .upload_plan import plan_upload
from .weight_files import CleanedWeights


T = TypeVar("T")

# Files of an earlier upload that would be loaded together with or instead of the new ones.
REPLACED = ("model*.safetensors*", "source_tokenizer.json")

# Pauses in seconds before a request is retried, as in huggingface_hub; it repeats uploads of files, but not the
# requests that create a repository, check the card, or commit.
WAITS = (1.0, 2.0, 4.0, 8.0, 8.0)
# Files beside a model that are not searched for secrets; all others are texts, whatever they are called.
BINARIES = (".safetensors", ".bin", ".pt", ".pth", ".pkl", ".png", ".onnx")
PASSING = {408, 429, 500, 502, 503, 504}


class PublishError(OSError):
    """An upload failed. The message is one line and says what is on the Hub now."""


@dataclass(frozen=True)
class Published:
    """The location of a published model. `commit` is its id; `pull_request` the address of one, if requested."""

    repo_id: str
    url: str
    commit: str
    pull_request: str | None = None
    tag: str | None = None


def publish_folder(
    folder: str | os.PathLike,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    tag: str | None = None,
    token: str | None = None,
    strict: bool = False,
    message: str = "Upload model",
    beside: dict[str, Path | bytes] | None = None,
    endpoint: str | None = None,
    say: Callable[[str], Any] = print,
    **options: Any,
) -> Published:
    """Publish the files of `plan_upload`, whose options these are, in one commit: all are on the Hub or none."""
    # A repository, `repo_id` with or without its owner, and a branch, `revision`, are created if they do not exist; an
    # existing public one is an error where `private` is true. Without a `token`, that of the login or of HF_TOKEN
    # writes. `strict`: a card that lacks facts is an error. `beside` are further files by their names in the
    # repository, and `say` is called with a line for each step.
    plan = plan_upload(folder, repo_id, **options)
    if strict and plan.missing:
        raise ValueError(f"{folder}: its card lacks facts, and nothing was sent: {' '.join(plan.missing)}")
    if create_pr and revision not in (None, "main"):
        raise ValueError(f"create_pr with revision={revision!r}: a pull request is for the main branch.")
    problems = []
    for name, source in (beside or {}).items():
        if isinstance(source, Path):
            check_regular_file(source)
        if not name.endswith(BINARIES):
            content = source if isinstance(source, bytes) else read_regular_file(source)
            problems += find_private_text(Path(name).name, content)
    if problems:
        raise ValueError(hide_secrets("; ".join(problems) + "; nothing was sent."))
    token = token or get_token()
    if not token:
        raise PublishError("no Hub token found: run `hf auth login` or set HF_TOKEN; nothing was sent.")
    upload = _Upload(HfApi(endpoint=endpoint, token=token), repo_id, revision, create_pr, say)
    try:
        with tempfile.TemporaryDirectory() as place:
            files: dict[str, Path | bytes] = {}
            for file in plan.files:
                if isinstance(file.source, CleanedWeights):  # they are written with their new header
                    file.source.write(Path(place, file.name))
                    files[file.name] = Path(place, file.name)
                else:
                    files[file.name] = file.source
            return upload.run(files | (beside or {}), private, tag, message)
    except (httpx.HTTPError, OSError, RuntimeError, ValueError) as error:
        text = f"{upload.repo_id}: {explain(error)}; {upload.what_is_there()}"
        raise PublishError(hide_secrets(text, token)) from _without_secrets(error, token)


def _without_secrets(error: Exception, token: str | None) -> Exception | None:
    """The error as a cause of another one; None if its traceback, which may be printed, shows a secret."""
    trace = "".join(traceback.format_exception(error))
    return error if hide_secrets(trace, token) == trace else None


@contextmanager
def one_line(repo_id: str, token: str | None = None) -> Iterator[None]:
    """A context that turns errors of the Hub into a `PublishError` of one line."""
    try:
        with bounded_waits():
            yield
    except (httpx.HTTPError, HFValidationError, OfflineModeIsEnabled) as error:
        raise PublishError(hide_secrets(f"{repo_id}: {explain(error)}.", token)) from _without_secrets(error, token)


class _Upload:
    """One upload: its target and the known state of the repository."""

    def __init__(self, api: HfApi, repo_id: str, revision: str | None, create_pr: bool, say: Callable[[str], Any]):
        self.api = api
        self.repo_id = repo_id
        self.revision = revision
        self.create_pr = create_pr
        self.say = lambda text: say(hide_secrets(text, api.token if isinstance(api.token, str) else None))
        self.was_at: str | None = None  # the commit before this one
        self.created = False
        self.done: Published | None = None

    def run(self, files: dict[str, Path | bytes], private: bool | None, tag: str | None, message: str) -> Published:
        if "/" not in self.repo_id:
            self.repo_id = f"{self.retry(self.api.whoami)['name']}/{self.repo_id}"
        try:
            known = self.retry(lambda: self.api.model_info(self.repo_id))
        except RepositoryNotFoundError:
            self.retry(lambda: self.api.create_repo(self.repo_id, private=private, exist_ok=True))
            self.created = True
            self.say(f"{self.repo_id}: created{', private' if private else ''}")
        else:
            if private and known.private is False:
                raise ValueError("the repository exists and is public; make it private first, or remove --private")
        if self.revision is not None and not self.create_pr:
            try:
                self.retry(lambda: self.api.model_info(self.repo_id, revision=self.revision))
            except RevisionNotFoundError:
                self.retry(lambda: self.api.create_branch(self.repo_id, branch=str(self.revision), exist_ok=True))
                self.say(f"{self.repo_id}: branch {self.revision} created")
        info = self.retry(lambda: self._commit(files, message))
        self.done = Published(self.repo_id, self.url, info.oid, info.pr_url)
        if tag is not None:
            self.retry(lambda: self.api.create_tag(self.repo_id, tag=tag, revision=info.oid))
            self.done = Published(**{**vars(self.done), "tag": tag})
        return self.done

    @property
    def url(self) -> str:
        return f"{self.api.endpoint}/{self.repo_id}"

    def _commit(self, files: dict[str, Path | bytes], message: str) -> CommitInfo:
        """One commit with all files. Files that are already there are left out, so that it can be retried."""
        revision = None if self.create_pr else self.revision
        info = self.api.model_info(self.repo_id, revision=revision)
        self.was_at = self.was_at or info.sha
        present = {sibling.rfilename for sibling in info.siblings or []} - files.keys()
        outdated = sorted(name for name in present if any(fnmatch(name, pattern) for pattern in REPLACED))
        operations: list[Any] = [CommitOperationDelete(path_in_repo=name) for name in outdated]
        operations += [CommitOperationAdd(path_in_repo=name, path_or_fileobj=file) for name, file in files.items()]
        return self.api.create_commit(
            self.repo_id, operations, commit_message=message, revision=revision, create_pr=self.create_pr
        )

    def retry(self, action: Callable[[], T]) -> T:
        """The result of `action`, which is retried after temporary errors."""
        for wait in WAITS:
            try:
                with bounded_waits():  # entered for each request, as a failed connection ends the client's session
                    return action()
            except httpx.HTTPError as error:
                pause = self._pause(error, wait)
                if pause is None:
                    raise
                self.say(f"{self.repo_id}: {explain(error)}; trying again in {pause:.0f} s")
                time.sleep(pause)
        with bounded_waits():
            return action()

    def _pause(self, error: httpx.HTTPError, wait: float) -> float | None:
        """Seconds until a retry of a request; None if it should not be retried."""
        response = getattr(error, "response", None)
        request = error.request if response is None else response.request
        if "/preupload/" in request.url.path or ".git/info/lfs" in request.url.path or request.method == "PUT":
            return None  # huggingface_hub has already retried it
        if response is None:
            refused = isinstance(error, httpx.ConnectError)
            passes = isinstance(error, httpx.TransportError)
        else:
            refused = response.status_code in (429, 503)
            passes = response.status_code in PASSING
            wait = max(wait, wanted_wait(response.headers))
        # With pull requests it is unknown whether a commit arrived, because each opens a new one.
        if not passes or wait > LONGEST_WAIT or (self.create_pr and not refused):
            return None
        return wait

    def what_is_there(self) -> str:
        """The state of the repository after an error."""
        if self.done is not None:
            return f"the model itself was published: {self.done.url}, commit {self.done.commit}."
        try:
            found = self.api.model_info(self.repo_id, revision=None if self.create_pr else self.revision).sha
        except RepositoryNotFoundError:
            return "this token cannot see such a repository; nothing was sent."
        except (httpx.HTTPError, OSError, HFValidationError):
            if self.was_at is None and not self.created:
                return "nothing was sent."
            return "the Hub does not answer, and whether it has the commit is unknown; it has all of it or nothing."
        if self.created and found == self.was_at:
            return "the new repository exists and is empty."
        if self.was_at is None or found == self.was_at:
            unchanged = f"nothing was changed (last commit {found})"
            asked = f"; {self.url}/discussions shows whether the pull request was opened" if self.create_pr else ""
            return f"{unchanged}{asked}."
        return f"its last commit is now {found}, and was {self.was_at} before."


# HTTP status -> its meaning for our requests.
REFUSALS = {
    401: "the token is not accepted: log in again with `hf auth login`, or set HF_TOKEN",
    403: "this token has no write access there: it may be read-only, or the name belongs to another user",
    404: "not found for this token",
    409: "it exists already",
    413: "a file is larger than the Hub takes",
    429: "too many requests: the Hub requires a wait",
}


def explain(error: Exception) -> str:
    """The error in one line."""
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    if isinstance(error, HFValidationError):
        return "not a repository name: expected owner/name, of letters, digits, '-', '_' and '.'"
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        said = " ".join((error.server_message or "").split())
        return REFUSALS.get(status, f"the Hub answers {status}") + (f" ({said})" if said else "")
    if isinstance(error, httpx.TransportError):
        return f"the connection failed ({' '.join(str(error).split()) or type(error).__name__})"
    said = " ".join(str(error).split()).rstrip(".")
    # huggingface_hub names the file; the reason is the cause.
    return f"{said}: {explain(error.__cause__)}" if isinstance(error.__cause__, Exception) else said
