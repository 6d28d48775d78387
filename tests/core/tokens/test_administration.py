"""What administrators may do with tokens, and what servers accept meanwhile."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from cstp_grpc.contract.caller import Caller
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.errors import Conflict, InvalidArgument, NotFound, PermissionDenied, Unavailable
from cstp_grpc.core.tokens.administration import MAX_USABLE
from cstp_grpc.core.tokens.live_tokens import STALE_SECONDS
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.tokens.kit import ADMIN, CHECK, NOON, TokenKit

pytestmark = pytest.mark.above_stores

HOUR = timedelta(hours=1)
FOREIGN = replace(ADMIN, agent="carol", tenant="other")


def test_a_token_is_accepted_at_once_and_its_secret_is_stored_nowhere(kit: TokenKit, database: Database) -> None:
    made = kit.create()
    assert made.secret.startswith("cstp_")
    assert len(made.secret) == 48
    found = kit.find(made.secret)
    assert found == made.token
    assert kit.find(made.secret[:-1] + "?") is None
    assert made.token.expires_at == NOON + timedelta(days=30)
    with database.read_snapshot() as unit_of_work:
        (row,) = unit_of_work.driver.execute("SELECT * FROM agent_tokens").fetchall()
    assert made.secret not in str(row)
    assert kit.audited() == [("token_created", f"{made.token.id} of deployer: check; until 2026-03-06T12:00:00+00:00")]


def test_a_repeated_request_gives_the_one_token_another_secret(kit: TokenKit) -> None:
    lost = kit.create(request_id="r")
    kit.now += timedelta(minutes=9)
    shown = kit.create(request_id="r")
    assert shown.token.id == lost.token.id
    assert kit.find(lost.secret) is None
    assert kit.find(shown.secret) is not None
    assert len(kit.administration.page(ADMIN, None, PageRequest(0, ""), with_ended=True).items) == 1


def test_a_request_is_not_repeated_once_its_token_is_used_or_it_is_long_ago(kit: TokenKit) -> None:
    made = kit.create(request_id="used")
    kit.find(made.secret)
    with pytest.raises(Conflict, match="rotate it"):
        kit.create(request_id="used")
    kit.follower.store_uses()
    with pytest.raises(Conflict, match="rotate it"):
        kit.create(request_id="used")
    assert kit.find(made.secret) is not None
    kit.create(request_id="old")
    kit.now += timedelta(minutes=11)
    with pytest.raises(Conflict, match="rotate it"):
        kit.create(request_id="old")


def test_a_request_id_is_for_one_token(kit: TokenKit) -> None:
    kit.create(request_id="r")
    with pytest.raises(Conflict, match="another token"):
        kit.create("other", request_id="r")
    # Another administrator has ids of its own.
    kit.create("other", request_id="r", caller=replace(ADMIN, agent="bob"))


@pytest.mark.parametrize("name", ["intent-layer", "liaison-supervisor", "a\0b", "a\nb", "a\x1b[2J", "a\u202eb"])
def test_reserved_names_are_refused(kit: TokenKit, name: str) -> None:
    with pytest.raises(InvalidArgument):
        kit.create(name)


@pytest.mark.parametrize(
    "name",
    ["alice ", " alice", "new  agent", "new\u00a0agent", "\u0430lice", "new\u03bf", "new\ufe0f", "new\u3164"],
)
def test_a_name_that_can_be_mistaken_is_refused(kit: TokenKit, name: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        kit.create(name)
    assert [violation.field for violation in refused.value.violations] == ["agent"]


@pytest.mark.parametrize("name", ["Alice", "aIice", "a1ice", "\uff41lice", "\U0001d41alice", "CAROL", "car0l"])
def test_a_name_that_looks_like_that_of_another_agent_is_refused(kit: TokenKit, name: str) -> None:
    kit.create("alice")
    with pytest.raises(Conflict, match="looks like the name of another agent"):
        kit.create(name)
    kit.create("alice")


def test_a_name_in_other_letters_alone_is_refused_beside_one_that_looks_alike(kit: TokenKit) -> None:
    kit.create("ace")
    with pytest.raises(Conflict, match="looks like"):
        kit.create("\u0430\u0441\u0435")
    kit.create("\u041e\u043b\u044c\u0433\u0430")
    kit.create("\u6771\u4eac agent")


def test_nobody_grants_what_they_do_not_have(kit: TokenKit) -> None:
    with pytest.raises(PermissionDenied, match="approve"):
        kit.administration.create(ADMIN, "r", "deployer", CHECK | {Permission.APPROVE}, None, None)
    strong = replace(ADMIN, permissions=frozenset(Permission))
    made = kit.administration.create(strong, "r", "deployer", frozenset({Permission.APPROVE}), None, None)
    # Rotating it would hand its permissions to whoever rotates it.
    with pytest.raises(PermissionDenied, match="approve"):
        kit.rotate(made.token.id)
    assert kit.find(made.secret) == made.token
    kit.administration.revoke(ADMIN, made.token.id)


def test_tenants_are_apart(kit: TokenKit) -> None:
    made = kit.create()
    for refused in (
        lambda: kit.administration.revoke(FOREIGN, made.token.id),
        lambda: kit.administration.rotate(FOREIGN, "r", made.token.id, None, None),
    ):
        with pytest.raises(NotFound):
            refused()
    assert kit.administration.page(FOREIGN, None, PageRequest(0, ""), with_ended=True).items == ()
    with pytest.raises(Conflict, match="another tenant"):
        kit.create(caller=FOREIGN)
    with pytest.raises(Conflict, match="another tenant"):
        kit.create("carol")


def test_an_agent_has_so_many_tokens(kit: TokenKit) -> None:
    made = [kit.create() for _ in range(MAX_USABLE)]
    with pytest.raises(Conflict, match="revoke one first"):
        kit.create()
    kit.administration.revoke(ADMIN, made[0].token.id)
    kit.create()


@pytest.mark.parametrize("end", [NOON, NOON - HOUR, NOON + timedelta(days=91)])
def test_an_end_is_in_the_future_and_not_too_far_ahead(kit: TokenKit, end: object) -> None:
    with pytest.raises(InvalidArgument, match="within 90 days"):
        kit.administration.create(ADMIN, "r", "deployer", CHECK, end, None)  # type: ignore[arg-type]


def test_a_token_ends_at_its_time(kit: TokenKit) -> None:
    made = kit.administration.create(ADMIN, "r", "deployer", CHECK, NOON + HOUR, None)
    kit.now = NOON + HOUR - timedelta(microseconds=1)
    assert kit.find(made.secret) is not None
    kit.now = NOON + HOUR
    assert kit.find(made.secret) is None
    assert not kit.live.has_agent("deployer")


def test_a_rotated_token_is_accepted_for_a_while(kit: TokenKit) -> None:
    former = kit.create()
    kit.now += HOUR
    made = kit.rotate(former.token.id)
    assert made.token.rotated_from == former.token.id
    assert made.token.identity == former.token.identity
    assert made.token.expires_at == kit.now + timedelta(days=30)
    assert kit.find(former.secret) is not None
    assert kit.find(made.secret) is not None
    kit.now += HOUR
    assert kit.find(former.secret) is None
    assert kit.find(made.secret) is not None
    with pytest.raises(Conflict, match="has ended"):
        kit.rotate(former.token.id)


def test_a_rotation_may_end_the_former_at_once_and_be_repeated(kit: TokenKit) -> None:
    former = kit.create()
    lost = kit.rotate(former.token.id, timedelta(0), request_id="r")
    assert kit.find(former.secret) is None
    shown = kit.rotate(former.token.id, timedelta(0), request_id="r")
    assert shown.token.id == lost.token.id
    assert kit.find(lost.secret) is None
    assert kit.find(shown.secret) is not None
    assert [event for event, _ in kit.audited()] == ["token_created", "token_rotated", "token_rotated"]


def test_a_rotation_never_lengthens_the_former(kit: TokenKit) -> None:
    former = kit.administration.create(ADMIN, "r", "deployer", CHECK, NOON + HOUR, None)
    kit.rotate(former.token.id, timedelta(days=10))
    kit.now += HOUR
    assert kit.find(former.secret) is None


def test_a_revoked_token_is_refused_at_once(kit: TokenKit) -> None:
    made = kit.create()
    assert kit.live.has_agent("deployer")
    revoked = kit.administration.revoke(ADMIN, made.token.id)
    assert (revoked.revoked_at, revoked.revoked_by) == (NOON, "ada")
    assert kit.find(made.secret) is None
    assert kit.administration.revoke(replace(ADMIN, agent="bob"), made.token.id) == revoked
    assert [event for event, _ in kit.audited()] == ["token_created", "token_revoked"]
    with pytest.raises(NotFound):
        kit.administration.revoke(ADMIN, "tok-9")


def test_uses_are_listed_at_once_and_stored_in_batches(kit: TokenKit) -> None:
    made, unused = kit.create(), kit.create()
    kit.now += HOUR
    kit.find(made.secret)
    listed = {
        token.id: token for token in kit.administration.page(ADMIN, None, PageRequest(0, ""), with_ended=False).items
    }
    assert listed[made.token.id].last_used_at == NOON + HOUR
    assert listed[unused.token.id].last_used_at is None
    kit.follower.store_uses()
    assert kit.live.last_use(made.token.id) is None
    page = kit.administration.page(ADMIN, "deployer", PageRequest(0, ""), with_ended=False)
    assert {token.last_used_at for token in page.items} == {NOON + HOUR, None}


@pytest.mark.both_databases
def test_what_another_server_changes_is_taken_over(
    kit: TokenKit, database: Database, writer: GroupCommitWriter
) -> None:
    other = TokenKit(database, writer)
    made = kit.create()
    assert other.find(made.secret) is None
    other.follower.refresh()
    assert other.find(made.secret) is not None
    kit.administration.revoke(ADMIN, made.token.id)
    other.follower.refresh()
    assert other.find(made.secret) is None


def test_tokens_that_the_database_has_not_confirmed_for_long_are_not_accepted(kit: TokenKit) -> None:
    made = kit.create()
    kit.seconds += STALE_SECONDS
    assert kit.find(made.secret) is not None
    kit.seconds += 0.1
    with pytest.raises(Unavailable):
        kit.find(made.secret)
    assert kit.find("wrong") is None
    kit.follower.refresh()
    assert kit.find(made.secret) is not None


def test_a_caller_without_permissions_grants_nothing(kit: TokenKit) -> None:
    with pytest.raises(PermissionDenied):
        kit.create(caller=Caller("eve", "eve", frozenset(), "r", "default"))
