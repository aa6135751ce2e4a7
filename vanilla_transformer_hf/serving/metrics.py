"""The metrics for Prometheus at GET /metrics, of one process or of all workers of a server."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead


# The variable with prometheus-client's folder for several processes; it is read at import.
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counts of requests, characters and seconds, and gauges of waiting and running parts, for each model."""

    def __init__(self, models: Sequence[str]):
        self.registry = CollectorRegistry()
        labels = ["model"]
        counted: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("translation_requests", "Requests answered", ["model", "status"], **counted)
        self.characters = Counter("translation_characters", "Characters of source texts", labels, **counted)
        self.suspicious = Counter(
            "translation_suspicious", "Translations that repeat a phrase or are far too long", labels, **counted
        )
        self.seconds = Histogram(
            "translation_seconds", "Seconds from a request to its answer", labels, buckets=BUCKETS, **counted
        )
        summed: dict[str, Any] = {**counted, "multiprocess_mode": "livesum"}
        self.waiting = Gauge("translation_waiting_parts", "Parts of texts that wait for a place", labels, **summed)
        self.running = Gauge("translation_running_parts", "Parts of texts in a search", labels, **summed)
        for name in models:
            self.waiting.labels(name).set(0)
            self.running.labels(name).set(0)

    def text(self) -> bytes:
        """All of it in the text format."""
        if FOLDER_VARIABLE not in os.environ:
            return generate_latest(self.registry)
        forget_dead_workers(Path(os.environ[FOLDER_VARIABLE]))
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        return generate_latest(registry)


def forget_dead_workers(folder: Path) -> None:
    """Remove the gauges of dead workers; their counters are kept."""
    for path in folder.glob("gauge_live*_*.db"):
        try:
            os.kill(int(path.stem.rpartition("_")[2]), 0)
        except ProcessLookupError:
            mark_process_dead(int(path.stem.rpartition("_")[2]), str(folder))
