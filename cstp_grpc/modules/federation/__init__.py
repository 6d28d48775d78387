"""Ask several agents at once and merge their responses, for servers and for callers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cstp_grpc.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from cstp_grpc.modules.federation.federated_client import FederatedClient
    from cstp_grpc.modules.federation.peer import Agent
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "cstp_grpc.modules.federation.federated_client": "FederatedClient",
            "cstp_grpc.modules.federation.peer": "Agent",
        },
    )

__all__ = ["Agent", "FederatedClient"]
