"""The playground: a rulebook on the left, actions on the right, verdicts with the parts that decide, and a replay."""

from __future__ import annotations

import base64
import json
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import yaml
from nicegui import ui

from console import texts, widgets
from console.view import Answer, View

MAX_STATE_BYTES: Final = 300_000
"""Limit of a shared state when it is unpacked; the server accepts rulebooks of 262 144 bytes."""
MAX_LINK: Final = 12_000
"""Chosen: longer addresses are refused by proxies."""
MAX_ACTIONS: Final = 50
REPLAY_DAYS: Final = {1: "the last day", 7: "the last 7 days", 30: "the last 30 days"}
COVERAGE = "Rule: id; A test fires it: fired|badge; A test passes it: passed|badge; Actions that fire it: actionsFired"


async def show_playground(view: View) -> None:
    """Show the editor, the actions and the results."""
    contents = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    rulebook, actions = read_state(view.arguments.get("s", "")) or (contents["rulebook"], contents["actions"])
    with widgets.add_group("div", "columns"):
        with widgets.add_card("Rulebook", hint="Ctrl+Space completes"):
            editor = ui.codemirror(rulebook, language="YAML", theme="basicLight", indent="  ").classes("editor")
        with widgets.add_card("Actions", hint="one per line; a command after $, inputs as JSON at the end"):
            field = ui.textarea(value=actions).props('outlined autogrow aria-label="Actions"').classes("actions")
            with widgets.add_group("div", "buttons"):
                widgets.add_button("Try", lambda: evaluate(), icon="play_arrow", main=True)
                widgets.add_button("Share", lambda: share_state(view, editor.value, field.value))
            with widgets.add_group("div", "buttons"):
                days = ui.select(REPLAY_DAYS, value=7).props('outlined dense aria-label="Period of the replay"')
                widgets.add_button("Replay recorded actions", lambda: replay(), icon="history")
            results = widgets.add_group("div", "stack", role="status", aria_label="Results")

    async def evaluate() -> None:
        await view.attempt(try_rulebook(view, results, editor.value, field.value))

    async def replay() -> None:
        await view.attempt(replay_rulebook(view, results, editor.value, days.value))

    inputs = (await view.call("listInputs", page_size=200))["inputs"]
    words = [{"label": key, "apply": f"{key}: ", "detail": text} for key, text in contents["keys"].items()]
    words += [{"label": f"context.{each['name']}", "detail": each["type"]} for each in inputs]
    # JSON is a literal of JavaScript: names of inputs cannot become code.
    ui.run_javascript(f"({contents['complete'].strip()})({editor.id}, {json.dumps(words)})")
    await evaluate()


def parse_actions(text: str) -> list[dict[str, Any]]:
    """Return the actions of the lines: `$ COMMAND`, or a description with the context as JSON at its end.

    `category`, `stakes` and `project` in the context are those of the action.
    """
    actions: list[dict[str, Any]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        description, brace, rest = line.partition("{")
        if line.startswith("$"):
            actions.append({"description": line[1:].strip() or line, "command": line[1:].strip(), "shell": "bash"})
            continue
        try:
            context = json.loads(brace + rest) if brace else {}
        except ValueError:
            description, context = line, {}
        fields = {name: context.pop(name) for name in ("category", "stakes", "project") if name in context}
        actions.append({"description": description.strip() or line, "context": context, **fields})
    return actions[:MAX_ACTIONS]


async def try_rulebook(view: View, results: ui.element, text: str, actions: str) -> None:
    """Evaluate the actions, and show problems or verdicts. Raises CstpError."""
    tried = parse_actions(actions)
    answer = await view.call("tryRulebook", rulebooks=[{"text": text}], actions=tried)
    results.clear()
    with results:
        for each in answer["problems"]:
            widgets.add_badges("failed")
            widgets.add_text(f"Line {each['line']}: {each['where']}: {each['reason']}")
        for action, result in zip(tried, answer["actions"], strict=False):
            show_result(action["description"], result)
        for each in answer["tests"]:
            with widgets.add_line():
                widgets.add_badges("passed" if each["passed"] else "failed")
                widgets.add_element("span", f"Test: {each['name']}")
            widgets.add_text("; ".join(each["failures"]))
        if answer["coverage"]:
            words = {True: "yes", False: "no"}
            rows = [
                {**each, "fired": words[each["fired"]], "passed": words[each["passed"]]} for each in answer["coverage"]
            ]
            widgets.show_table("Coverage", rows, COVERAGE, terse=False)


def show_result(description: str, result: Answer) -> None:
    """Show the verdict on an action, and each rule that fires with the parts of its condition."""
    verdict = result["verdict"]
    with widgets.add_group("div", "part"):
        with widgets.add_line():
            stopped = "needs approval" if verdict["approvalRequired"] else "blocked"
            widgets.add_badges("allowed" if verdict["allowed"] else stopped)
            widgets.add_element("strong", description)
        for each in result["guardrails"]:
            if each["outcome"] in ("matched", "unevaluable"):
                violation = each.get("violation", {})
                with widgets.add_line():
                    widgets.add_badges(each["severity"], "dry run" if each["enforcement"] == "dryrun" else None)
                    widgets.add_element("span", violation.get("message") or each.get("reason") or each["id"])
                with widgets.add_group("p", "condition"):
                    for part in each["parts"]:
                        value = part.get("value") or part.get("error", "")
                        widgets.add_element("mark" if part["decisive"] else "span", f"{part['expression']} = {value}")
                widgets.add_text(violation.get("suggestion"), "muted")


async def replay_rulebook(view: View, results: ui.element, text: str, days: int) -> None:
    """Evaluate recorded actions by the rulebook, and show the verdicts that would change. Raises CstpError."""
    results.clear()
    with results:
        progress = widgets.add_element("p", "Reading the recorded actions …", "muted")
    after = datetime.now(UTC) - timedelta(days=days)
    async for part in view.stream("replayRulebook", rulebooks=[{"text": text}], after=after):
        if "progress" in part:
            progress.text = f"{int(part['progress']['actions']):,} actions evaluated"
        if report := part.get("report"):
            progress.text = f"{int(report['recorded']):,} recorded actions of {REPLAY_DAYS[days]}"
            with results:
                show_changes(report)


def show_changes(report: Answer) -> None:
    """Show the verdicts that would change, with examples."""
    facts = "Newly stopped: newlyStopped; Verdict unknown: unknown; Without content: withoutContent"
    widgets.show_facts(report, facts)
    if not report["changes"]:
        widgets.add_text("No verdict would change.", "muted")
    for change in report["changes"]:
        with widgets.add_line():
            widgets.add_badges(change["before"])
            widgets.add_element("span", "would become")
            widgets.add_badges(change["after"])
            widgets.add_element("span", f"for {int(change['count']):,} actions")
        for each in change["examples"]:
            text = f"{each.get('description') or each['requestId']} ({each['agent']}: {', '.join(each['stoppedBy'])})"
            widgets.add_link(text, texts.page_url("/audit/story", request=each["requestId"]))


def share_state(view: View, rulebook: str, actions: str) -> None:
    """Put the state of the playground into the address of the page, and copy that."""
    link = texts.page_url(view.path, s=write_state(rulebook, actions))
    if len(link) > MAX_LINK:
        ui.notify("The rulebook is too long for a link. Share its file instead.", type="warning")
        return
    ui.run_javascript(
        f"history.replaceState(null, '', {json.dumps(link)}); navigator.clipboard?.writeText(location.href)"
    )
    ui.notify("The address of this page is now a link to this state, and copied.")


def write_state(rulebook: str, actions: str) -> str:
    """Return the state of the playground as a text for a URL."""
    packed = zlib.compress(json.dumps([rulebook, actions]).encode(), 9)
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def read_state(text: str) -> tuple[str, str] | None:
    """Return the rulebook and the actions of a URL; None without valid ones."""
    try:
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        # Bounded, since a few bytes may unpack to gigabytes.
        rulebook, actions = json.loads(zlib.decompressobj().decompress(packed, MAX_STATE_BYTES))
    except (ValueError, zlib.error, TypeError):
        return None
    return str(rulebook), str(actions)
