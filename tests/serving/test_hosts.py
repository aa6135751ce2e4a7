"""Which names and which pages' requests a server of this machine answers."""

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from vanilla_transformer_hf.serving.http import HostCheck, names_of


def client(**settings):
    async def answer(request):
        return PlainTextResponse("answer")

    middleware = [Middleware(HostCheck, **{"hosts": names_of("127.0.0.1", "here.example"), **settings})]
    application = Starlette(routes=[Route("/", answer, methods=["GET", "POST"])], middleware=middleware)
    return TestClient(application, "http://127.0.0.1:5000")


def test_names_are_checked_on_this_machine_and_where_the_owner_names_them():
    assert names_of("127.0.0.1", "127.0.0.1") == names_of("::1", "localhost") == ["localhost", "127.0.0.1", "::1"]
    assert names_of("0.0.0.0", "0.0.0.0") == names_of("127.0.0.1", "localhost", ["*"]) == []
    assert {"a.example", "localhost"} <= {*names_of("192.0.2.1", "b.example", ["a.example"])}


@pytest.mark.parametrize(
    "host, status",
    [
        *[(host, 200) for host in ("localhost", "LOCALHOST:5000", "127.0.0.1:1", "[::1]:5000", "here.example")],
        *[(host, 400) for host in ("evil.example", "127.0.0.1.evil.example", "testserver", "localhost@evil.example")],
        *[(host, 400) for host in ("", "evil.example:5000", "[::2]", "::1", "localhost:x", "127.0.0.2")],
    ],
)
def test_other_names_are_refused(host, status):
    answer = client().get("/", headers={"host": host})
    assert answer.status_code == status
    assert status == 200 or "is not a name of this server: expected localhost, 127.0.0.1" in answer.json()["error"]


@pytest.mark.parametrize(
    "headers, status",
    [
        ({}, 200),
        ({"origin": "http://127.0.0.1:5000", "sec-fetch-site": "same-origin"}, 200),
        ({"origin": "https://127.0.0.1:5000"}, 200),  # a proxy with TLS
        ({"origin": "https://page.example"}, 200),
        ({"origin": "http://127.0.0.1:3000"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "https://page.example.evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 200),
    ],
)
def test_pages_of_other_sites_are_refused_unless_they_are_allowed(headers, status):
    answer = client(origins=["https://page.example/"]).post("/", headers=headers)
    assert answer.status_code == status
    assert client(origins=["*"]).post("/", headers=headers).status_code == 200
    if "origin" not in headers:  # links may lead here
        assert client().get("/", headers=headers).status_code == 200
