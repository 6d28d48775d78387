"""Listings of items that together are larger than a message may be."""

from __future__ import annotations

from pathlib import Path

import grpc

from cstp_grpc.gen.cstp.v1 import audit_pb2, audit_pb2_grpc, cstp_pb2, cstp_pb2_grpc
from tests.harness import TIMEOUT, TOKENS, running, settings

ALICE = (("authorization", f"Bearer {TOKENS['alice']}"),)


def large_intent(number: int) -> cstp_pb2.AnnounceIntentRequest:
    """Return an intent whose texts and metadata are nearly as large as they may be."""
    request = cstp_pb2.AnnounceIntentRequest(
        intent="\u6f22" * 8_000, context="\u6f22" * 20_000, correlation_id=f"c-{number}"
    )
    request.metadata.update({"text": "x" * 190_000})
    return request


def test_large_intents_are_all_listed_page_by_page(tmp_path: Path) -> None:
    wanted = [f"c-{number}" for number in range(25)]
    with running(settings(tmp_path)) as app, grpc.insecure_channel(app.target) as channel:
        announcing = cstp_pb2_grpc.CstpServiceStub(channel)
        for number in range(25):
            announcing.AnnounceIntent(large_intent(number), metadata=ALICE, timeout=TIMEOUT)
        listing = audit_pb2_grpc.AuditServiceStub(channel)
        listed: list[str] = []
        request = audit_pb2.ListIntentsRequest()
        for _ in wanted:
            page = listing.ListIntents(request, metadata=ALICE, timeout=TIMEOUT)
            listed.extend(intent.correlation_id for intent in page.intents)
            request.page_token = page.next_page_token
            if not request.page_token:
                break
    assert listed == wanted[::-1]
