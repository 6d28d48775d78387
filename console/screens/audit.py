"""The audit trail: a timeline with filters, verification, export and evidence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

from nicegui import ui

from console import charts, texts, widgets
from console.frame import Screen
from console.screens.audit_story import KEYS, entry_verdict, show_story
from console.view import Answer, View
from console.widgets import Field
from cstp_grpc.contract.enums import Stakes
from cstp_grpc.gen.cstp.v1.audit_pb2 import AuditEvent

EVENTS = tuple(sorted(name.removeprefix("AUDIT_EVENT_").lower() for name in AuditEvent.keys()[1:]))
FILTERS = (
    Field("words", "Words of the action"),
    Field("event", "Event", EVENTS),
    Field("verdict", "Verdict", ("allowed", "blocked")),
    Field("stakes", "Stakes", tuple(Stakes)),
    Field("agent", "Agent"),
    Field("guardrail", "Guardrail"),
    Field("category", "Category"),
    Field("project", "Project"),
    Field("since", "Since (24h, 7d, a date)"),
)
FIELDS = {
    **{name: name for name in ("event", "category", "project")},
    **{"agent": "requesting_agent", "guardrail": "guardrail_id", "decision": "decision_id"},
}
"""Fields of requests by arguments of the URL."""
COLUMNS = (
    "Action: title > /audit/story?{key}={id}; Event: event|word; Verdict: verdict|badge; Rules: rules|list; "
    "Agent: requestingAgent; Time: timestamp|instant"
)
REPORT = (
    "Entries: entries|count; Chains: chains; Checkpoints: checkpoints; Not signed yet: afterLastCheckpoint|count; "
    "Content removed: redacted|count; Removed: removed|count; Findings: findingCount|count"
)
DAY = timedelta(days=1)


def read_conditions(view: View) -> dict[str, object]:
    """Return the conditions of the URL, as AuditConditions and ListAuditEntries have them."""
    given: dict[str, object] = {field: view.arguments.get(name) for name, field in FIELDS.items()}
    verdict, stakes = view.arguments.get("verdict"), view.arguments.get("stakes")
    given |= {"allowed": verdict == "allowed" if verdict else None, "stakes": [stakes] if stakes else None}
    given["words"] = view.arguments.get("words", "").split()
    return {name: value for name, value in given.items() if value not in (None, "", [])}


async def show_audit(view: View) -> None:
    """Show the trail: figures of the period, then entries, latest first."""
    since = texts.parse_since(view.arguments.get("since"))
    with widgets.add_line():
        widgets.add_link("Verify the trail", "/audit/verify")
        for name, label in (("jsonl", "Export JSON Lines"), ("csv", "CSV"), ("cloudevents", "CloudEvents")):
            after = since.isoformat() if since else None
            widgets.add_link(label, texts.page_url("/download/audit", format=name, after=after))
        if decision := view.arguments.get("decision"):
            widgets.add_link("Evidence about the decision", texts.page_url("/download/evidence", decision=decision))
    widgets.show_filters("/audit", view.arguments, FILTERS)
    first_page = "page" not in view.arguments
    conditions = read_conditions(view)
    if first_page:
        await view.show_part(partial(show_counts, view, since or datetime.now(UTC) - 7 * DAY, conditions))
    empty = ("No entry matches.", "Widen the filters. Checks and announcements of agents appear here.")
    # All pages are counted once; since an instant, the figures above have the number.
    request = {**conditions, "after": since, "with_total": first_page and since is None}
    await view.show_listing("listAuditEntries", "entries", COLUMNS, empty, request, change=with_story)


async def show_counts(view: View, since: datetime, conditions: dict[str, object]) -> None:
    """Draw the entries that match by hour or day, and by verdict."""
    bucket = "hour" if datetime.now(UTC) - since <= 2 * DAY else "day"
    since = max(since, datetime.now(UTC) - 700 * DAY)
    answer = await view.call("summarizeAudit", after=since, bucket=bucket, conditions=conditions)
    counts, buckets = answer["counts"], answer["buckets"]
    if buckets:
        with widgets.add_card(
            f"Entries by {bucket}", hint=f"{int(counts['entries']):,} since {since:%Y-%m-%d %H:%M} UTC"
        ):
            part = slice(0, 10) if bucket == "day" else slice(5, 16)
            names = [each["start"][part].replace("T", " ") for each in buckets]
            charts.draw_verdicts(names, [each["counts"] for each in buckets], counts)


def with_story(entry: Answer) -> Answer:
    """Return an entry with its title, and with the id by which its whole story is found."""
    key, field = next(((key, field) for key, (_, field) in KEYS.items() if entry.get(field)), ("request", "requestId"))
    return {
        **entry,
        "title": entry.get("action") or texts.format_word(entry["event"]),
        "verdict": entry_verdict(entry),
        "rules": entry["violations"] or entry["warnings"],
        **{"key": key, "id": entry.get(field)},
    }


async def show_verification(view: View) -> None:
    """Verify the trail, and show the progress, the findings and the report."""
    checkpoints = (await view.call("listCheckpoints", page_size=1))["checkpoints"]
    key = await view.call("getPublicKey")
    with widgets.add_card("Latest checkpoint"):
        if checkpoints:
            widgets.show_facts(checkpoints[0], "Number: number; Signed: signedAt|instant")
        widgets.show_facts(key, "Key: keyId")
        widgets.show_code(key["publicKey"], "Public key")
    with widgets.add_card("Verification"):
        widgets.add_text(
            "This server recomputes all hashes and signatures. If you do not trust it, use “cstp audit verify”."
        )
        with widgets.add_line():
            button = widgets.add_button("Verify now", lambda: verify(), main=True)
            progress = ui.linear_progress(0, show_value=False).props('aria-label="Progress"').classes("grow")
        results = widgets.add_group("div", "stack", role="status")

    async def read_parts() -> None:
        async for part in view.stream("verifyAudit"):
            if found := part.get("progress"):
                progress.value = int(found["entries"]) / max(1, int(found["total"]))
            with results:
                if finding := part.get("finding"):
                    widgets.add_badges(finding["kind"])
                    widgets.add_text(finding["message"])
                elif report := part.get("report"):
                    progress.value = 1
                    state = "forged" if report["findingCount"] else "not provable yet"
                    with widgets.add_line():
                        widgets.add_badges("verified" if report["whole"] else state)
                    widgets.add_text(report.get("unproved"))
                    widgets.show_facts(report, REPORT)

    async def verify() -> None:
        button.disable()
        results.clear()
        await view.attempt(read_parts())
        button.enable()


SCREENS = (
    Screen("/audit", "Audit", show_audit, "receipt_long", ("listAuditEntries",)),
    Screen("/audit/story", "The whole story", show_story, methods=("listAuditEntries",)),
    Screen("/audit/verify", "Verify the audit trail", show_verification, methods=("verifyAudit",)),
)
