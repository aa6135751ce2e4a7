"""The Hub's client: its HTTP library, and how long it may wait at the server's wish."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from huggingface_hub import get_session
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import parse_ratelimit_headers


try:  # of huggingface_hub, whichever of the two it has
    import httpx2 as httpx
except ImportError:
    import httpx  # type: ignore[no-redef]


__all__ = ["LONGEST_WAIT", "bounded_waits", "httpx", "wanted_wait"]
LONGEST_WAIT = 300.0  # seconds


def wanted_wait(headers: Any) -> float:
    """Seconds to wait before a retry, by Retry-After (a number or a date) or by the Hub's own header; else 0."""
    info, value = parse_ratelimit_headers(headers), (headers.get("Retry-After") or "").strip()
    seconds = float(info.reset_in_seconds) if info is not None and info.remaining == 0 else 0.0
    if value.isascii() and value.isdigit():
        return max(seconds, float(value))
    try:
        return max(seconds, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return seconds


@contextmanager
def bounded_waits() -> Iterator[None]:
    """A context in which a request fails, instead of waiting for days, if `Retry-After` exceeds `LONGEST_WAIT`."""

    def refuse(response: Any) -> None:
        seconds = wanted_wait(response.headers)
        if response.status_code >= 400 and seconds > LONGEST_WAIT:
            said = f"after {seconds:,.0f} s, more than the {LONGEST_WAIT:.0f} s that are waited; try again then"
            raise HfHubHTTPError(f"{response.status_code}: {said}", response=response, server_message=said)

    client = get_session()
    before = client.event_hooks
    client.event_hooks = {**before, "response": [*before["response"], refuse]}
    try:
        yield
    finally:
        client.event_hooks = before
