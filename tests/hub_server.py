"""
A stand-in for the Hub on the loopback interface, in front of the real huggingface_hub client.

It keeps repositories in memory and speaks as much of the Hub's HTTP API as uploads and downloads of models use. Every
file travels inside its commit; on the Hub, large ones go through LFS or Xet. A request that no row of `ROUTES` knows
is answered 501, which the client does not try again.
"""

import base64
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit


ROOT = Path(__file__).resolve().parent.parent
TOKEN = "hf_loopback"


class Answer(NamedTuple):
    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = {}


def as_json(value: Any, status: int = 200, **headers: str) -> Answer:
    return Answer(json.dumps(value).encode(), status, {"Content-Type": "application/json", **headers})


def refusal(status: int, message: str, code: str = "", **headers: str) -> Answer:
    """An error as the client reads it: `code` is one of RepoNotFound, RevisionNotFound, EntryNotFound."""
    return as_json({"error": message}, status, **{"X-Error-Code": code, "X-Error-Message": message, **headers})


def blob_id(content: bytes) -> str:
    """git's id of a file, by which the client sees that a file has not changed."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Repository:
    """Files of every commit, and the last commit of every branch; the first commit is empty."""

    repo_id: str
    commits: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"0" * 40: {}})
    branches: dict[str, str] = field(default_factory=lambda: {"main": "0" * 40})

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        commit_id = hashlib.sha1(f"{branch} {len(self.commits)}".encode()).hexdigest()
        self.commits[commit_id] = files
        self.branches[branch] = commit_id
        return commit_id

    def commit_id(self, revision: str) -> str:
        return self.branches.get(revision, revision)

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.commits[self.commit_id(revision)]


class Hub:
    """Use as `with Hub() as hub:`; a client process started with `hub.environment(folder)` talks to it."""

    def __init__(self):
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []  # "METHOD /path", in the order in which they came
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Hub":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: Any):
        self._server.shutdown()
        self._server.server_close()

    def environment(self, home: Path) -> dict[str, str]:
        """Environment of a process that knows this Hub only; `home` holds its caches, downloaded code among them."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
        return {
            **kept,
            "HF_ENDPOINT": self.endpoint,
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }


class Request(NamedTuple):
    hub: Hub
    body: bytes
    token: str


def create(request: Request) -> Answer:
    wanted = json.loads(request.body)
    repo_id = f"{wanted['organization']}/{wanted['name']}"
    url = f"{request.hub.endpoint}/{repo_id}"
    if repo_id in request.hub.repositories:
        return as_json({"error": "You already created this model repo", "url": url}, 409)
    request.hub.repositories[repo_id] = Repository(repo_id)
    return as_json({"url": url, "name": repo_id})


def validate_yaml(request: Request) -> Answer:
    return as_json({"errors": [], "warnings": []})


def preupload(request: Request, repository: Repository, revision: str) -> Answer:
    present = repository.files(revision)
    names = [file["path"] for file in json.loads(request.body)["files"]]
    oids = {name: blob_id(present[name]) if name in present else None for name in names}
    rows = [{"path": name, "uploadMode": "regular", "shouldIgnore": False, "oid": oids[name]} for name in names]
    return as_json({"files": rows})


def commit(request: Request, repository: Repository, revision: str) -> Answer:
    files = dict(repository.files(revision))
    for line in request.body.splitlines():
        operation = json.loads(line)
        if operation["key"] == "file":
            files[operation["value"]["path"]] = base64.b64decode(operation["value"]["content"])
        elif operation["key"] != "header":
            return refusal(501, f"{operation['key']} is not known here")
    commit_id = repository.commit(revision, files)
    url = f"{request.hub.endpoint}/{repository.repo_id}/commit/{commit_id}"
    return as_json({"commitUrl": url, "commitOid": commit_id})


def info(request: Request, repository: Repository, revision: str) -> Answer:
    siblings = [{"rfilename": name} for name in repository.files(revision)]
    return as_json({"id": repository.repo_id, "sha": repository.commit_id(revision), "siblings": siblings})


def tree(request: Request, repository: Repository, revision: str, path: str) -> Answer:
    files = {name: content for name, content in repository.files(revision).items() if name.startswith(path)}
    if path and not files:
        return refusal(404, "no such folder", "EntryNotFound")
    return as_json([{"type": "file", "path": n, "size": len(c), "oid": blob_id(c)} for n, c in files.items()])


def resolve(request: Request, repository: Repository, revision: str, path: str) -> Answer:
    headers = {"X-Repo-Commit": repository.commit_id(revision)}
    content = repository.files(revision).get(path)
    if content is None:
        return refusal(404, "Entry not found", "EntryNotFound", **headers)
    return Answer(content, headers={**headers, "ETag": f'"{blob_id(content)}"'})


_MODEL = r"/api/models/(?P<repo_id>[^/]+/[^/]+)"
# Method, pattern of the whole path, answer. HEAD is GET without the body. POST asks for the token.
ROUTES: list[tuple[str, str, Callable[..., Answer]]] = [
    ("POST", r"/api/repos/create", create),
    ("POST", r"/api/validate-yaml", validate_yaml),
    ("POST", _MODEL + r"/preupload/(?P<revision>[^/]+)", preupload),
    ("POST", _MODEL + r"/commit/(?P<revision>[^/]+)", commit),
    ("GET", _MODEL + r"(?:/revision/(?P<revision>[^/]+))?", info),
    ("GET", _MODEL + r"/tree/(?P<revision>[^/]+)/?(?P<path>.*)", tree),
    ("GET", r"/(?P<repo_id>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)", resolve),
]


def answer(method: str, path: str, request: Request) -> Answer:
    """What the Hub says: the row of `ROUTES` is found, then the repository and revision that it names."""
    for verb, pattern, function in ROUTES:
        match = re.fullmatch(pattern, path) if verb == method.replace("HEAD", "GET") else None
        if match is None:
            continue
        if method == "POST" and request.token != f"Bearer {TOKEN}":
            return refusal(401, "Invalid credentials in Authorization header")
        names = {name: unquote(value or "main") for name, value in match.groupdict().items() if name != "path"}
        if "path" in match.groupdict():
            names["path"] = unquote(match["path"])
        if "repo_id" not in names:
            return function(request)
        repository = request.hub.repositories.get(names.pop("repo_id"))
        if repository is None:
            return refusal(404, "Repository not found", "RepoNotFound")
        if repository.commit_id(names["revision"]) not in repository.commits:
            return refusal(404, "Revision not found", "RevisionNotFound")
        return function(request, repository, **names)
    return refusal(501, f"{method} {path} is not known here")


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"  # the client keeps its connections

    def _respond(self):
        path = urlsplit(self.path).path
        self.hub.requests.append(f"{self.command} {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        result = answer(self.command, path, Request(self.hub, body, self.headers.get("Authorization", "")))
        self.send_response(result.status)
        for name, value in {**result.headers, "Content-Length": str(len(result.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(result.body)

    do_GET = do_HEAD = do_POST = _respond  # noqa: N815

    def log_message(self, *args: Any):
        """Nothing: `Hub.requests` has it."""
