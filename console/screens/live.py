"""Live: intents, verdicts and approvals as they come, with a filter and a pause."""

from __future__ import annotations

from collections import deque

from nicegui import ui

from console import texts, widgets
from console.frame import Screen
from console.screens.audit_story import entry_verdict
from console.view import Answer, View

MAX_SHOWN = 100
KINDS = ["intents", "verdicts", "approvals"]


class LiveFeed:
    """The latest events of several watches, the newest first."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._paused: deque[Answer] = deque(maxlen=MAX_SHOWN)
        with widgets.add_line():
            self._pause = ui.switch("Pause", on_change=self._resume)
            self._words = ui.input("Show only what contains").props("outlined dense clearable")
            self._kinds = ui.select(KINDS, multiple=True, value=KINDS, label="Kinds").props("outlined dense")
        with widgets.add_card():
            self._empty = widgets.add_element("p", "Waiting for agents to act …", "muted")
            self._list = widgets.add_group("ol", "timeline", aria_live="polite", aria_label="Events")
        for method, show in {
            "watchIntents": self._add_intent, "watchAudit": self._add_entry, "watchApprovals": self._add_approval,
        }.items():  # fmt: skip
            if view.may_call(method):
                view.follow(method, show)

    def _add_intent(self, answer: Answer) -> None:
        if intent := answer.get("intent"):
            url = texts.page_url("/audit/story", correlation=intent["correlationId"])
            self._add(
                kind="intents", text=intent.get("intent", "An intent"), word="announced", url=url, **pick_facts(intent)
            )

    def _add_entry(self, answer: Answer) -> None:
        entry = answer.get("entry")
        if entry and (verdict := entry_verdict(entry)):
            url = texts.page_url("/audit/story", request=entry["requestId"])
            text = entry.get("action") or texts.format_word(entry["event"])
            self._add(kind="verdicts", text=text, word=verdict, url=url, agent=entry["requestingAgent"], stakes=None)

    def _add_approval(self, answer: Answer) -> None:
        if approval := answer.get("approval"):
            subject = {**approval.get("subject", {}), "agent": approval["agent"]}
            url, text = f"/approvals/{approval['id']}", texts.describe_action(subject)
            self._add(kind="approvals", text=text, word=approval["status"], url=url, **pick_facts(subject))

    def _add(self, **event: str | None) -> None:
        """Add an event that passes the filters, now or when the pause ends."""
        wanted = (self._words.value or "").lower()
        if event["kind"] in (self._kinds.value or ()) and wanted in f"{event['text']} {event['agent']}".lower():
            if self._pause.value:
                self._paused.append(event)
            else:
                self._show(event)

    def _show(self, event: Answer) -> None:
        self._empty.set_visibility(False)
        with self._list, widgets.add_group("li", widgets.TONE_OF_WORD.get(event["word"], "")) as item:
            with widgets.add_line():
                widgets.add_badges(event["word"], event["stakes"])
                if event["kind"] == "approvals" or self._view.may_call("listAuditEntries"):
                    widgets.add_link(event["text"], event["url"])
                else:
                    widgets.add_element("span", event["text"])
            widgets.add_element("span", f"{event['kind'][:-1]} of {event['agent']}", "muted")
        item.move(self._list, 0)
        for old in list(self._list)[MAX_SHOWN:]:
            old.delete()

    def _resume(self) -> None:
        while not self._pause.value and self._paused:
            self._show(self._paused.popleft())


def pick_facts(facts: Answer) -> dict[str, str | None]:
    return {"agent": facts["agent"], "stakes": facts.get("stakes")}


async def show_live(view: View) -> None:
    LiveFeed(view)


SCREENS = (Screen("/live", "Live", show_live, "bolt", ("watchIntents",)),)
