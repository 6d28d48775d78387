"""Wiring of announcements with a decision."""

from __future__ import annotations

from cstp_grpc.core.decisions.journal import Journal
from cstp_grpc.core.intents.servicer import Announcements
from cstp_grpc.gen.cstp.v1 import pre_actions_pb2_grpc
from cstp_grpc.modules.pre_actions.servicer import IntentAnnouncer, PreActionService
from cstp_grpc.server.execution import PoolName
from cstp_grpc.server.server_module import Module, SharedParts


def build_pre_actions_module(
    shared: SharedParts, announcer: IntentAnnouncer, local: Announcements, journal: Journal
) -> Module:
    """Build the service that announces and records at once; `announcer` is the servicer of the protocol's methods."""
    # The threads for recording calls, so that the threads of checks stay free.
    pool, stores_content = shared.pools[PoolName.OTHERS], shared.settings.cstp.intent.store_received
    servicer = PreActionService(announcer, local, journal, pool, stores_content=stores_content)
    return Module(servicers=[(pre_actions_pb2_grpc.add_PreActionServiceServicer_to_server, servicer)])
