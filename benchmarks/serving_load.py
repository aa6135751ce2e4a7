"""Clients of a translation server: each sends its next request when its last one is answered, and checks every
answer."""

import asyncio
import json
import os
import random
import re
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import httpx

from .turns import ROOT


SECONDS_TO_START = 300
# Invalid request -> its share of the requests in the section "soak", and the status that must answer it, if any.
WRONG = {
    "malformed": (0.05, 400),
    "oversized": (0.05, 413),
    "cancelled": (0.1, None),
    "slow": (0.02, 408),
}


class Server:
    """A server in a process of its own, of a Python interpreter with these arguments."""

    def __init__(self, arguments: Sequence[str], threads: int):
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self._errors = tempfile.NamedTemporaryFile(suffix=".log")  # noqa: SIM115  # closed in `stop`
        self.process = subprocess.Popen(
            [sys.executable, *arguments], stderr=self._errors, env={**os.environ, **environment, "HF_HUB_OFFLINE": "1"}
        )
        self.address = self._wait()

    def _wait(self) -> str:
        ends = time.monotonic() + SECONDS_TO_START
        while self.process.poll() is None and time.monotonic() < ends:
            if found := re.search(r"listening on (\S+)", self.log()):
                with suppress(httpx.HTTPError):
                    if httpx.get(f"{found[1]}/ready").status_code == 200:
                        return found[1]
            time.sleep(0.1)
        raise ChildProcessError("the server did not start:\n" + self.stop())

    def log(self) -> str:
        """Its output on standard error."""
        return Path(self._errors.name).read_text(encoding="utf-8", errors="replace")

    def memory(self) -> float:
        """Its resident memory in MiB; 0 on systems other than Linux."""
        with suppress(OSError):
            status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
            return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1024
        return 0.0

    def work(self) -> float:
        """CPU seconds that it has used; 0 on systems other than Linux."""
        with suppress(OSError):
            fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def stop(self) -> str:
        """Stop the server and return its output on standard error."""
        self.process.terminate()
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
        said = self.log()
        self._errors.close()
        return said


class Load:
    """Clients that translate sentences, of which `expected` has the translations, for some time."""

    # `seconds` are the latency of each answered request, `counts` the requests by outcome: "right", "wrong", or an
    # unexpected status.

    def __init__(self, address: str, expected: Mapping[str, str]):
        self.address, self.expected, self.texts = address, expected, list(expected)
        self.seconds: list[float] = []
        self.counts: Counter[str] = Counter()

    def run(self, clients: int, seconds: float, long_text: str | None = None, makes_mistakes: bool = False) -> float:
        """Send requests of so many clients for so many seconds, and return their number per second."""
        # `long_text`, one of `expected`, is sent by one more client again and again, and not counted; with
        # `makes_mistakes` there are the invalid requests of `WRONG`, too.
        self.seconds.clear()
        return asyncio.run(self._run(clients, seconds, long_text, makes_mistakes))

    async def _run(self, clients: int, seconds: float, long_text: str | None, makes_mistakes: bool) -> float:
        # A pool of its own for each: the time that httpx takes for a request grows with the connections of its pool.
        verify = ssl.create_default_context()  # once, because it takes long
        async with AsyncExitStack() as stack:
            pools = [
                await stack.enter_async_context(httpx.AsyncClient(base_url=self.address, timeout=300, verify=verify))
                for _ in range(clients + 1)
            ]
            began = time.perf_counter()
            ends = began + seconds
            works = [self._client(pool, number, ends, makes_mistakes) for number, pool in enumerate(pools[1:])]
            long = asyncio.create_task(self._send_long(pools[0], long_text))
            await asyncio.gather(*works)
            took = time.perf_counter() - began
            long.cancel()
            with suppress(asyncio.CancelledError):
                await long
        return len(self.seconds) / took

    async def _client(self, client: httpx.AsyncClient, number: int, ends: float, makes_mistakes: bool) -> None:
        chance = random.Random(number)
        shares = [share for share, _ in WRONG.values()]
        while time.perf_counter() < ends:
            text = chance.choice(self.texts)
            kind = chance.choices([*WRONG, "right"], [*shares, 1 - sum(shares)])[0] if makes_mistakes else "right"
            if kind != "right":
                await self._send_wrong(client, kind, text, chance)
                continue
            began = time.perf_counter()
            answer = await client.post("/translate", json={"q": text})
            self.seconds.append(time.perf_counter() - began)
            self._check(text, answer)

    def _check(self, text: str, answer: httpx.Response) -> None:
        if answer.status_code != 200:
            self.counts[f"status {answer.status_code}"] += 1
        else:
            is_right = answer.json().get("translatedText") == self.expected[text]
            self.counts["right" if is_right else "wrong"] += 1

    async def _send_long(self, client: httpx.AsyncClient, text: str | None) -> None:
        while text is not None:
            self._check(text, await client.post("/translate", json={"q": text}))
            self.counts["long"] += 1

    async def _send_wrong(self, client: httpx.AsyncClient, kind: str, text: str, chance: random.Random) -> None:
        """Send an invalid request, or one whose client disconnects."""

        async def slowly():
            yield b'{"q": '
            await asyncio.sleep(3)
            yield b'"late"}'

        bodies: dict[str, Any] = {
            "malformed": chance.choice([b"{", b'{"text": "a"}', b'{"q": 7}', b'{"q": "a", "alternatives": -1}']),
            "oversized": json.dumps({"q": "a " * 30_000}).encode(),
            "cancelled": json.dumps({"q": [text] * 20}).encode(),
            "slow": slowly(),
        }
        arguments = {"content": bodies[kind], "headers": {"content-type": "application/json"}}
        expected = WRONG[kind][1]
        try:
            timeout = chance.uniform(0.005, 0.2) if kind == "cancelled" else 300
            answer = await client.post("/translate", **arguments, timeout=timeout)
        except httpx.TransportError:  # a slow client may find that the server has closed the connection
            self.counts[kind if kind in ("cancelled", "slow") else f"{kind}: no answer"] += 1
            return
        is_right = answer.status_code == (200 if expected is None else expected)
        self.counts[kind if is_right else f"{kind}: status {answer.status_code}"] += 1
