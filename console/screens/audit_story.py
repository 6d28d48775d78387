"""One request on one page: announced, checked, approved, recorded, reviewed, with its proof."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from console import texts, widgets
from console.view import Answer, View
from cstp_grpc.contract.enums import Permission

KEYS: Final[Mapping[str, tuple[str, str]]] = {
    "correlation": ("correlation_id", "correlationId"),
    "approval": ("approval_id", "approvalId"),
    "decision": ("decision_id", "decisionId"),
    "request": ("request_id", "requestId"),
}
"""The field of a request, and that of an entry, by an argument of the URL; the widest first."""
MAX_CALLS: Final = 12
"""Chosen: an announcement with its checks, approvals and decisions; more would be another story."""


async def show_story(view: View) -> None:
    """Show all entries that belong together, in the order of time."""
    entries = await collect_entries(view)
    if not entries:
        widgets.show_empty("There are no entries about this.", "They may have been removed when their time was over.")
        return
    ids = {field: sorted({each[field] for each in entries if each.get(field)}) for _, field in KEYS.values()}
    first, last = entries[0]["timestamp"], entries[-1]["timestamp"]
    agents = sorted({each["requestingAgent"] for each in entries if each["requestingAgent"]})
    with widgets.add_card(next((each["action"] for each in entries if each.get("action")), "A request")):
        facts = "Agents: agents|list; First entry: first|instant; Last entry: last|instant; "
        facts += "Correlation id: correlationId|list; Decisions: decisionId|list; Rules: rules|list"
        rules = sorted({each["ruleSetVersion"] for each in entries if each.get("ruleSetVersion")})
        widgets.show_facts({**ids, "agents": agents, "first": first, "last": last, "rules": rules}, facts)
        subject = {"decision": ids["decisionId"][0]} if ids["decisionId"] else {"after": first, "before": last}
        with widgets.add_line():
            widgets.add_link("Download the evidence with its proof", texts.page_url("/download/evidence", **subject))
            widgets.add_link("Verify the trail", "/audit/verify")
    if Permission.APPROVE in view.session.permissions:
        for approval in ids["approvalId"][:3]:
            await view.show_part(partial(show_approved, view, approval))
    elif ids["approvalId"]:
        widgets.add_text(
            "The permission “approve” also shows the request, and the comment of those who decided.", "muted"
        )
    with widgets.add_card("From announcement to outcome"), widgets.add_group("ol", "timeline"):
        known = None
        for entry in entries:
            show_entry(entry, known)
            known = entry.get("action")


async def collect_entries(view: View) -> list[Answer]:
    """Return the entries that the ids of the URL, and of those entries, lead to; earliest first."""
    found: dict[str, Answer] = {}
    pending = [(name, view.arguments[name]) for name in KEYS if view.arguments.get(name)]
    asked = set(pending)
    while pending and len(asked) - len(pending) < MAX_CALLS:
        name, value = pending.pop(0)
        answer = await view.call("listAuditEntries", **{KEYS[name][0]: value}, page_size=100)
        for entry in answer["entries"]:
            found[entry["id"]] = entry
            for key, (_, field) in KEYS.items():
                if entry.get(field) and (key, entry[field]) not in asked:
                    asked.add((key, entry[field]))
                    pending.append((key, entry[field]))
    return sorted(found.values(), key=lambda each: (each["timestamp"], len(each["id"]), each["id"]))


async def show_approved(view: View, approval_id: str) -> None:
    """Show the action that people were asked about."""
    approval = (await view.call("getApproval", id=approval_id))["approval"]
    subject = approval.get("subject", {})
    with widgets.add_card("The action"):
        with widgets.add_line():
            widgets.add_badges(approval["status"])
            widgets.add_link(texts.describe_action(subject), f"/approvals/{approval_id}")
        widgets.show_code(subject.get("command"), "Command")
        widgets.show_facts(approval, "Decided by: decidedBy; Decided: decidedAt|instant; Comment: comment")


def show_entry(entry: Answer, known: str | None) -> None:
    """Show an entry of the timeline, with its action unless that is `known` from the entry before."""
    verdict = entry_verdict(entry)
    with widgets.add_group("li", widgets.TONE_OF_WORD.get(verdict, "")):
        with widgets.add_line():
            widgets.add_element("strong", texts.format_word(entry["event"]).capitalize())
            widgets.add_badges(verdict)
            when = texts.parse_instant(entry["timestamp"])
            who = entry["requestingAgent"] or "unknown"
            widgets.add_element("span", f"{when:%Y-%m-%d %H:%M:%S} UTC, {who}", "muted")
        widgets.add_text(None if entry.get("action") == known else entry.get("action"))
        # Entries about approvals have no verdict, but the rules that ask for one.
        stopped = "Approval asked by" if entry.get("allowed") is None else "Stopped by"
        for label, rules in ((stopped, entry["violations"]), ("Warned by", entry["warnings"])):
            widgets.add_text(f"{label} {', '.join(rules)}" if rules else None)
        with widgets.add_line():
            widgets.add_element("span", f"Entry {entry['id']}", "muted")
            for field, label, path in (
                ("decisionId", "The decision", "decisions"),
                ("approvalId", "The approval", "approvals"),
            ):
                if entry.get(field):
                    widgets.add_link(label, f"/{path}/{entry[field]}")


def entry_verdict(entry: Answer) -> str:
    """Return the verdict of an entry in a word; empty without one."""
    return "failed" if entry.get("error") else {True: "allowed", False: "blocked", None: ""}[entry.get("allowed")]
