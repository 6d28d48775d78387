"""The gRPC service config of the contract, as this client follows it."""

from __future__ import annotations

import functools
import json
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cstp_grpc import gen


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often and how soon calls are repeated; pauses in seconds."""

    attempts: int
    initial: float
    multiplier: float
    most: float


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """How the contract is called."""

    backoff: Backoff
    timeouts: Mapping[str, float]
    """The seconds that a call may take, by gRPC path; streams of answers have no bound."""
    balancing: str
    """What a channel is told, in JSON: to which servers calls go. Whether calls are repeated it is not told, since
    that depends on reasons which gRPC does not know; it would repeat them once more."""


@functools.cache
def service_config() -> ServiceConfig:
    """Return what is generated from the contract."""
    generated = pkgutil.get_data(gen.__name__, "service_config.json")
    assert generated is not None, "it is part of the package"
    content = json.loads(generated)
    methods = content.pop("methodConfig")
    (policy,) = [method["retryPolicy"] for method in methods if "retryPolicy" in method]
    return ServiceConfig(
        backoff=Backoff(
            attempts=policy["maxAttempts"],
            initial=seconds(policy["initialBackoff"]),
            multiplier=policy["backoffMultiplier"],
            most=seconds(policy["maxBackoff"]),
        ),
        timeouts={path: seconds(method["timeout"]) for method in methods for path in paths(method)},
        balancing=json.dumps(content),
    )


def paths(method: Mapping[str, Any]) -> list[str]:
    """Return the gRPC paths that an entry is about."""
    return [f"/{name['service']}/{name['method']}" for name in method["name"]]


def seconds(duration: str) -> float:
    """Return a duration such as `0.1s` in seconds."""
    return float(duration.removesuffix("s"))
