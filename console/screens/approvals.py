"""The inbox of approvals, and one approval with everything that a decision on it needs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from nicegui import ui

from console import texts, widgets
from console.frame import Screen
from console.view import Answer, View
from cstp_grpc.contract.enums import ApprovalStatus

FACTS = (
    "Agent: agent; On behalf of: onBehalfOf; Category: subject.category; Project: subject.project; "
    "Confidence: subject.confidence|percent; Folder: subject.directory; Paths: subject.paths|list; "
    "Writes: subject.writes|list; Requested: createdAt|instant; Expires: expiresAt|instant; Decided by: decidedBy; "
    "Comment: comment; Uses: uses; Digest of the action: digest"
)
GUARDRAILS = "Rule: name; Reason: message; Approvers: approvers|list; Granted by: grantedBy"
SIMILAR = "Decision: title > /decisions/{id}; Outcome: outcome|badge; Lesson: notes"
REUSE = {0: "once", 1: "for 1 hour", 8: "for 8 hours", 24: "for 24 hours"}
"""Hours for which an approval lets the action through any number of times."""
COMMENT = widgets.Field("comment", "Comment for the agent and other approvers", kind="area")
NOTIFY = (
    "if (window.Notification?.permission === 'granted') new Notification('CSTP', {body: 'An action needs approval'})"
)


async def show_approvals(view: View) -> None:
    """List the approvals in a state, pending ones first, and follow their changes."""
    state = view.arguments.get("status", "pending")
    with widgets.add_line():
        for each in ApprovalStatus:
            widgets.add_link(each, f"/approvals?status={each}", f"badge {'wait' if each == state else 'plain'}")
        ui.space()
        ask = "window.Notification?.requestPermission()"
        widgets.add_button("Notify me", lambda: ui.run_javascript(ask), icon="notifications")
    known: set[str] = set()

    async def list_page() -> None:
        token = view.arguments.get("page")
        answer = await view.call("listApprovals", status=[state], page_size=25, page_token=token)
        known.update(each["id"] for each in answer["approvals"])
        if not answer["approvals"]:
            advice = "A guardrail of the severity “approve” requests one. Try it in the playground."
            widgets.show_empty(f"No approval is {state}.", advice)
        for approval in answer["approvals"]:
            with widgets.add_card():
                show_action(approval)
                for rule in approval["guardrails"]:
                    widgets.add_text(f"{rule['name']}: {rule['message']}")
                show_buttons(view, approval)
        widgets.show_pager(view.path, view.arguments, answer["nextPageToken"])

    part = await view.show_part(list_page)

    async def update(change: Answer) -> None:
        approval = change.get("approval", {})
        if approval.get("status") == "pending" and approval["id"] not in known:
            ui.run_javascript(NOTIFY)
        # Also for the first answer, which only says that the watch begins: the list may have changed before.
        await part.show()

    view.follow("watchApprovals", update)


def show_action(approval: Answer) -> None:
    """Show the action of an approval, and where it stands."""
    subject = approval.get("subject", {})
    with widgets.add_line():
        widgets.add_badges(approval["status"], subject.get("stakes"))
        widgets.add_element("span", f"{approval['agent']}, {texts.format_age(approval['createdAt'])}", "muted")
    with widgets.add_group("h2"):
        widgets.add_link(texts.describe_action(subject), f"/approvals/{approval['id']}")
    widgets.show_code(subject.get("command"), "Command")
    widgets.add_text(subject.get("announcedContext"), "text")


def show_buttons(view: View, approval: Answer) -> None:
    """Offer what the person may do; nobody decides on a request of their own."""
    is_own = view.session.access["requestingAgent"] in (approval["agent"], approval.get("onBehalfOf"))
    if is_own and approval["status"] == "pending":
        widgets.add_text("This is your own request; another person must decide on it.", "muted")
    if is_own or not view.may_call("grantApproval"):
        return
    with widgets.add_group("div", "buttons"):
        if approval["status"] == "pending":
            widgets.add_button("Grant", partial(ask_decision, view, approval, "Grant"), main=True)
            widgets.add_button("Deny", partial(ask_decision, view, approval, "Deny"))
        elif approval["status"] in ("granted", "denied"):
            widgets.add_button("Revoke", partial(ask_decision, view, approval, "Revoke"))


def ask_decision(view: View, approval: Answer, verb: str) -> None:
    """Ask for a comment, and decide."""

    async def decide(given: Mapping[str, Any]) -> None:
        fields = {"id": approval["id"], "comment": given["comment"]}
        if given.get("hours"):
            fields["reusable_until"] = datetime.now(UTC) + timedelta(hours=given["hours"])
        await view.attempt(view.call(f"{verb.lower()}Approval", **fields))

    reuse = widgets.Field("hours", "How often it lets the action through", REUSE, 0)
    fields = [COMMENT, reuse] if verb == "Grant" else [COMMENT]
    widgets.ask_person(f"{verb} this approval?", fields, {verb: decide}, partial(show_action, approval))


async def show_approval(view: View) -> None:
    """Show one approval: the action, the rules that ask, and similar decisions."""
    approval = (await view.call("getApproval", id=view.arguments["id"]))["approval"]
    with widgets.add_card():
        show_action(approval)
        widgets.show_facts(approval, FACTS)
        widgets.show_code(texts.format_field(approval, "subject.context|json"), "Inputs of the rules")
        show_buttons(view, approval)
    with widgets.add_card("Why it needs approval"):
        widgets.show_table("Guardrails that ask", approval["guardrails"], GUARDRAILS)
    if view.may_call("listAuditEntries"):
        widgets.add_link("The whole story of this request", texts.page_url("/audit/story", approval=approval["id"]))
    description = texts.read_path(approval, "subject.description")
    if view.may_call("queryDecisions") and description:
        request = {"query": description, "limit": 5}
        empty = ("No decision is similar.", "Decisions that agents record appear here.")
        await view.show_listing("queryDecisions", "decisions", SIMILAR, empty, request, title="Similar decisions")

    async def update(change: Answer) -> None:
        # The first answer only says that the watch begins; the approval may have changed before.
        found = change.get("approval") or (await view.call("getApproval", id=approval["id"]))["approval"]
        if found["id"] == approval["id"] and found["status"] != approval["status"]:
            ui.navigate.reload()

    view.follow("watchApprovals", update)


SCREENS = (
    Screen("/approvals", "Approvals", show_approvals, "how_to_reg", ("listApprovals",)),
    Screen("/approvals/{id}", "Approval", show_approval, methods=("getApproval",)),
)
