"""The Python clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cstp_grpc.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from cstp_grpc.client.async_client import AsyncCstpClient
    from cstp_grpc.client.cstp_client import CstpClient
    from cstp_grpc.client.guard import Announced, Blocked, guard
    from cstp_grpc.client.retry import RetryPolicy
    from cstp_grpc.contract.calls import Json
    from cstp_grpc.contract.json_codec import to_json
    from cstp_grpc.contract.proto_values import decision_filters
    from cstp_grpc.gen.async_methods import AsyncCstp, AsyncIntentLayer, AsyncLiaison
    from cstp_grpc.gen.methods import Cstp, IntentLayer, Liaison
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "cstp_grpc.contract.calls": "Json",
            "cstp_grpc.client.async_client": "AsyncCstpClient",
            "cstp_grpc.client.cstp_client": "CstpClient",
            "cstp_grpc.contract.json_codec": "to_json",
            "cstp_grpc.client.guard": "Announced Blocked guard",
            "cstp_grpc.contract.proto_values": "decision_filters",
            "cstp_grpc.client.retry": "RetryPolicy",
            "cstp_grpc.gen.async_methods": "AsyncCstp AsyncIntentLayer AsyncLiaison",
            "cstp_grpc.gen.methods": "Cstp IntentLayer Liaison",
        },
    )

__all__ = [
    "Announced",
    "AsyncCstp",
    "AsyncCstpClient",
    "AsyncIntentLayer",
    "AsyncLiaison",
    "Blocked",
    "Cstp",
    "CstpClient",
    "IntentLayer",
    "Json",
    "Liaison",
    "RetryPolicy",
    "decision_filters",
    "guard",
    "to_json",
]
