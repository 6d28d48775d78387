"""Decisions: search, filters, one decision with its reviews, history and graph; review it, record one."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import partial
from typing import Any

from nicegui import ui

from console import charts, texts, widgets
from console.frame import Screen
from console.view import Answer, View
from console.widgets import Field
from cstp_grpc.contract.enums import DecisionStatus, Outcome, Stakes

COLUMNS = (
    "Decision: title > /decisions/{id}; Category: category; Stakes: stakes|badge; Confidence: confidence|percent; "
    "Outcome: outcome|badge; Agent: agent; Date: date|day"
)
FACTS = (
    "Agent: agent; Category: category; Project: project; Confidence: confidence|percent; Decided: date|day; "
    "Reviewed: reviewedDate|day; Review by: reviewBy|day; Tags: tags|list; Source: source; Id: id"
)
FILTERS = (
    Field("query", "Search by meaning"),
    Field("category", "Category"),
    Field("project", "Project"),
    Field("agent", "Agent"),
    Field("stakes", "Stakes", tuple(Stakes)),
    Field("outcome", "Outcome", tuple(Outcome)),
    Field("status", "Status", tuple(DecisionStatus)),
    Field("since", "Since (7d, a date)"),
)
RECORD = (
    Field("title", "Title"),
    Field("context", "Context (only you can read it)", kind="area"),
    Field("category", "Category"),
    Field("project", "Project"),
    Field("stakes", "Stakes", tuple(Stakes), "medium"),
    Field("confidence", "Confidence in percent", value=80, kind="number"),
    Field("shared", "Share it with all agents", kind="check"),
)


async def show_decisions(view: View) -> None:
    """List decisions, or search them."""
    with widgets.add_line():
        if view.may_call("recordDecision"):
            widgets.add_button("Record a decision", partial(ask_record, view), icon="add", main=True)
        widgets.add_link("Due for review", "/decisions?due=1")
    widgets.show_filters("/decisions", view.arguments, FILTERS)
    given = {name: view.arguments.get(name) for name in ("category", "project", "agent")}
    words = {name: [view.arguments[name]] for name in ("stakes", "outcome", "status") if view.arguments.get(name)}
    since = {"date_after": texts.parse_since(view.arguments.get("since"))}
    filters = {name: value for name, value in {**given, **words, **since}.items() if value}
    empty = ("No decision matches.", "Widen the filters, or record the first decision of this kind.")
    request: dict[str, Any] = {"filters": filters, "review_due": "due" in view.arguments}
    method = "listDecisions"
    if query := view.arguments.get("query"):
        method, request = "queryDecisions", {"filters": filters, "query": query, "limit": 30}
    await view.show_listing(method, "decisions", COLUMNS, empty, request)


async def show_decision(view: View) -> None:
    """Show one decision."""
    decision = (await view.call("getDecision", id=view.arguments["id"]))["decision"]
    with widgets.add_card(decision["title"]):
        with widgets.add_line():
            widgets.add_badges(*(decision.get(word) for word in ("status", "outcome", "stakes", "visibility")))
        widgets.add_text(decision.get("context"), "text")
        widgets.show_facts(decision, FACTS)
        if decision.get("notes"):
            widgets.add_element("h3", "Lesson")
            widgets.add_text(decision["notes"], "text")
        if view.may_call("reviewDecision"):
            with widgets.add_group("div", "buttons"):
                widgets.add_button("Review", partial(ask_review, view, decision), main=True)
    if decision["reasons"]:
        with widgets.add_card("Reasons"):
            widgets.show_table("Reasons", decision["reasons"], "Kind: type; Reason: text; Weight: strength|percent")
    with widgets.add_group("div", "columns"):
        show_history(decision.get("history", {}))
        await view.show_part(partial(show_graph, view, decision["id"]))
    if view.may_call("listAuditEntries"):
        widgets.add_link("Its entries in the audit trail", texts.page_url("/audit", decision=decision["id"]))


def show_history(history: Answer) -> None:
    """Show reviews and former contents, latest first."""
    reviews, contents = history.get("reviews", ()), history.get("formerContents", ())
    with widgets.add_card("History"):
        if not reviews and not contents:
            widgets.add_text("It was neither reviewed nor changed.", "muted")
        with widgets.add_group("ul", "timeline"):
            for each in reviews:
                with widgets.add_group("li", widgets.TONE_OF_WORD.get(each["outcome"], "")):
                    who = each.get("reviewer", "an unknown agent")
                    widgets.add_element("div", f"{texts.format_day(each['reviewedDate'])}, reviewed by {who}", "muted")
                    widgets.add_badges(each["outcome"])
                    widgets.add_text(each.get("notes"))
            for each in contents:
                with widgets.add_group("li"):
                    when = texts.format_day(each["replacedDate"])
                    widgets.add_element("div", f"{when}, revision {each['revision']} replaced", "muted")
                    widgets.add_text(each["content"]["title"])


async def show_graph(view: View, decision_id: str) -> None:
    """Draw the linked decisions, and list them for keyboards and screen readers."""
    graph = await view.call("getDecisionGraph", id=decision_id, depth=3, max_nodes=40)
    with widgets.add_card("Linked decisions"):
        if not graph["links"]:
            widgets.add_text("It has no links to others.", "muted")
            return
        charts.draw_graph(graph["nodes"], graph["links"], lambda found: ui.navigate.to(f"/decisions/{found}"))
        titles = {each["id"]: each["title"] for each in graph["nodes"]}
        rows = [{**each, "from": titles[each["fromId"]], "to": titles[each["toId"]]} for each in graph["links"]]
        with ui.expansion("As a list"):
            columns = "From: from > /decisions/{fromId}; Link: type|word; To: to > /decisions/{toId}"
            widgets.show_table("Links", rows, columns)


def ask_review(view: View, decision: Answer) -> None:
    """Ask how a decision turned out, and store the review."""
    request_id = secrets.token_hex(16)

    async def review(given: Mapping[str, Any]) -> None:
        call = view.call("reviewDecision", id=decision["id"], request_id=request_id, **given)
        await view.attempt(call, reload=True)

    fields = [
        Field("outcome", "Outcome", tuple(Outcome), decision.get("outcome") or "success"),
        Field("notes", "Lesson, readable wherever the decision is", value=decision.get("notes", ""), kind="area"),
    ]
    show = partial(widgets.add_text, decision["title"])
    widgets.ask_person("How did it turn out?", fields, {"Save the review": review}, show)


def ask_record(view: View) -> None:
    """Ask for a decision, and record it under the name of the person."""
    request_id = secrets.token_hex(16)

    async def record(given: Mapping[str, Any]) -> None:
        content = {name: given[name] for name in ("title", "context", "category", "project", "stakes")}
        content["title"] = content["title"] or ""
        content["confidence"] = None if given["confidence"] is None else given["confidence"] / 100
        content["visibility"] = "shared" if given["shared"] else "private"
        await view.attempt(view.call("recordDecision", request_id=request_id, decision=content), reload=True)

    widgets.ask_person("Record a decision", RECORD, {"Record": record})


SCREENS = (
    Screen("/decisions", "Decisions", show_decisions, "fact_check", ("listDecisions",)),
    Screen("/decisions/{id}", "Decision", show_decision, methods=("getDecision",)),
)
