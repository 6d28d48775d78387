"""Rulebooks: the rules in force, how often each fired, and one rule with its inputs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from console import texts, widgets
from console.frame import Screen
from console.screens.playground import show_playground
from console.view import View

BOOKS = "Rulebook: name; Version: version; Owner: owner; File: file; Rules: guardrails"
RULES = (
    "Rule: name > /rulebooks/rule?id={id}; Effect: severity|badge; Mode: enforcement|badge; Fired: fired; "
    "Owner: owner; Rulebook: rulebook; Expires: expires|day"
)
FACTS = (
    "Id: id; Rulebook: rulebook; Owner: owner; Expires: expires|day; Categories: categories|list; "
    "Stakes: stakes|words; Approvers: approvers|list; Tags: tags|list; Suggestion: suggestion"
)
PROBLEMS = "File: file; Line: line; Where: where; Problem: reason"
DAYS = 7


async def show_rulebooks(view: View) -> None:
    """Show the rulebooks in force, and their rules with the number of actions for which each fired."""
    if view.may_call("tryRulebook"):
        widgets.add_link("Open the playground", "/rulebooks/playground")
    answer = await view.call("getRulebook")
    if failed := answer.get("lastFailedLoad"):
        with widgets.add_card("Changed files are invalid; the rules before stay in force", classes="failure"):
            widgets.show_table("Problems", failed["problems"], PROBLEMS)
    with widgets.add_card(
        "In force", hint=f"{answer['ruleSetVersion']}, loaded {texts.format_age(answer['loadedAt'])}"
    ):
        widgets.show_table("Rulebooks", answer["rulebooks"], BOOKS)
    fired: dict[str, Any] = {}
    if view.may_call("summarizeAudit"):
        after = datetime.now(UTC) - timedelta(days=DAYS)
        summary = await view.call("summarizeAudit", after=after, group_by=["guardrail"], max_groups=100)
        fired = {each["value"]: each["counts"]["entries"] for each in summary["groups"]}
    await view.show_listing(
        *("listGuardrails", "guardrails", RULES, ("There are no rules.", "Configure a rulebook.")),
        title=f"Rules, and how often they fired in {DAYS} days",
        change=lambda rule: {**rule, "fired": fired.get(rule["id"], 0)},
    )


async def show_rule(view: View) -> None:
    """Show one rule with the inputs that it reads."""
    rules = (await view.call("listGuardrails", page_size=1000))["guardrails"]
    rule = next((each for each in rules if each["id"] == view.arguments.get("id")), None)
    if rule is None:
        widgets.show_empty("There is no such rule any more.", "It may have been removed from its rulebook.")
        return
    with widgets.add_card(rule["name"]):
        with widgets.add_line():
            widgets.add_badges(rule["severity"], rule["enforcement"])
        widgets.add_text(rule.get("description"))
        widgets.show_facts(rule, FACTS)
        widgets.show_code(rule.get("expression"), "Condition")
    if rule["inputs"]:
        inputs = (await view.call("listInputs", page_size=1000))["inputs"]
        with widgets.add_card("Inputs that it reads"):
            read = [each for each in inputs if each["name"] in rule["inputs"]]
            widgets.show_table("Inputs", read, "Input: name; Type: type; Meaning: description")
    if view.may_call("listAuditEntries"):
        widgets.add_link("Actions for which it fired", texts.page_url("/audit", guardrail=rule["id"]))


SCREENS = (
    Screen("/rulebooks", "Rulebooks", show_rulebooks, "gavel", ("getRulebook",)),
    Screen("/rulebooks/rule", "Rule", show_rule, methods=("listGuardrails",)),
    Screen("/rulebooks/playground", "Playground", show_playground, methods=("tryRulebook",)),
)
