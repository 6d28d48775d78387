"""How tests of commands that serve ask what they serve."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

BOUND = 60.0


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=BOUND) as answer:
        return json.load(answer)


def answers(target: str) -> bool:
    """Whether a gRPC server says that it is well."""
    with grpc.insecure_channel(target) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=BOUND)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
