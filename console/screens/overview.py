"""The overview: checks by hour, rules that fire, agents, approvals, open intents and the health of the server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from nicegui import ui

from console import charts, texts, widgets
from console.frame import Screen
from console.view import Answer, View

REFRESH_SECONDS = 30.0
HOURS = 24
NO_COUNTS = {"entries": 0, "allowed": 0, "blocked": 0}
PENDING = "Action: title > /approvals/{id}; Stakes: subject.stakes|badge; Agent: agent; Asked: createdAt|age"
INTENTS = (
    "Intent: title > /audit/story?correlation={correlationId}; Stakes: stakes|badge; Agent: agent; "
    "Announced: receivedAt|age"
)
AGENTS = "Agent: name > /audit?agent={name}; Checks: counts.checks; Blocked: counts.blocked; Last call: lastCallAt|age"
SERVER = (
    "State: state|word; Version: version; Started: startedAt|age; Database: database.kind; "
    "It answers in: database.latencyMs|ms; Rules: rules.guardrails.count; Calls in progress: processes.callsInProgress"
)


LISTINGS = {
    "listApprovals": ("approvals", PENDING, "Nothing waits for an approval.", "Pending approvals"),
    "listIntents": ("intents", INTENTS, "No announced intent is open.", "Open intents"),
    "listAgents": ("agents", AGENTS, "No agent is known.", "Agents, last 7 days"),
}
REQUESTS: dict[str, dict[str, Any]] = {
    "listApprovals": {"status": ["pending"]},
    "listIntents": {"closed": False},
    "listAgents": {},
}


async def show_overview(view: View) -> None:
    """Show the parts that the person's permissions allow, and refresh them."""
    parts = []
    if view.may_call("summarizeAudit"):
        parts.append(await view.show_part(partial(show_day, view)))
    with widgets.add_group("div", "columns"):
        for method, (items, columns, empty, title) in LISTINGS.items():
            if view.may_call(method):
                request = {**REQUESTS[method], "page_size": 6}
                listing = (method, items, columns, (empty, ""), request)
                parts.append(await view.show_listing(*listing, title=title, change=with_title))
        if view.may_call("getServerStatus"):
            parts.append(await view.show_part(partial(show_server, view)))

    async def refresh() -> None:
        for part in parts:
            await part.show()

    ui.timer(REFRESH_SECONDS, refresh, immediate=False)
    view.follow("watchApprovals", lambda change: refresh() if change.get("approval") else None)


def with_title(row: Answer) -> Answer:
    return {**row, "title": row.get("intent") or texts.describe_action(row.get("subject", {}))}


async def show_day(view: View) -> None:
    """Show the figures of the last 24 hours."""
    first = (datetime.now(UTC) - timedelta(hours=HOURS - 1)).replace(minute=0, second=0, microsecond=0)
    groupings = ["guardrail", "agent"]
    answer = await view.call("summarizeAudit", after=first, bucket="hour", group_by=groupings, max_groups=8)
    groups: dict[str, list[Answer]] = {name: [] for name in groupings}
    for each in answer["groups"]:
        groups[each["grouping"]].append(each)
    counts = answer["counts"]
    checks = int(counts["allowed"]) + int(counts["blocked"])
    with widgets.add_group("div", "tiles"):
        widgets.show_number(f"{checks:,}", "checks in 24 hours", "/audit?since=24h")
        tone = "bad" if int(counts["blocked"]) else ""
        widgets.show_number(f"{int(counts['blocked']):,}", "blocked", "/audit?since=24h&verdict=blocked", tone)
        widgets.show_number(str(len(groups["agent"])), "agents that acted")
        widgets.show_number(f"{int(counts['entries']):,}", "audit entries", "/audit?since=24h")
    if not checks:
        advice = "Install the hook into an agent: cstp install claude-code"
        widgets.show_empty("No agent has asked in 24 hours.", advice)
        return
    hours = [first + timedelta(hours=each) for each in range(HOURS)]
    by_hour = {texts.parse_instant(each["start"]): each["counts"] for each in answer["buckets"]}
    with widgets.add_group("div", "columns wide-first"):
        with widgets.add_card("Checks by hour", hint="UTC"):
            series = [by_hour.get(hour, NO_COUNTS) for hour in hours]
            charts.draw_verdicts([f"{hour:%H}:00" for hour in hours], series, counts, others=False)
        with widgets.add_card("Rules that fire most"):
            charts.draw_bars({each["value"]: int(each["counts"]["entries"]) for each in groups["guardrail"]})


async def show_server(view: View) -> None:
    """Show the health of the server."""
    status = await view.call("getServerStatus")
    with widgets.add_card("Server"):
        widgets.add_badges(f"{len(status['warnings'])} warnings" if status["warnings"] else "ok")
        widgets.show_facts(status, SERVER)
        for warning in status["warnings"][:3]:
            widgets.add_text(f"{warning['subject']}: {warning['message']}")
        widgets.add_link("Details", "/server")


SCREENS = (Screen("/", "Overview", show_overview, "dashboard"),)
