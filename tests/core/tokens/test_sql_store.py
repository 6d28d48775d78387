"""The store of tokens on every database."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import update

from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.errors import InternalError, InvalidArgument
from cstp_grpc.core.tokens.model import AgentToken, TokenFilter, TokenIdentity, token_digest
from cstp_grpc.core.tokens.sql_store import SqlTokenStore, agent_tokens
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.tokens.kit import NOON
from tests.paging import walk

HOUR = timedelta(hours=1)
TOKEN = AgentToken(
    id="tok-1",
    identity=TokenIdentity("deployer", frozenset({Permission.CHECK, Permission.QUERY}), "default"),
    created_by="ada",
    created_at=NOON,
    expires_at=NOON + HOUR,
    request_id="request-1",
    note="„Deployments“",
    last_used_at=NOON,
    revoked_at=NOON,
    revoked_by="bob",
    rotated_from="tok-0",
)
USABLE = replace(TOKEN, id="tok-2", request_id="request-2", revoked_at=None, revoked_by=None, last_used_at=None)


@pytest.fixture
def store(database: Database) -> SqlTokenStore:
    """A store on every database."""
    return SqlTokenStore(database)


def add(store: SqlTokenStore, writer: GroupCommitWriter, *tokens: AgentToken) -> None:
    for token in tokens:
        writer.run(partial(store.add, token=token, digest=token_digest(token.id)))


@pytest.mark.contract("SqlTokenStore.add", "SqlTokenStore.load", "SqlTokenStore.hold", "SqlTokenStore.find_request")
def test_a_token_is_loaded_as_it_was_added(store: SqlTokenStore, writer: GroupCommitWriter) -> None:
    add(store, writer, TOKEN)
    writer.run(store.hold)
    assert writer.run(partial(store.load, token_id="tok-1")) == TOKEN
    assert writer.run(partial(store.load, token_id="tok-\0")) is None
    assert writer.run(partial(store.find_request, created_by="ada", request_id="request-1")) == TOKEN
    assert writer.run(partial(store.find_request, created_by="bob", request_id="request-1")) is None


def test_a_permission_of_a_newer_server_is_passed_over(store: SqlTokenStore, writer: GroupCommitWriter) -> None:
    add(store, writer, USABLE)
    words = "check fly query"
    writer.run(lambda unit_of_work: unit_of_work.execute(update(agent_tokens).values(permissions=words)))
    assert store.usable_since(-1, NOON) == (1, [(token_digest("tok-2"), USABLE)])


def test_a_creator_has_one_token_for_a_request(store: SqlTokenStore, writer: GroupCommitWriter) -> None:
    add(store, writer, TOKEN)
    with pytest.raises(InternalError):
        add(store, writer, replace(TOKEN, id="tok-2"))
    assert writer.run(partial(store.load, token_id="tok-2")) is None


@pytest.mark.contract("SqlTokenStore.find_tenants", "SqlTokenStore.count_usable", "SqlTokenStore.list_agents")
def test_the_tokens_of_an_agent_are_counted(store: SqlTokenStore, writer: GroupCommitWriter) -> None:
    other = replace(USABLE, id="tok-3", request_id="request-3", identity=replace(USABLE.identity, name="other"))
    add(store, writer, TOKEN, USABLE, other)
    assert list(writer.run(partial(store.find_tenants, agent="deployer"))) == ["default"]
    assert sorted(writer.run(store.list_agents)) == ["deployer", "other"]
    assert writer.run(partial(store.count_usable, agent="deployer", at=NOON)) == 1
    assert writer.run(partial(store.count_usable, agent="deployer", at=NOON + HOUR)) == 0


@pytest.mark.contract("SqlTokenStore.read_agents")
def test_agents_are_read_with_their_tenant_and_tokens(store: SqlTokenStore, writer: GroupCommitWriter) -> None:
    other = replace(USABLE, id="tok-3", request_id="request-3", identity=TokenIdentity("builder", frozenset(), "other"))
    add(store, writer, TOKEN, USABLE, other)
    tenants, tokens = store.read_agents("default")
    assert tenants == {"deployer": "default", "builder": "other"}
    assert sorted(tokens, key=lambda token: token.id) == [TOKEN, USABLE]


@pytest.mark.contract("SqlTokenStore.usable_since", "SqlTokenStore.replace_digest", "SqlTokenStore.end")
def test_what_has_changed_is_read_once(store: SqlTokenStore, writer: GroupCommitWriter) -> None:
    assert store.usable_since(-1, NOON) == (0, [])
    add(store, writer, TOKEN, USABLE)
    assert store.usable_since(0, NOON) == (2, [(token_digest("tok-2"), USABLE)])
    assert store.usable_since(2, NOON) is None
    writer.run(partial(store.replace_digest, token_id="tok-2", digest=token_digest("other")))
    assert store.usable_since(2, NOON) == (3, [(token_digest("other"), USABLE)])
    assert store.usable_since(2, NOON + HOUR) == (3, [])
    writer.run(partial(store.end, token=replace(USABLE, revoked_at=NOON, revoked_by="bob")))
    assert store.usable_since(3, NOON) == (4, [])


@pytest.mark.contract("SqlTokenStore.note_uses")
def test_the_last_use_is_kept_and_is_no_change(store: SqlTokenStore, writer: GroupCommitWriter) -> None:
    add(store, writer, USABLE)
    writer.run(partial(store.note_uses, uses={"tok-2": NOON + HOUR, "tok-9": NOON}))
    writer.run(partial(store.note_uses, uses={"tok-2": NOON}))
    assert writer.run(partial(store.load, token_id="tok-2")) == replace(USABLE, last_used_at=NOON + HOUR)
    assert store.usable_since(1, NOON) is None


def ids_of(store: SqlTokenStore) -> list[str]:
    """Return the ids of all tokens."""
    return sorted(token.id for token in store.page(TokenFilter("default"), PageRequest(100, "")).items)


@pytest.mark.contract("SqlTokenStore.remove_ended")
def test_tokens_that_ended_are_removed_but_for_what_is_still_needed(
    store: SqlTokenStore, writer: GroupCommitWriter
) -> None:
    only = replace(TOKEN, id="only", request_id="only", identity=replace(TOKEN.identity, name="retired"))
    expired = replace(USABLE, id="expired", request_id="expired", expires_at=NOON)
    lately = replace(TOKEN, id="lately", request_id="lately", revoked_at=NOON + HOUR)
    last = replace(TOKEN, id="last", request_id="last")
    add(store, writer, only, TOKEN, expired, lately, USABLE, last)
    cut = NOON + HOUR / 2
    assert writer.run(partial(store.remove_ended, before=NOON, limit=10)) == 0
    assert [writer.run(partial(store.remove_ended, before=cut, limit=1)) for _ in range(3)] == [1, 1, 0]
    # The only one of its agent, that which ended lately, the usable one, and the last change of all.
    assert ids_of(store) == ["last", "lately", "only", "tok-2"]
    add(store, writer, replace(USABLE, id="new", request_id="new"))
    assert writer.run(partial(store.remove_ended, before=cut, limit=10)) == 1
    assert ids_of(store) == ["lately", "new", "only", "tok-2"]
    assert list(writer.run(partial(store.find_tenants, agent="retired"))) == ["default"]


def test_a_change_after_a_removal_is_seen_by_servers_that_knew_what_was_removed(
    store: SqlTokenStore, writer: GroupCommitWriter
) -> None:
    add(store, writer, USABLE, TOKEN)
    seen, _ = store.usable_since(-1, NOON) or (0, ())
    writer.run(partial(store.remove_ended, before=NOON + HOUR / 2, limit=10))
    writer.run(partial(store.end, token=replace(USABLE, revoked_at=NOON, revoked_by="bob")))
    assert store.usable_since(seen, NOON) == (seen + 1, [])


@pytest.mark.contract("SqlTokenStore.page")
def test_tokens_are_listed_the_newest_first(store: SqlTokenStore, writer: GroupCommitWriter) -> None:
    many = [
        replace(USABLE, id=f"tok-{number}", request_id=f"r-{number}", created_at=NOON + timedelta(minutes=number // 2))
        for number in range(7)
    ]
    foreign = replace(USABLE, id="tok-9", request_id="r-9", identity=replace(USABLE.identity, tenant="other"))
    add(store, writer, *many, foreign, replace(TOKEN, id="tok-8", request_id="r-8"))
    usable = TokenFilter("default", "deployer", NOON)
    expected = sorted(many, key=lambda token: (token.created_at, token.id), reverse=True)
    assert walk(lambda request: store.page(usable, request), [2]) == expected
    assert len(walk(lambda request: store.page(TokenFilter("default"), request), [3])) == 8
    assert store.page(TokenFilter("default", "nobody"), PageRequest(0, "")).items == ()
    assert [each.id for each in store.page(TokenFilter("default", id_prefix="tok-4"), PageRequest()).items] == ["tok-4"]
    assert store.page(TokenFilter("default", id_prefix="TOK-4"), PageRequest()).items == ()
    token = store.page(usable, PageRequest(2, "")).next_token
    with pytest.raises(InvalidArgument):
        store.page(TokenFilter("default"), PageRequest(2, token))
    # The instant moves on between two pages.
    store.page(replace(usable, usable_at=NOON + timedelta(seconds=1)), PageRequest(2, token))
