"""The permission `migrate`: importing decisions with the identity that another journal gave them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cstp_grpc.client import CstpClient
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.errors import InvalidArgument, NotFound, PermissionDenied
from cstp_grpc.gen.cstp.v1 import journal_pb2, types_pb2
from tests.harness import TOKENS, running, settings
from tests.server.agents import clients

ID = "dec-0123456789abcdef0123"


def tokens(**permissions: set[Permission]) -> dict[str, object]:
    """Tokens of agents that may do everything but some things."""
    return {
        "tokens": [
            {"name": name, "token": TOKENS[name], "permissions": sorted({*Permission} - left_out)}
            for name, left_out in permissions.items()
        ]
    }


@contextmanager
def two_agents(folder: Path, *, bob: set[Permission]) -> Iterator[tuple[CstpClient, CstpClient]]:
    """Alice, who may do everything, and bob, who may not do some things."""
    with running(settings(folder, auth=tokens(alice=set(), bob=bob))) as app, clients(app, "alice", "bob") as found:
        alice, other = found
        yield alice, other


def identified(key: str = ID, title: str = "Migrated", *, deleted: bool = False) -> journal_pb2.ImportDecisionsRequest:
    """A record with an identity, changed in the year 2200."""
    request = journal_pb2.ImportDecisionsRequest(source=f"export.jsonl#{key}", restore_deleted=True)
    request.identity.id = key
    request.identity.provenance.changed_date.FromJsonString("2200-01-01T00:00:00Z")
    request.identity.deleted = deleted
    if not deleted:
        request.decision.title = title
    return request


def plain(source: str) -> journal_pb2.ImportDecisionsRequest:
    return journal_pb2.ImportDecisionsRequest(
        source=source, decision=journal_pb2.DecisionContent(title="From a source")
    )


def actions(client: CstpClient, *requests: journal_pb2.ImportDecisionsRequest) -> list[str]:
    return [journal_pb2.ImportAction.Name(item.action)[14:] for item in client.import_decisions(requests)]


def test_an_identity_needs_the_permission_and_nothing_of_its_batch_is_stored(tmp_path: Path) -> None:
    with two_agents(tmp_path, bob={Permission.MIGRATE}) as (alice, bob):
        for request in (identified(), identified(deleted=True)):
            with pytest.raises(PermissionDenied) as caught:
                list(bob.import_decisions([plain("a"), request]))
            assert caught.value.metadata["permission"] == "migrate"
        assert list(bob.export_decisions(include_deleted=True)) == []
        assert actions(bob, plain("a")) == ["IMPORTED"]
        # Every other permission is not enough: alice, who has it, is the first with this id.
        assert actions(alice, identified()) == ["IMPORTED"]


def test_the_permission_alone_does_not_record(tmp_path: Path) -> None:
    everything_else = {*Permission} - {Permission.MIGRATE}
    with two_agents(tmp_path, bob=everything_else) as (_, bob), pytest.raises(PermissionDenied) as caught:
        list(bob.import_decisions([identified()]))
    assert caught.value.metadata["permission"] == "record"


@pytest.mark.parametrize("visibility", ["private", "shared"])
@pytest.mark.parametrize("owner", ["bob", "carol"])
def test_a_decision_of_another_agent_or_tenant_is_neither_changed_nor_deleted(
    tmp_path: Path, visibility: str, owner: str
) -> None:
    with running(settings(tmp_path)) as app, clients(app, "alice", owner) as (alice, other):
        made = other.record_decision("Theirs", visibility=visibility)
        gone = other.record_decision("Gone", visibility=visibility)
        other.delete_decision(gone.id)
        for request in (identified(made.id, "Mine"), identified(made.id, deleted=True)):
            assert actions(alice, request) == ["REFUSED"]
        assert actions(alice, identified(gone.id, "Mine")) == ["DELETED"]
        assert actions(alice, identified(gone.id, deleted=True)) == ["UNCHANGED"]
        assert other.get_decision(made.id).title == "Theirs"
        assert {item.id: item.agent for item in other.export_decisions(include_deleted=True)} == {
            made.id: owner,
            gone.id: owner,
        }
        assert list(alice.export_decisions(filters={"agent": "alice"}, include_deleted=True)) == []
        with pytest.raises(NotFound):
            alice.get_decision(gone.id)


def test_an_imported_decision_is_of_the_caller_whatever_the_record_says(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app, clients(app, "alice", "bob") as (alice, bob):
        request = identified()
        request.identity.provenance.superseded_by.append("dec-of-bob")
        theirs = bob.record_decision("Theirs")
        request.identity.provenance.links.supersedes.append(theirs.id)
        assert actions(alice, request) == ["IMPORTED"]
        assert alice.get_decision(ID).agent == "alice"
        assert bob.get_decision(theirs.id).status == types_pb2.DECISION_STATUS_DECIDED
        assert alice.get_decision(ID).visibility == types_pb2.VISIBILITY_PRIVATE


def test_a_decision_of_an_erased_agent_stays_erased(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app, clients(app, "alice", "bob") as (alice, bob):
        made = bob.record_decision("Personal")
        (exported,) = bob.export_decisions()
        alice.erase_agent("bob")
        for client in (bob, alice):
            assert actions(client, identified(made.id, exported.title)) == ["DELETED"]
            assert list(client.export_decisions(include_deleted=True)) == []


def test_a_deletion_has_no_decision_and_a_decision_has_one(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app, clients(app, "alice") as (alice,):
        wrong = identified(deleted=True)
        wrong.decision.title = "Both"
        empty = identified()
        empty.ClearField("decision")
        undated = identified()
        undated.identity.provenance.ClearField("changed_date")
        for request in (wrong, empty, undated, identified("dec-1"), identified("DEC-0123456789abcdef0123")):
            with pytest.raises(InvalidArgument):
                list(alice.import_decisions([request]))
        assert list(alice.export_decisions(include_deleted=True)) == []
