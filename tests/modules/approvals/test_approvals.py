"""What becomes of approval requests, on every database."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.common.canonical_json import is_same_json
from cstp_grpc.contract.caller import Caller
from cstp_grpc.contract.enums import ApprovalStatus, Stakes
from cstp_grpc.contract.errors import Conflict, InvalidArgument, PermissionDenied, RateLimited
from cstp_grpc.core.audit.model import AuditEvent, AuditFilter
from cstp_grpc.core.guardrails.model import Action, CodeFacts
from cstp_grpc.modules.approvals.model import ApprovalFilter, digest_of_action
from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.databases import POOL_SIZE, ServerWriter
from tests.modules.approvals.kit import ACTION, LIFETIME, MANY_ROWS, MAX_REUSE, NOON, PRICES, ApprovalKit, approver
from tests.named_case import named_case

pytestmark = pytest.mark.above_stores

BOB, CAROL = approver("bob"), approver("carol")
SECOND = timedelta(seconds=1)
SERVERS = 3
CHECKS = 24


def events(kit: ApprovalKit, approval_id: str) -> list[AuditEvent]:
    """Return the audit events of an approval, the first one first."""
    page = kit.trail.page(AuditFilter(approval_id=approval_id), PageRequest(100))
    return [entry.event for entry in reversed(page.items)]


def test_an_undecided_request_expires_and_the_next_check_asks_anew(kit: ApprovalKit) -> None:
    first = kit.request()
    kit.now += LIFETIME - SECOND
    assert kit.request() == first
    kit.now += SECOND
    assert kit.read(first).status_at(kit.now) is ApprovalStatus.EXPIRED
    with pytest.raises(Conflict, match="it is expired"):
        kit.reviewer.grant(first, BOB, None, None)
    assert kit.request() != first
    assert kit.read(first).status is ApprovalStatus.EXPIRED
    assert events(kit, first) == [AuditEvent.APPROVAL_REQUESTED, AuditEvent.APPROVAL_EXPIRED]


def test_expired_requests_are_ended_and_their_agents_told(kit: ApprovalKit) -> None:
    pending, denied = kit.request(), kit.request(replace(ACTION, description="Other"))
    kit.reviewer.deny(denied, BOB, "No")
    kit.notices.queued.clear()
    assert not kit.reviewer.end_expired()
    assert kit.read(pending).status is ApprovalStatus.PENDING
    kit.now += LIFETIME
    assert not kit.reviewer.end_expired()
    assert [(each.id, each.status) for each in kit.notices.queued] == [(pending, ApprovalStatus.EXPIRED)]
    assert kit.read(denied).status is ApprovalStatus.DENIED
    assert events(kit, denied) == [AuditEvent.APPROVAL_REQUESTED, AuditEvent.APPROVAL_DENIED]
    assert kit.request(replace(ACTION, description="Other")) != denied
    wakes = kit.wakes
    assert not kit.reviewer.end_expired()
    assert kit.wakes == wakes


def test_a_denial_holds_until_the_request_would_have_expired(kit: ApprovalKit) -> None:
    denied = kit.request()
    kit.now += LIFETIME / 2
    kit.reviewer.deny(denied, BOB, "Not now")
    verdict = kit.check()
    assert (verdict.allowed, verdict.approval_required) == (False, False)
    assert verdict.approval is not None
    assert (verdict.approval.id, verdict.approval.comment) == (denied, "Not now")
    # Another guardrail that asks takes nothing back.
    assert kit.request(ACTION, MANY_ROWS, PRICES) == denied
    kit.now += LIFETIME / 2
    assert kit.request() != denied


def test_a_grant_is_good_for_the_lifetime_from_then_on(kit: ApprovalKit) -> None:
    granted = kit.request()
    kit.now += LIFETIME - SECOND
    kit.reviewer.grant(granted, BOB, None, None)
    kit.now += LIFETIME - SECOND
    assert kit.check().allowed
    late = kit.request()
    kit.reviewer.grant(late, BOB, None, None)
    kit.now += LIFETIME
    assert not kit.check().allowed
    assert kit.read(late).uses == 0


def test_a_reusable_approval_lets_its_action_through_until_its_instant(kit: ApprovalKit) -> None:
    reusable = kit.request()
    kit.reviewer.grant(reusable, BOB, None, NOON + MAX_REUSE)
    for _ in range(3):
        verdict = kit.check()
        assert verdict.allowed
        assert verdict.approval is not None
        assert (verdict.approval.id, verdict.approval.status) == (reusable, ApprovalStatus.USED)
        kit.now += timedelta(days=2)
    assert (kit.read(reusable).status, kit.read(reusable).uses) == (ApprovalStatus.GRANTED, 3)
    kit.now = NOON + MAX_REUSE
    assert not kit.check().allowed
    for until in (kit.now, kit.now + MAX_REUSE + SECOND):
        with pytest.raises(InvalidArgument, match="must be in the future, and within"):
            kit.reviewer.grant(reusable, BOB, None, until)


def test_a_revoked_reusable_approval_lets_nothing_more_through(kit: ApprovalKit) -> None:
    reusable = kit.request()
    kit.reviewer.grant(reusable, BOB, None, NOON + MAX_REUSE)
    assert kit.check().allowed
    kit.reviewer.revoke(reusable, CAROL, "Enough")
    assert kit.reviewer.revoke(reusable, CAROL, "Again").comment == "Enough"
    assert not kit.check().allowed


def test_another_guardrail_that_asks_needs_its_own_grant(kit: ApprovalKit) -> None:
    granted = kit.request()
    kit.reviewer.grant(granted, CAROL, None, None)
    # The rules or what happened have changed since: what was granted does not cover what asks now.
    verdict = kit.check(ACTION, MANY_ROWS, PRICES)
    assert not verdict.allowed
    assert verdict.approval is not None
    assert (verdict.approval.id, verdict.approval.status) == (granted, ApprovalStatus.PENDING)
    assert kit.reviewer.grant(granted, CAROL, None, None).status is ApprovalStatus.PENDING
    kit.now += SECOND
    assert kit.reviewer.grant(granted, BOB, None, None).status is ApprovalStatus.GRANTED
    assert kit.check(ACTION, MANY_ROWS, PRICES).allowed
    # The record says which guardrails each grant was for.
    found = kit.trail.page(AuditFilter(approval_id=granted), PageRequest(100)).items
    grants = [entry.violations for entry in reversed(found) if entry.event is AuditEvent.APPROVAL_GRANTED]
    assert grants == [(MANY_ROWS.guardrail_id,), (PRICES.guardrail_id,)]


def test_who_may_not_approve_lists_its_own_requests_only(kit: ApprovalKit) -> None:
    own, other = kit.request(), kit.request(replace(ACTION, agent="bob"))

    def listed(agent: str | None, caller: Caller) -> set[str]:
        return {found.id for found in kit.reviewer.page(ApprovalFilter(agent=agent), PageRequest(10), caller).items}

    asking = replace(CAROL, agent=ACTION.agent, permissions=frozenset())
    assert [listed(agent, asking) for agent in (None, ACTION.agent, "bob")] == [{own}, {own}, set()]
    assert [listed(agent, CAROL) for agent in (None, "bob")] == [{own, other}, {other}]


def test_who_is_no_approver_any_more_has_granted_nothing(kit: ApprovalKit) -> None:
    granted = kit.request(ACTION, PRICES)
    kit.reviewer.grant(granted, BOB, None, None)
    # The rules were changed since.
    still, others = (replace(PRICES, approvers=names) for names in (("bob", "dan"), ("carol",)))
    waiting = kit.check(ACTION, others)
    assert (waiting.allowed, waiting.approval and waiting.approval.id) == (False, granted)
    with pytest.raises(PermissionDenied, match="carol"):
        kit.reviewer.grant(granted, BOB, None, None)
    kit.reviewer.grant(granted, CAROL, None, None)
    assert kit.check(ACTION, others).allowed
    granted = kit.request(ACTION, PRICES)
    kit.reviewer.grant(granted, BOB, None, None)
    assert kit.check(ACTION, still).allowed


def test_one_who_grants_a_single_use_outweighs_one_who_grants_a_time(kit: ApprovalKit) -> None:
    shared = kit.request(ACTION, replace(MANY_ROWS, approvers=("carol",)), PRICES)
    kit.reviewer.grant(shared, CAROL, None, NOON + MAX_REUSE)
    assert kit.reviewer.grant(shared, BOB, None, None).reusable_until is None
    assert kit.check(ACTION, MANY_ROWS, PRICES).allowed
    assert not kit.check(ACTION, MANY_ROWS, PRICES).allowed


def test_the_earliest_instant_counts_of_several(kit: ApprovalKit) -> None:
    shared = kit.request(ACTION, replace(MANY_ROWS, approvers=("carol",)), PRICES)
    kit.reviewer.grant(shared, CAROL, None, NOON + MAX_REUSE)
    granted = kit.reviewer.grant(shared, BOB, None, NOON + SECOND)
    assert granted.reusable_until == granted.expires_at == NOON + SECOND


def test_what_is_granted_once_ends_when_another_grant_of_it_does(kit: ApprovalKit) -> None:
    shared = kit.request(ACTION, replace(MANY_ROWS, approvers=("carol",)), PRICES)
    kit.reviewer.grant(shared, CAROL, None, NOON + SECOND)
    assert kit.reviewer.grant(shared, BOB, None, None).expires_at == NOON + SECOND
    kit.now += SECOND
    assert not kit.check(ACTION, MANY_ROWS, PRICES).allowed


def test_a_grant_for_a_time_that_is_over_is_asked_for_again(kit: ApprovalKit) -> None:
    shared = kit.request(ACTION, replace(MANY_ROWS, approvers=("carol",)), PRICES)
    kit.reviewer.grant(shared, CAROL, None, NOON + SECOND)
    kit.now += SECOND
    granted = kit.reviewer.grant(shared, BOB, None, None)
    assert (granted.status, [each.granted_by for each in granted.guardrails]) == (ApprovalStatus.PENDING, [None, "bob"])
    assert kit.reviewer.grant(shared, CAROL, None, None).status is ApprovalStatus.GRANTED
    assert kit.check(ACTION, MANY_ROWS, PRICES).allowed


def test_a_grant_still_counts_if_who_gave_it_may_still_decide(kit: ApprovalKit) -> None:
    granted = kit.request(ACTION, MANY_ROWS)
    kit.reviewer.grant(granted, BOB, None, None)
    assert kit.check(ACTION, replace(MANY_ROWS, approvers=("bob",))).allowed
    assert events(kit, granted)[1:] == [AuditEvent.APPROVAL_GRANTED, AuditEvent.APPROVAL_USED]


def test_a_pending_request_waits_for_those_who_may_decide_now(kit: ApprovalKit) -> None:
    pending = kit.request(ACTION, PRICES)
    assert kit.request(ACTION, replace(PRICES, approvers=("carol",))) == pending
    with pytest.raises(PermissionDenied, match="carol"):
        kit.reviewer.grant(pending, BOB, None, None)
    assert kit.reviewer.grant(pending, CAROL, None, None).status is ApprovalStatus.GRANTED


@pytest.mark.parametrize("name", ["bob", "friend-of-friend/bob"])
def test_nobody_decides_on_what_a_peer_asks_for_them(kit: ApprovalKit, name: str) -> None:
    asked = kit.check(replace(ACTION, agent="friend"), on_behalf_of=name).approval
    assert asked is not None
    for decide in (kit.reviewer.deny, kit.reviewer.revoke):
        with pytest.raises(PermissionDenied, match="your own request"):
            decide(asked.id, BOB, None)
    with pytest.raises(PermissionDenied, match="your own request"):
        kit.reviewer.grant(asked.id, BOB, None, None)
    assert kit.reviewer.grant(asked.id, CAROL, None, None).status is ApprovalStatus.GRANTED


def test_an_approver_that_is_not_named_decides_nothing(kit: ApprovalKit) -> None:
    prices = kit.request(ACTION, PRICES)
    for decide in (kit.reviewer.deny, kit.reviewer.revoke):
        with pytest.raises(PermissionDenied, match="bob"):
            decide(prices, CAROL, None)
    assert kit.reviewer.deny(prices, BOB, None).status is ApprovalStatus.DENIED
    assert kit.reviewer.deny(prices, BOB, "again").comment is None


def test_the_address_that_waits_last_is_told(kit: ApprovalKit) -> None:
    kit.check(url="https://agents.example.com/a")
    waiting = kit.check(url="https://agents.example.com/b").approval
    assert waiting is not None
    kit.check()
    kit.reviewer.grant(waiting.id, BOB, None, None)
    assert [each.callback_url for each in kit.notices.queued] == ["https://agents.example.com/b"]


def test_the_address_that_waits_last_is_told_of_what_others_ask(kit: ApprovalKit) -> None:
    granted = kit.request()
    kit.reviewer.grant(granted, BOB, None, None)
    assert not kit.check(ACTION, MANY_ROWS, PRICES, url="https://agents.example.com/b").allowed
    kit.reviewer.grant(granted, BOB, None, None)
    assert [each.callback_url for each in kit.notices.queued] == [None, "https://agents.example.com/b"]


def test_a_check_tells_whoever_waits_that_the_request_before_has_expired(kit: ApprovalKit) -> None:
    expired = kit.check(url="https://agents.example.com/a").approval
    assert expired is not None
    kit.now += LIFETIME
    kit.check()
    assert [(each.id, each.status) for each in kit.notices.queued] == [(expired.id, ApprovalStatus.EXPIRED)]
    assert not kit.reviewer.end_expired()
    assert len(kit.notices.queued) == 1


def test_a_partial_grant_is_told_to_nobody(kit: ApprovalKit) -> None:
    shared = kit.request(ACTION, replace(MANY_ROWS, approvers=("carol",)), PRICES)
    kit.reviewer.grant(shared, CAROL, None, None)
    assert kit.notices.queued == []


def test_pending_requests_are_bounded_and_decided_ones_make_room(database: Database, writer: GroupCommitWriter) -> None:
    kit = ApprovalKit(database, writer, max_pending=2)
    first = kit.request(replace(ACTION, description="1"))
    kit.request(replace(ACTION, description="2"))
    with pytest.raises(RateLimited, match="2 approval requests"):
        kit.check(replace(ACTION, description="3"))
    # Those that are pending are found again all the same, and other agents have their own.
    assert kit.request(replace(ACTION, description="1")) == first
    kit.request(replace(ACTION, description="3", agent="bob"))
    kit.reviewer.deny(first, BOB, None)
    kit.request(replace(ACTION, description="3"))
    kit.now += LIFETIME
    kit.request(replace(ACTION, description="4"))


def test_old_requests_are_removed(kit: ApprovalKit) -> None:
    removed, kept = kit.request(), kit.request(replace(ACTION, description="Other"))
    kit.reviewer.grant(removed, BOB, None, None)
    kit.check()
    kit.reviewer.deny(kept, BOB, None)
    kit.now += timedelta(days=30)
    assert not kit.reviewer.remove_ended(timedelta(days=30))
    kit.now += SECOND
    assert not kit.reviewer.remove_ended(timedelta(days=30))
    found = kit.reviewer.page(ApprovalFilter(), PageRequest(), BOB).items
    assert [each.id for each in found] == [kept]


@pytest.mark.both_databases
def test_of_checks_at_once_on_several_servers_one_is_let_through(database_url: str) -> None:
    with ExitStack() as opened:
        kits = []
        for _ in range(SERVERS):
            database = opened.enter_context(closing(open_database(database_url, POOL_SIZE)))
            kits.append(ApprovalKit(database, opened.enter_context(closing(ServerWriter(database)))))
        with ThreadPoolExecutor(CHECKS) as threads:

            def check_everywhere() -> list[bool]:
                return list(threads.map(lambda number: kits[number % SERVERS].check().allowed, range(CHECKS)))

            assert check_everywhere() == [False] * CHECKS
            (requested,) = kits[0].reviewer.page(ApprovalFilter(), PageRequest(), BOB).items
            kits[0].reviewer.grant(requested.id, BOB, None, None)
            assert sum(check_everywhere()) == 1
        used = kits[1].trail.page(AuditFilter(event=AuditEvent.APPROVAL_USED), PageRequest()).items
        assert [entry.approval_id for entry in used] == [requested.id]
        assert len(kits[2].reviewer.page(ApprovalFilter(), PageRequest(), BOB).items) == 2


@pytest.mark.both_databases
def test_of_decisions_at_once_on_several_servers_one_counts(database_url: str) -> None:
    with ExitStack() as opened:
        kits = []
        for _ in range(SERVERS):
            database = opened.enter_context(closing(open_database(database_url, POOL_SIZE)))
            kits.append(ApprovalKit(database, opened.enter_context(closing(ServerWriter(database)))))

        def decide(number: int) -> bool:
            kit = kits[number % SERVERS]
            act = partial(kit.reviewer.grant, reusable_until=None) if number % 2 else kit.reviewer.deny
            try:
                act(asked, approver(f"approver-{number}"), comment=str(number))
            except Conflict:
                return False
            return True

        with ThreadPoolExecutor(CHECKS) as threads:
            for place in range(5):
                asked = kits[0].request(replace(ACTION, description=f"Action {place}"))
                decided = list(threads.map(decide, range(CHECKS)))
                stored = kits[1].read(asked)
                # Repetitions of the one that came first change nothing, and those of the other are refused.
                assert stored.comment is not None
                winner = int(stored.comment) % 2
                assert decided == [number % 2 == winner for number in range(CHECKS)]
                expected = AuditEvent.APPROVAL_GRANTED if winner else AuditEvent.APPROVAL_DENIED
                assert events(kits[2], asked) == [AuditEvent.APPROVAL_REQUESTED, expected]


def test_the_digest_covers_the_agent_and_everything_that_it_states() -> None:
    for other in [
        replace(ACTION, agent="bob"),
        replace(ACTION, description="Update price"),
        replace(ACTION, category="prices"),
        replace(ACTION, confidence=0.5),
        replace(ACTION, project="shop"),
        replace(ACTION, announced_context="further"),
        replace(ACTION, code=CodeFacts(paths=("a.sql",))),
        replace(ACTION, context={"rows": 5001}),
        replace(ACTION, context={"rows": "5000"}),
        replace(ACTION, context={"rows": 5000, "x": None}),
        replace(ACTION, context={}),
    ]:
        with named_case(other):
            assert digest_of_action(other, None) != digest_of_action(ACTION, None)
            assert digest_of_action(ACTION, "ada") != digest_of_action(ACTION, None)


@pytest.mark.parametrize(
    "same",
    [
        replace(ACTION, permissions=frozenset({"admin"})),
        replace(ACTION, now=NOON),
        replace(ACTION, code=CodeFacts(checks=("Run the tests",))),
        replace(ACTION, context={"rows": 5000.0}),
    ],
)
def test_the_digest_leaves_out_what_the_server_adds(same: Action) -> None:
    assert digest_of_action(same, None) == digest_of_action(ACTION, None)


def test_the_digest_is_that_of_the_documented_object() -> None:
    action = Action(
        "Fix the prices",
        category="database",
        stakes=Stakes.HIGH,
        confidence=0.75,
        context={"rows": 5000, "share": 0.5},
        project="shop",
        agent="emerson",
        announced_context="For the sale",
        code=CodeFacts(paths=("prices.sql",)),
    )
    stated: dict[str, Any] = {
        "version": 1,
        "agent": "emerson",
        "onBehalfOf": "ada",
        "description": "Fix the prices",
        "category": "database",
        "stakes": "high",
        "confidence": 0.75,
        "project": "shop",
        "paths": ["prices.sql"],
        "announcedContext": "For the sale",
        "context": {"rows": 5000, "share": 0.5},
    }
    # By the library itself: requests that are pending when a server is updated must be found afterwards.
    assert digest_of_action(action, "ada") == hashlib.sha256(rfc8785.dumps(stated)).hexdigest()
    bare: dict[str, Any] = {"version": 1, "agent": "emerson", "description": "Rest", "stakes": "medium"}
    assert digest_of_action(Action("Rest", agent="emerson"), None) == hashlib.sha256(rfc8785.dumps(bare)).hexdigest()


def test_a_number_that_json_does_not_have_has_no_digest() -> None:
    with pytest.raises(InvalidArgument, match="not finite"):
        digest_of_action(replace(ACTION, context={"rows": float("nan")}), None)


CONTEXTS = st.dictionaries(
    st.text(max_size=3),
    st.recursive(
        st.integers(-(2**53), 2**53)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=3)
        | st.booleans(),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
        max_leaves=4,
    ),
    max_size=3,
)


@given(CONTEXTS, CONTEXTS)
def test_contexts_have_the_same_digest_exactly_if_they_say_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    def digest(context: dict[str, Any]) -> str:
        return digest_of_action(replace(ACTION, context=context), None)

    assert (digest(one) == digest(other)) == is_same_json(one, other)
    shuffled = dict(reversed(one.items()))
    assert digest(shuffled) == digest(one)
