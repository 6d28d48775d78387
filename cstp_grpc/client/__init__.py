"""The Python client."""

from cstp_grpc.client.client import CstpClient
from cstp_grpc.client.messages import decision_filters
from cstp_grpc.client.retry import RetryPolicy

__all__ = ["CstpClient", "RetryPolicy", "decision_filters"]
