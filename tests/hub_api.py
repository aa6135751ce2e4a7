"""
What the Hub answers: as much of its HTTP API as publishing and opening models uses, over repositories in memory.

Accounts with tokens, private repositories, commits that are done whole or not at all, branches, tags and pull
requests, large files through Git LFS (whole or in parts) or Xet, downloads in ranges.
"""

import base64
import hashlib
import json
import re
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote

import yaml


class Account(NamedTuple):
    """Whom a token belongs to, the names under which it sees private repositories, and whether it may change them."""

    name: str
    namespaces: tuple[str, ...]
    role: str

    def owns(self, repo_id: str) -> bool:
        return repo_id.split("/")[0] in self.namespaces

    def may_write(self, repo_id: str) -> bool:
        return self.role == "write" and self.owns(repo_id)


STRANGER = Account("", (), "read")  # a request without a token
XET_TOKEN = "xet_loopback"  # what Xet's storage knows; it is given for a token


# As long as the Hub's own.
TOKEN, READ_ONLY_TOKEN, OTHER_TOKEN = (f"hf_{name:x<34}" for name in ("loopback", "loopbackReader", "loopbackOther"))
ACCOUNTS = {
    TOKEN: Account("someone", ("someone", "your-name"), "write"),
    READ_ONLY_TOKEN: Account("someone", ("someone", "your-name"), "read"),
    OTHER_TOKEN: Account("somebody-else", ("somebody-else",), "write"),
    XET_TOKEN: STRANGER,
}

FIRST_COMMIT = "0" * 40  # of every repository
PART_BYTES = 40_000  # a large file of more is uploaded in parts of so many


class Answer(NamedTuple):
    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = {}


def as_json(value: Any, status: int = 200, **headers: str) -> Answer:
    return Answer(json.dumps(value).encode(), status, {"Content-Type": "application/json", **headers})


def refusal(status: int, message: str, code: str = "", **headers: str) -> Answer:
    """An error as the client reads it: `code` is one of RepoNotFound, RevisionNotFound, EntryNotFound."""
    headers = {"X-Error-Message": " ".join(message.split()), "X-Request-Id": "loopback", **headers}
    return as_json({"error": message}, status, **({"X-Error-Code": code} if code else {}), **headers)


def blob_id(content: bytes) -> str:
    """git's id of a file, by which the client sees that a small file has not changed."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def is_large(name: str) -> bool:
    """Whether a file goes through LFS: on the Hub, what .gitattributes lists, and every file above 10 MB."""
    return name.endswith((".safetensors", ".png", ".bin"))


def remote_id(name: str, content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if is_large(name) else blob_id(content)


class Commit(NamedTuple):
    title: str
    files: dict[str, bytes]
    changed: list[str]  # names of the files that came with it or went


@dataclass
class Repository:
    """All commits by their ids, the first of them empty; the ones to which branches, tags, pull requests point."""

    repo_id: str
    private: bool = False
    commits: dict[str, Commit] = field(default_factory=lambda: {FIRST_COMMIT: Commit("initial commit", {}, [])})
    refs: dict[str, str] = field(default_factory=lambda: {"refs/heads/main": FIRST_COMMIT})

    def ref(self, revision: str) -> str | None:
        names = (revision, f"refs/heads/{revision}", f"refs/tags/{revision}")
        return next((name for name in names if name in self.refs), None)

    def add(self, ref: str, commit: Commit) -> str:
        commit_id = hashlib.sha1(f"{ref} {len(self.commits)}".encode()).hexdigest()
        self.commits[commit_id] = commit
        self.refs[ref] = commit_id
        return commit_id

    def commit_id(self, revision: str = "main") -> str:
        ref = self.ref(revision)
        return self.refs[ref] if ref is not None else revision

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.commits[self.commit_id(revision)].files


@dataclass
class Storage:
    """What a Hub holds."""

    endpoint: str
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)  # large files by their SHA-256, committed or not
    parts: dict[tuple[str, int], bytes] = field(default_factory=dict)  # of large files that are not whole yet
    xorbs: dict[str, list[bytes]] = field(default_factory=dict)  # Xet's blocks of chunks


class Request(NamedTuple):
    hub: Storage
    body: bytes
    account: Account
    query: dict[str, list[str]]
    range: str

    @property
    def json(self) -> Any:
        return json.loads(self.body or b"{}")


# ---- Accounts and repositories ----


def whoami(request: Request) -> Answer:
    if request.account is STRANGER:
        return refusal(401, "Invalid username or password.")
    name, namespaces, role = request.account
    orgs = [{"name": other} for other in namespaces if other != name]
    token = {"accessToken": {"displayName": "tests", "role": role}}
    return as_json({"type": "user", "id": name, "name": name, "orgs": orgs, "auth": token})


def create(request: Request) -> Answer:
    if request.account is STRANGER:
        return refusal(401, "Invalid username or password.")
    wanted = request.json
    namespace = wanted["organization"] or request.account.name
    repo_id = f"{namespace}/{wanted['name']}"
    if not request.account.may_write(repo_id):
        return refusal(403, f'You don\'t have the rights to create a model under the namespace "{namespace}"')
    url = f"{request.hub.endpoint}/{repo_id}"
    if repo_id in request.hub.repositories:
        return as_json({"error": "You already created this model repo", "url": url}, 409)
    request.hub.repositories[repo_id] = Repository(repo_id, private=wanted.get("visibility") == "private")
    return as_json({"url": url, "name": repo_id})


def card_metadata(card: str) -> dict[str, Any] | None:
    """The YAML between two lines of dashes at the top of a card. Raises `yaml.YAMLError`."""
    match = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    return yaml.safe_load(match[1]) or {} if match is not None else None


def validate_yaml(request: Request) -> Answer:
    """The Hub's own rules are many; here: YAML, and no empty `license`."""
    try:
        metadata = card_metadata(request.json["content"])
    except yaml.YAMLError as error:
        return as_json({"errors": [{"message": f"not YAML: {error}"}], "warnings": []}, 400)
    if metadata is None:
        return as_json({"errors": [], "warnings": [{"message": "empty or missing yaml metadata in repo card"}]})
    if "license" in metadata and not metadata["license"]:
        return as_json({"errors": [{"message": '"license" must be a string'}], "warnings": []}, 400)
    return as_json({"errors": [], "warnings": []})


def info(request: Request, repository: Repository, revision: str) -> Answer:
    files = repository.files(revision)
    metadata = card_metadata(files.get("README.md", b"").decode()) or {}
    tags = [*metadata.get("tags", []), f"license:{metadata.get('license', 'unknown')}"]
    facts = {"id": repository.repo_id, "sha": repository.commit_id(revision), "private": repository.private}
    return as_json({**facts, "tags": tags, "cardData": metadata, "siblings": [{"rfilename": name} for name in files]})


def refs(request: Request, repository: Repository) -> Answer:
    kinds: dict[str, list[dict[str, str]]] = {"branches": [], "tags": [], "pullRequests": [], "converts": []}
    for prefix, kind in (("refs/heads/", "branches"), ("refs/tags/", "tags"), ("refs/pr/", "pullRequests")):
        for ref, target in repository.refs.items():
            if ref.startswith(prefix):
                kinds[kind].append({"name": ref.removeprefix(prefix), "ref": ref, "targetCommit": target})
    return as_json(kinds)


def branch(request: Request, repository: Repository, name: str) -> Answer:
    return _new_ref(repository, f"refs/heads/{name}", request.json.get("startingPoint", "main"))


def tag(request: Request, repository: Repository, revision: str) -> Answer:
    return _new_ref(repository, f"refs/tags/{request.json['tag']}", revision)


def _new_ref(repository: Repository, ref: str, revision: str) -> Answer:
    if ref in repository.refs:
        return refusal(409, f"Reference {ref} already exists")
    if repository.commit_id(revision) not in repository.commits:
        return refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
    repository.refs[ref] = repository.commit_id(revision)
    return as_json({})


# ---- Uploads ----


def preupload(request: Request, repository: Repository, revision: str) -> Answer:
    present = repository.files(revision)
    rows = []
    for name in [file["path"] for file in request.json["files"]]:
        mode = "lfs" if is_large(name) else "regular"
        oid = remote_id(name, present[name]) if name in present else None
        rows.append({"path": name, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
    return as_json({"files": rows})


def lfs_batch(request: Request, repository: Repository) -> Answer:
    objects = []
    for wanted in request.json["objects"]:
        oid, size = wanted["oid"], wanted["size"]
        row: dict[str, Any] = {"oid": oid, "size": size}
        if oid not in request.hub.objects:
            place = f"{request.hub.endpoint}/lfs/{oid}"
            upload: dict[str, Any] = {"href": place}
            if size > PART_BYTES:
                numbers = range(1, -(-size // PART_BYTES) + 1)
                parts = {str(number): f"{place}/{number}" for number in numbers}
                upload = {"href": f"{place}/complete", "header": {"chunk_size": str(PART_BYTES), **parts}}
            verify = {"href": f"{request.hub.endpoint}/{repository.repo_id}.git/info/lfs/objects/verify"}
            row["actions"] = {"upload": upload, "verify": verify}
        objects.append(row)
    return as_json({"objects": objects, "transfer": "basic"})


def lfs_put(request: Request, oid: str, part: str | None = None) -> Answer:
    """At the storage, not the Hub: the URL is the permission, and a token has no business here."""
    if request.account is not STRANGER:
        return refusal(400, "the token was sent to the storage")
    if part is not None:
        request.hub.parts[oid, int(part)] = request.body
    elif not _store(request.hub, oid, request.body):
        return refusal(400, "XAmzContentSHA256Mismatch")
    return Answer(headers={"ETag": hashlib.md5(request.body).hexdigest()})


def lfs_complete(request: Request, oid: str) -> Answer:
    numbers = [part["partNumber"] for part in request.json["parts"]]
    content = b"".join(request.hub.parts.get((oid, number), b"") for number in numbers)
    return Answer() if _store(request.hub, oid, content) else refusal(400, "the parts are not the file")


def _store(hub: Storage, oid: str, content: bytes) -> bool:
    whole = hashlib.sha256(content).hexdigest() == oid
    if whole:
        hub.objects[oid] = content
    return whole


def lfs_verify(request: Request, repository: Repository) -> Answer:
    wanted = request.json
    if len(request.hub.objects.get(wanted["oid"], b"")) != wanted["size"]:
        return refusal(404, "object not found")
    return as_json({})


def xet_token(request: Request, repository: Repository, revision: str) -> Answer:
    return as_json({"casUrl": f"{request.hub.endpoint}/xet", "exp": int(time.time()) + 3600, "accessToken": XET_TOKEN})


def xet_block(request: Request, xorb: str) -> Answer:
    """Chunks in a row, each behind 8 bytes: version, size as sent (3 bytes), compression, size."""
    chunks, place = [], 0
    while place < len(request.body) and request.body[place] == 0:  # what follows the chunks starts otherwise
        size = int.from_bytes(request.body[place + 1 : place + 4], "little")
        if request.body[place + 4]:
            return refusal(400, "compressed chunks are not known here")
        chunks.append(request.body[place + 8 : place + 8 + size])
        place += 8 + size
    request.hub.xorbs[xorb] = chunks
    return as_json({"was_inserted": True})


def xet_shard(request: Request) -> Answer:
    """What chunks the files are made of, in rows of 48 bytes: a head, runs of chunks, as many checks, a foot."""
    rows = [request.body[place : place + 48] for place in range(48, len(request.body), 48)]
    while rows and rows[0][:32] != b"\xff" * 32:
        _, _, count, _, _ = struct.unpack("<32sIIII", rows[0])
        runs = [struct.unpack("<32sIIII", row) for row in rows[1 : 1 + count]]
        content = b"".join(b"".join(request.hub.xorbs[_xet_hash(name)][a:b]) for name, _, _, a, b in runs)
        if not _store(request.hub, _xet_hash(rows[1 + 2 * count][:32]), content):
            return refusal(400, "the chunks are not the file")
        del rows[: 2 + 2 * count]
    return as_json({"result": 1})


def _xet_hash(stored: bytes) -> str:
    return b"".join(stored[place : place + 8][::-1] for place in range(0, 32, 8)).hex()


def xet_unknown(request: Request, path: str) -> Answer:
    """The client asks whether others have a chunk already, and for later versions of the protocol: no."""
    return refusal(404, f"no {path}")


def commit(request: Request, repository: Repository, revision: str) -> Answer:
    """All operations or none."""
    header, *operations = [json.loads(line) for line in request.body.splitlines()]
    base = header["value"].get("parentCommit", repository.commit_id(revision))
    ref = repository.ref(revision)
    opens_pull_request = "create_pr" in request.query
    if ref is None or ref.startswith("refs/tags/"):
        return refusal(404, "Invalid rev id: commits go to branches", "RevisionNotFound")
    if not opens_pull_request and not repository.commit_id(revision).startswith(base):
        return refusal(412, "A commit has happened since. Please refresh and try again.")
    files = dict(repository.files(revision))
    for operation in operations:
        kind, value = operation["key"], operation["value"]
        if kind == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif kind == "lfsFile" and value["oid"] in request.hub.objects:
            files[value["path"]] = request.hub.objects[value["oid"]]
        elif kind == "lfsFile":
            return refusal(400, f"LFS pointer pointed to a file that does not exist: {value['path']}")
        elif kind == "deletedFile" and value["path"] in files:
            del files[value["path"]]
        elif kind == "deletedFolder":
            files = {name: content for name, content in files.items() if not name.startswith(value["path"])}
        else:
            return refusal(404, f"{kind} {value.get('path')}: A file with this name doesn't exist", "EntryNotFound")
    url = f"{request.hub.endpoint}/{repository.repo_id}"
    pull_request = {}
    if opens_pull_request:
        number = sum(ref.startswith("refs/pr/") for ref in repository.refs) + 1
        ref = f"refs/pr/{number}"
        pull_request = {"pullRequestUrl": f"{url}/discussions/{number}"}
    changed = [operation["value"]["path"] for operation in operations]
    commit_id = repository.add(ref, Commit(header["value"]["summary"], files, changed))
    return as_json({"commitUrl": f"{url}/commit/{commit_id}", "commitOid": commit_id, **pull_request})


# ---- Downloads ----


def tree(request: Request, repository: Repository, revision: str, path: str) -> Answer:
    files = repository.files(revision)
    inside = {name: files[name] for name in files if not path or name.startswith(f"{path}/")}
    if path and not inside:
        return refusal(404, f"{path} does not exist", "EntryNotFound")
    rows: dict[str, dict[str, Any]] = {}
    for name, content in inside.items():
        folder, _, rest = name.removeprefix(path).lstrip("/").partition("/")
        if rest and request.query.get("recursive") != ["true"]:
            place = f"{path}/{folder}".lstrip("/")
            rows[place] = {"type": "directory", "path": place, "oid": blob_id(place.encode())}
            continue
        rows[name] = {"type": "file", "path": name, "size": len(content), "oid": blob_id(content)}
        if is_large(name):
            rows[name]["lfs"] = {"oid": remote_id(name, content), "size": len(content), "pointerSize": 132}
    return as_json(list(rows.values()))


def resolve(request: Request, repository: Repository, revision: str, path: str) -> Answer:
    headers = {"X-Repo-Commit": repository.commit_id(revision), "Accept-Ranges": "bytes"}
    content = repository.files(revision).get(path)
    if content is None:
        return refusal(404, "Entry not found", "EntryNotFound", **headers)
    headers["ETag"] = f'"{remote_id(path, content)}"'
    if is_large(path):
        headers |= {"X-Linked-ETag": headers["ETag"], "X-Linked-Size": str(len(content))}
    if not request.range:
        return Answer(content, headers=headers)
    start, _, end = request.range.removeprefix("bytes=").partition("-")
    first, last = int(start), min(int(end or len(content)), len(content) - 1)
    if first > last:
        return refusal(416, "Range not satisfiable", **{"Content-Range": f"bytes */{len(content)}"})
    headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
    return Answer(content[first : last + 1], 206, headers)


_NAME = r"(?P<repo_id>[^/]+/[^/]+)"
_MODEL = rf"/api/models/{_NAME}"
_LFS = rf"/{_NAME}\.git/info/lfs/objects"
# Method, pattern of the whole path, answer. HEAD is GET without the body. What is not GET changes the repository that
# it names, and asks for its owner's token.
ROUTES: list[tuple[str, str, Callable[..., Answer]]] = [
    ("GET", r"/api/whoami-v2", whoami),
    ("POST", r"/api/repos/create", create),
    ("POST", r"/api/validate-yaml", validate_yaml),
    ("GET", _MODEL + r"(?:/revision/(?P<revision>[^/]+))?", info),
    ("GET", _MODEL + r"/refs", refs),
    ("GET", _MODEL + r"/tree/(?P<revision>[^/]+)/?(?P<path>.*)", tree),
    ("POST", _MODEL + r"/branch/(?P<name>[^/]+)", branch),
    ("POST", _MODEL + r"/tag/(?P<revision>[^/]+)", tag),
    ("POST", _MODEL + r"/preupload/(?P<revision>[^/]+)", preupload),
    ("POST", _MODEL + r"/commit/(?P<revision>[^/]+)", commit),
    ("POST", _LFS + r"/batch", lfs_batch),
    ("POST", _LFS + r"/verify", lfs_verify),
    ("PUT", r"/lfs/(?P<oid>\w+)(?:/(?P<part>\d+))?", lfs_put),
    ("POST", r"/lfs/(?P<oid>\w+)/complete", lfs_complete),
    ("GET", _MODEL + r"/xet-write-token/(?P<revision>[^/]+)", xet_token),
    ("POST", r"/xet/v1/xorbs/default/(?P<xorb>\w+)", xet_block),
    ("POST", r"/xet/v1/shards", xet_shard),
    ("GET", r"/xet/(?P<path>.*)", xet_unknown),
    ("POST", r"/xet/(?P<path>.*)", xet_unknown),
    ("GET", rf"/{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", resolve),
]


def route(method: str, path: str) -> tuple[Callable[..., Answer], dict[str, str | None]] | None:
    """The row of `ROUTES` for a request, and what its pattern names."""
    for verb, pattern, function in ROUTES:
        match = re.fullmatch(pattern, path) if verb == method.replace("HEAD", "GET") else None
        if match is not None:
            return function, {name: value and unquote(value) for name, value in match.groupdict().items()}
    return None


def answer(method: str, path: str, request: Request) -> Answer:
    """What the Hub says, if the account may ask for it."""
    found = route(method, path)
    if found is None:
        return refusal(501, f"{method} {path} is not known here")
    function, names = found
    if "repo_id" not in names:
        return function(request, **names)
    repository = request.hub.repositories.get(names.pop("repo_id") or "")
    if repository is None or (repository.private and not request.account.owns(repository.repo_id)):
        return refusal(401 if request.account is STRANGER else 404, "Repository not found", "RepoNotFound")
    # Everybody who is known may open pull requests, and upload for them.
    known = request.account is not STRANGER
    may_ask = known and (function in (lfs_batch, lfs_verify) or "create_pr" in request.query)
    if method == "POST" and not request.account.may_write(repository.repo_id) and not may_ask:
        return refusal(403, f"You don't have write access to {repository.repo_id}")
    if "revision" in names:
        names["revision"] = names["revision"] or "main"
        if repository.commit_id(names["revision"]) not in repository.commits:
            return refusal(404, f"Invalid rev id: {names['revision']}", "RevisionNotFound")
    return function(request, repository, **names)
