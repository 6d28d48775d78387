"""The pages of operators: agents, chat sessions, peers, tokens and the server."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from nicegui import ui

from console import widgets
from console.frame import Screen
from console.view import Answer, View
from console.widgets import Field

GROUP = "Operate"
AGENTS = (
    "Agent: name > /audit?agent={name}; Credential: credentials|words; Permissions: permissions|words; "
    "Checks: counts.checks; Blocked: counts.blocked; Refused: counts.refusedCalls; First call: firstCallAt|day; "
    "Last call: lastCallAt|age"
)
PILLARS = (
    "Pillar: target_pillar; Agent: liaison_agent_id; State: state|badge; Sessions: chat_sessions; Served by: served_by"
)
SESSIONS = "Session: id; Agent: active_agent; State: status|badge; Messages: message_count; Changed: updated_at|age"
SESSION_FILTERS = (
    Field("active_agent", "Agent"),
    Field("status", "State", ("active", "closed")),
    Field("user_id", "User"),
)
PEERS = (
    "Peer: name; State: status|badge; Latency: latencyMs|ms; Role: role; Version: version; Breaker: breaker|word; "
    "Missing: missingPermissions|words; Problem: error"
)
TOKENS = (
    "Agent: agent; Permissions: permissions|words; Note: note; Expires: expiresAt|day; Last use: lastUsedAt|age; "
    "State: state|badge"
)
SERVER = (
    "Name: agent; Version: version; Started: startedAt|instant; Modules: modules|words; Workers: processes.workers; "
    "Memory: processes.memoryBytes|mb; Calls in progress: processes.callsInProgress; "
    "Open streams: processes.openStreams; Calls refused under load: processes.callsShed"
)
DATA = (
    "Database: database.kind; It answers: database.answers; Latency: database.latencyMs|ms; "
    "Migration: database.migration; Size: database.sizeBytes|mb; Embedder: search.model; "
    "Decisions in memory: search.decisionsInMemory; Search engine: search.index; "
    "Rules: rules.guardrails.count; Version of the rules: rules.guardrails.version; Loaded: rules.loadedAt|age"
)
YOU = (
    "Agent: requestingAgent; Permissions: permissions|words; Tenant: tenant; Calls of a method: limits.perMethod; "
    "All calls: limits.overall"
)
USUAL_PERMISSIONS = ["query", "check", "announce", "record"]


async def show_agents(view: View) -> None:
    """List agents with their credentials, calls and counts of 7 days."""
    await view.show_listing("listAgents", "agents", AGENTS, ("No agent is known.", "Make a token for the first one."))


async def show_liaison(view: View) -> None:
    """List liaison agents by pillar, and chat sessions by state, without their contents."""
    agents = (await view.call("liaison.listLiaisonAgents"))["liaison_agents"]
    with widgets.add_card("Liaison agents"):
        rows = [{**each, "state": "up" if each["present"] else "down"} for each in agents]
        widgets.show_table("Liaison agents", rows, PILLARS)
    widgets.show_filters(view.path, view.arguments, SESSION_FILTERS)
    given = {each.name: view.arguments.get(each.name) or None for each in SESSION_FILTERS}
    empty = ("There are no chat sessions.", "A guide opens one with liaison.openSession.")
    listing = ("liaison.listSessions", "chat_sessions", SESSIONS)
    await view.show_listing(*listing, empty, given, title="Chat sessions")


async def show_peers(view: View) -> None:
    """Call all peers, and show their health and latency."""
    await view.show_listing(
        *("listPeers", "peers", PEERS, ("No peers are configured.", "Add them under federation.peers.")),
        change=lambda peer: {**peer, "role": "required" if peer["required"] else "optional"},
        request={"timeout_seconds": 3},
    )


async def show_tokens(view: View) -> None:
    """List tokens without their secrets; make, rotate and revoke them."""
    with widgets.add_line():
        widgets.add_button("Make a token", partial(ask_token, view), icon="add", main=True)
        widgets.add_link("Show ended ones, too", "/tokens?ended=1")
    await view.show_listing(
        *("listTokens", "tokens", TOKENS, ("No token was made here.", "Tokens of the configuration are not listed.")),
        change=lambda token: {**token, "state": "revoked" if token.get("revokedAt") else "accepted"},
        buttons=partial(add_token_buttons, view),
        request={"with_ended": "ended" in view.arguments},
    )


def add_token_buttons(view: View, token: Answer) -> None:
    """Offer to rotate and to revoke a token that is accepted."""

    async def rotate(given: Mapping[str, Any]) -> None:
        fields = {"id": token["id"], "keep_seconds": int((given["minutes"] or 0) * 60)}
        await view.attempt(show_secret(view, "rotateToken", **fields))

    async def revoke(_: Mapping[str, Any]) -> None:
        await view.attempt(view.call("revokeToken", id=token["id"]), reload=True)

    if not token.get("revokedAt"):
        keep = Field("minutes", "Minutes for which the old one stays valid", value=60, kind="number")
        name, warning = token["agent"], partial(widgets.add_text, "Calls with it are refused at once.")
        widgets.add_button(
            "Rotate", lambda: widgets.ask_person(f"Rotate a token of {name}?", [keep], {"Rotate": rotate})
        )
        widgets.add_button(
            "Revoke", lambda: widgets.ask_person(f"Revoke a token of {name}?", [], {"Revoke": revoke}, warning)
        )


def ask_token(view: View) -> None:
    """Ask for an agent and its permissions, and show the secret once."""
    own = sorted(view.session.permissions)
    usual = [each for each in USUAL_PERMISSIONS if each in own]
    fields = [
        Field("agent", "Agent"),
        Field("permissions", "Permissions", own, usual, "choices"),
        Field("days", "Days until it expires", value=90, kind="number"),
        Field("note", "Note"),
    ]

    async def create(given: Mapping[str, Any]) -> None:
        expires = datetime.now(UTC) + timedelta(days=float(given["days"] or 90))
        granted = {name: given[name] for name in ("permissions", "note")}
        await view.attempt(show_secret(view, "createToken", agent=given["agent"] or "", expires_at=expires, **granted))

    widgets.ask_person("Make a token", fields, {"Make it": create})


async def show_secret(view: View, method: str, **fields: Any) -> None:
    """Make a secret and show it. Raises CstpError."""
    secret = (await view.call(method, request_id=secrets.token_hex(16), **fields))["secret"]
    with widgets.open_dialog("The token"):
        widgets.add_text("Copy it now: it is stored nowhere, and cannot be shown again.")
        widgets.show_code(secret, "Token")
        widgets.add_button("I have copied it", ui.navigate.reload, main=True)


async def show_server(view: View) -> None:
    """Show the state of the server, and what is configured, without secrets."""
    status = await view.call("getServerStatus")
    for each in status["warnings"]:
        with widgets.add_card(each["subject"].capitalize(), classes="failure"):
            widgets.add_text(each["message"])
    with widgets.add_group("div", "columns"):
        with widgets.add_card("Server"):
            widgets.show_facts(status, SERVER)
        with widgets.add_card("Data"):
            widgets.show_facts(status, DATA)
        with widgets.add_card("Queues"):
            widgets.show_table("Queues", status["queues"], "Queue: name; Waiting: waiting; Oldest: oldestSeconds|s")
        with widgets.add_card("You"):
            widgets.show_facts(view.session.access, YOU)


SCREENS = (
    Screen("/agents", "Agents", show_agents, "smart_toy", ("listAgents",), GROUP),
    Screen("/liaison", "Liaison", show_liaison, "forum", ("liaison.listSessions",), GROUP),
    Screen("/peers", "Federation", show_peers, "hub", ("listPeers",), GROUP),
    Screen("/tokens", "Tokens", show_tokens, "key", ("listTokens",), GROUP),
    Screen("/server", "Server", show_server, "dns", ("getServerStatus",), GROUP),
)
