"""
The translation server on Ray Serve, which starts, restarts and scales its replicas.

    serve run vanilla_transformer_hf.serving.ray_serve:application models=outputs/quickstart replicas=2

Each replica is the application of `vanilla-transformer serve`, with its own models and its own continuous batching.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from ray import serve

from .server import ServerSettings, make_application, start_log


@dataclass
class ReplicaSettings:
    """How many replicas there are ("auto": by the load), what each has, and how many requests it batches at a time."""

    replicas: int | str = 1
    cpus: float = 1
    gpus: float = 0
    ongoing: int = 256


def application(arguments: dict[str, Any]) -> serve.Application:
    """The builder that Ray Serve calls, with fields of both settings from its command line or configuration file."""
    known = {**ServerSettings.__dataclass_fields__, **ReplicaSettings.__dataclass_fields__}
    if unknown := sorted(set(arguments) - set(known)):
        raise ValueError(f"{', '.join(unknown)}: expected some of {', '.join(known)}")
    lists = ("models", "languages")
    given = {
        name: value.split(",") if name in lists and isinstance(value, str) else value
        for name, value in arguments.items()
    }
    size = TypeAdapter(ReplicaSettings).validate_python(
        {name: value for name, value in given.items() if name in ReplicaSettings.__dataclass_fields__}
    )
    settings = TypeAdapter(ServerSettings).validate_python(
        {name: value for name, value in given.items() if name in ServerSettings.__dataclass_fields__}
    )

    def build() -> Any:
        start_log(settings)
        return make_application(settings)

    deployment = serve.deployment(
        name="translation",
        num_replicas=size.replicas,
        max_ongoing_requests=size.ongoing,
        ray_actor_options={"num_cpus": size.cpus, "num_gpus": size.gpus},
        graceful_shutdown_timeout_s=settings.seconds_to_finish,
    )
    return deployment(serve.ingress(build)()).bind()
