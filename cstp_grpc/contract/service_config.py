"""The timeouts and load balancing of the contract's methods, as generated."""

from __future__ import annotations

import functools
import json
import pkgutil
from collections.abc import Mapping

from cstp_grpc import gen
from cstp_grpc.common.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Timeouts and load balancing of the contract's methods."""

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
    return ServiceConfig(
        timeouts={
            f"/{name['service']}/{name['method']}": float(method["timeout"].removesuffix("s"))
            for method in methods
            for name in method["name"]
        },
        balancing=json.dumps(content),
    )
