"""The Python clients."""

from cstp_grpc.calling import Json
from cstp_grpc.client.async_client import AsyncCstpClient
from cstp_grpc.client.client import CstpClient
from cstp_grpc.client.codec import to_json
from cstp_grpc.client.federation.client import Agent, FederatedClient
from cstp_grpc.client.guard import Announced, Blocked, guard
from cstp_grpc.client.messages import decision_filters
from cstp_grpc.client.retry import RetryPolicy
from cstp_grpc.gen.async_methods import AsyncCstp, AsyncIntentLayer, AsyncLiaison
from cstp_grpc.gen.methods import Cstp, IntentLayer, Liaison

__all__ = [
    "Agent",
    "Announced",
    "AsyncCstp",
    "AsyncCstpClient",
    "AsyncIntentLayer",
    "AsyncLiaison",
    "Blocked",
    "Cstp",
    "CstpClient",
    "FederatedClient",
    "IntentLayer",
    "Json",
    "Liaison",
    "RetryPolicy",
    "decision_filters",
    "guard",
    "to_json",
]
