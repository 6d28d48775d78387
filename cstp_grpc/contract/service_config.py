"""The timeouts, retries and load balancing of the contract's methods, as generated."""

from __future__ import annotations

import functools
import json
import pkgutil
from collections.abc import Mapping

from cstp_grpc import gen
from cstp_grpc.common.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class BackoffConfig:
    """Retry attempts and delays, in seconds."""

    attempts: int
    initial: float
    multiplier: float
    max_delay: float


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Timeouts, retries and load balancing of the contract's methods."""

    backoff: BackoffConfig
    timeouts: Mapping[str, float]
    """The timeout of each method in seconds, by gRPC path; not for response streams."""
    balancing: str
    """The service config given to gRPC channels, as JSON: load balancing only. Retries are left out, because they
    depend on reasons that gRPC does not know, and gRPC would add its own to ours.
    """


# Cached for the process: it is a file of the package, and every call reads its timeout from it.
@functools.cache
def service_config() -> ServiceConfig:
    """Load the generated service config."""
    generated = pkgutil.get_data(gen.__name__, "service_config.json")
    assert generated is not None, "it is part of the package"
    content = json.loads(generated)
    methods = content.pop("methodConfig")
    # All methods that are retried have the same policy; unpacking fails if the contract ever gives two.
    (policy,) = [method["retryPolicy"] for method in methods if "retryPolicy" in method]
    return ServiceConfig(
        backoff=BackoffConfig(
            attempts=policy["maxAttempts"],
            initial=parse_duration(policy["initialBackoff"]),
            multiplier=policy["backoffMultiplier"],
            max_delay=parse_duration(policy["maxBackoff"]),
        ),
        timeouts={
            f"/{name['service']}/{name['method']}": parse_duration(method["timeout"])
            for method in methods
            for name in method["name"]
        },
        balancing=json.dumps(content),
    )


def parse_duration(duration: str) -> float:
    """Parse a duration such as `0.1s` into seconds."""
    return float(duration.removesuffix("s"))
