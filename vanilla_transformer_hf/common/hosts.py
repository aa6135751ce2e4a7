"""
Who may talk to a server of this machine: programs that call it by one of its names, and pages that it served itself.

Pages of other sites run in a browser of this machine, and may send forms to every local server. With a name of their
own that leads here (DNS rebinding) they could also read the answers.
"""

import ipaddress
import re
from collections.abc import Collection, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse


LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
HOST = re.compile(r"(\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^\[\]/@?#:\s]+))(:\d{1,5})?")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
ANY = "*"


def names_of(address: str, given: str, more: Sequence[str] = ()) -> list[str]:
    """The names by which requests may call a server; empty: any, where others reach it and no name was allowed."""
    if ANY in more:
        return []
    is_checked = more or ipaddress.ip_address(address).is_loopback
    return [*dict.fromkeys([*LOOPBACK_NAMES, given, *more])] if is_checked else []


class HostCheck:
    """ASGI middleware that rejects requests under other names than the server's, and those of other sites' pages."""

    def __init__(self, app: Any, hosts: Collection[str], origins: Collection[str] = ()):
        self.app, self.hosts = app, [name.lower().strip("[]") for name in hosts]
        self.origins = [origin.lower().rstrip("/") for origin in origins]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or (refused := self.refusal(scope["method"], Headers(scope=scope))) is None:
            return await self.app(scope, receive, send)
        status, message = refused
        await JSONResponse({"error": message, "field": None}, status)(scope, receive, send)

    def refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        """The status and the message for a request that is rejected."""
        host = ",".join(headers.getlist("host")).lower()
        found = HOST.fullmatch(host)
        if found is None or (found["address"] or found["name"]) not in self.hosts:
            names = ", ".join(self.hosts)
            return 400, f"{host[:100]!r} is not a name of this server: expected {names}; see --allowed_hosts"
        origin = headers.get("origin")
        if origin is None:
            # Browsers name the origin of what a page sends; of a form, some only whether it comes from another site.
            is_foreign = method not in SAFE_METHODS and headers.get("sec-fetch-site") in ("cross-site", "same-site")
            origin = "of another site" if is_foreign else f"http://{host}"
        own = (f"http://{host}", f"https://{host}")
        if origin.lower() in (*own, *self.origins) or ANY in self.origins:
            return None
        return 403, f"pages of other sites may not send requests here: origin {origin[:100]!r}; see --allowed_origins"
