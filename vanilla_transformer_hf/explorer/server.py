"""
The HTTP server of the explorer: its page, and its questions as JSON.

GET / is the page, GET /page/NAME its files, GET /offline.html the page as one file without answers. POST /api/QUESTION
takes a JSON object; the answer is `{"answer": …}`, an error `{"error": message, "field": name or null}`.
"""

import threading
import webbrowser
from collections.abc import Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from ..serving import http
from ..serving.connections import ending_in_time
from .explorer import Explorer
from .page import MEDIA_TYPES, offline_page, page_file
from .requests import LONGEST_FILE, RequestError


HOST = "127.0.0.1"
MOST_OF_A_FILE = LONGEST_FILE + 2**16  # bytes of a body with a file in it
# No resources from other origins, and no framing by other sites.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def make_app(explorer: Explorer, allowed_hosts: Sequence[str] = ()) -> Starlette:
    """The application for opened models, called by the names of this machine and `allowed_hosts` ("*": any)."""

    async def ask(request: Request) -> Response:
        # Pages of other sites can send bodies without a type, or as text, without a preflight request, but not JSON.
        if "content-type" not in request.headers:
            raise http.RequestError("content-type is missing: send application/json", status=415)
        question = request.path_params["question"]
        body = await http.read_object(request, **({"most_bytes": MOST_OF_A_FILE} if question == "file" else {}))
        try:
            answer = await run_in_threadpool(explorer.answer, question, body)
        except RequestError as error:
            answer = http.RequestError(error.message, error.field).body
            said = {} if error.code is None else {"code": error.code, "values": error.values}
            return JSONResponse(answer | said, 404 if error.field == "question" else 422)
        return JSONResponse({"answer": answer})

    async def show(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if (text := page_file(name)) is None:
            raise HTTPException(404)
        return Response(text, media_type=MEDIA_TYPES[name.rsplit(".", 1)[-1]])

    async def offline(request: Request) -> Response:
        return HTMLResponse(offline_page())

    async def with_headers(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await call(request)
        response.headers.update(HEADERS)
        return response

    hosts = http.names_of(HOST, HOST, allowed_hosts)
    return Starlette(
        routes=[
            Route("/", show),
            Route("/page/{name}", show),
            Route("/offline.html", offline),
            Route("/api/{question}", ask, methods=["POST"]),
        ],
        middleware=[
            *([Middleware(http.HostCheck, hosts=hosts)] if hosts else []),
            Middleware(BaseHTTPMiddleware, dispatch=with_headers),
            Middleware(GZipMiddleware, minimum_size=4096, compresslevel=1),
        ],
        exception_handlers=http.ERROR_HANDLERS,
    )


def serve(explorer: Explorer, port: int, opens: bool = False, allowed_hosts: Sequence[str] = ()) -> None:
    """Serve the page on this machine until Ctrl-C; port 0 chooses a free one."""
    listening = http.bind(HOST, port)
    address = f"{http.address_of(listening)}/"
    print(f"The explorer is at {address} (Ctrl-C ends it)", flush=True)
    if explorer.watched is not None:
        threading.Thread(target=explorer.watched.keep_looking, daemon=True).start()
    if opens:
        webbrowser.open(address)
    with ending_in_time():
        http.run_server(make_app(explorer, allowed_hosts), listening, seconds_to_finish=5)
