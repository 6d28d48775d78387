"""Delivery is woken for what is to be delivered, and not by what a local agent takes by itself."""

from __future__ import annotations

from cstp_grpc.modules.liaison.agents import DeliveryRequest
from cstp_grpc.modules.liaison.context_sharing import ShareRequest
from cstp_grpc.modules.liaison.model import TenantCaller, liaison_agent
from cstp_grpc.modules.liaison.routing import RoutingRequest
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.modules.liaison.room import Room, build_room
from tests.modules.liaison.servers import Clock

THE_GUIDE = TenantCaller("guide-agent", "acme", "request-1", may_route=True)
SERVING = TenantCaller(liaison_agent("content"), "acme", "request-2")


class Remote:
    """A remote agent that is there."""

    confirms = False

    def check(self, tenant: str) -> None:
        """Return."""

    def deliver(self, parcel: DeliveryRequest) -> str | None:
        """Take a parcel."""
        raise AssertionError("delivering is another's work")


class Wakings:
    """Counts how often delivery was woken."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def build(database: Database, writer: GroupCommitWriter, wakings: Wakings) -> Room:
    room = build_room(database, writer, Clock(), ["content"], remote={"journey": Remote()}, wake=wakings)
    room.presence.heartbeat(SERVING, "content", leaving=False)
    room.sessions.open(THE_GUIDE, "ada", "s-1", {})
    return room


def test_a_routing_wakes_delivery_for_a_remote_agent_alone(database: Database, writer: GroupCommitWriter) -> None:
    wakings = Wakings()
    room = build(database, writer, wakings)
    room.router.route(THE_GUIDE, RoutingRequest("content", "ada", "s-1"))
    assert wakings.count == 0
    room.router.return_to_guide(THE_GUIDE, "s-1", "done", None)
    room.router.route(THE_GUIDE, RoutingRequest("journey", "ada", "s-1"))
    assert wakings.count == 1


def test_a_share_wakes_delivery_for_a_remote_agent_alone(database: Database, writer: GroupCommitWriter) -> None:
    wakings = Wakings()
    room = build(database, writer, wakings)
    room.sharing.share(THE_GUIDE, ShareRequest("guide", "liaison_content", {"topic": "files"}))
    assert wakings.count == 0
    room.sharing.share(THE_GUIDE, ShareRequest("guide", "liaison_journey", {"topic": "files"}))
    assert wakings.count == 1
