"""What a supervisor has a worker do."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from cstp_grpc.config import Settings
from cstp_grpc.server.deployment import Deployment


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """How one of several server processes serves."""

    name: str
    """How the worker is called in the log."""
    settings: Settings
    """The settings of all workers, also of those that are started later; `grpc.port` is the port that they share."""
    deployment: Deployment

    def encode(self) -> bytes:
        """Return the task as bytes, the secrets in the settings included."""
        return pickle.dumps(self)

    @classmethod
    def decode(cls, encoded: bytes) -> WorkerTask:
        """Return the task that bytes from the supervisor are; nobody else has the other end of the socket."""
        task: WorkerTask = pickle.loads(encoded)  # noqa: S301
        return task
