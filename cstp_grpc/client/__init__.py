"""The Python client."""

from cstp_grpc.calling import Json
from cstp_grpc.client.client import CstpClient
from cstp_grpc.client.messages import decision_filters
from cstp_grpc.client.retry import RetryPolicy
from cstp_grpc.gen.methods import Cstp, IntentLayer, Liaison

__all__ = ["Cstp", "CstpClient", "IntentLayer", "Json", "Liaison", "RetryPolicy", "decision_filters"]
