"""Code context: the nodes of a project, the rules for a path, and learnings to review."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from console import texts, widgets
from console.frame import Screen
from console.view import Answer, View
from console.widgets import Field

MAX_NODES = 500


async def show_context(view: View) -> None:
    """Show a project; it is named as in `intent_layer.projects`."""
    widgets.show_filters("/context", view.arguments, (Field("project", "Project"), Field("path", "Path, as src/api")))
    project = view.arguments.get("project")
    if not project:
        widgets.show_empty("Choose a project.", "Projects are configured under intent_layer.projects.")
        return
    with widgets.add_group("div", "columns"):
        await view.show_part(partial(show_tree, view, project))
        await view.show_part(partial(show_governing, view, project, view.arguments.get("path") or "."))
    await view.show_part(partial(list_learnings, view, project))


async def show_tree(view: View, project: str) -> None:
    """Show the nodes as a tree of links."""
    nodes = (await view.call("intentLayer.listNodes", project=project, page_size=MAX_NODES))["nodes"]
    with widgets.add_card("Nodes", hint=f"{sum(each['tokens'] for each in nodes):,} tokens"):
        if not nodes:
            widgets.show_empty("The project has no nodes.", "Add an AGENTS.md to its root.")
        with widgets.add_group("ul", "tree"):
            for each in nodes:
                depth = 0 if each["folder"] == "." else each["folder"].count("/") + 1
                with widgets.add_group("li").style(f"margin-left: {min(depth, 8) * 16}px"):
                    widgets.add_link(each["file"], texts.page_url("/context", project=project, path=each["folder"]))
                    widgets.add_element("span", f" {each['tokens']:,} tokens", "muted")


async def show_governing(view: View, project: str, path: str) -> None:
    """Show the merged sections of the nodes that govern a path."""
    answer = await view.call("intentLayer.resolveContext", project=project, path=path)
    with widgets.add_card(f"Rules for {path}", hint=f"{answer['tokens']:,} tokens"):
        if not answer["covered"]:
            widgets.add_text("No node covers this path.", "muted")
        for section in answer["sections"]:
            widgets.add_element("h3", section["name"])
            for part in section["parts"]:
                widgets.add_element("span", part["file"], "muted")
                widgets.add_text(part["text"], "text")


async def list_learnings(view: View, project: str) -> None:
    """List the learnings that wait for a review."""
    fields = {"project": project, "states": ["pending"], "page_size": 20, "page_token": view.arguments.get("page")}
    answer = await view.call("intentLayer.listLearnings", **fields)
    with widgets.add_card("Learnings to review"):
        if not answer["learnings"]:
            widgets.add_text("Nothing waits for a review. Agents report with “cstp learn report”.", "muted")
        for each in answer["learnings"]:
            with widgets.add_group("div", "part"):
                with widgets.add_line():
                    widgets.add_badges(each["type"])
                    widgets.add_element("strong", each["title"])
                    widgets.add_element("span", f"{each['agentId']}, {texts.format_age(each['timestamp'])}", "muted")
                widgets.add_text(each["detail"], "text")
                widgets.add_text(", ".join(each["paths"]), "muted")
                if view.may_call("intentLayer.reviewLearning"):
                    with widgets.add_group("div", "buttons"):
                        widgets.add_button("Review", partial(ask_review, view, project, each), main=True)
        widgets.show_pager(view.path, view.arguments, answer["nextPageToken"])


async def ask_review(view: View, project: str, learning: Answer) -> None:
    """Show the change that accepting a learning would make, and ask for the verdict."""
    review = partial(view.call, "intentLayer.reviewLearning", project=project, id=learning["id"])

    async def decide(verdict: str, given: Mapping[str, Any]) -> None:
        await view.attempt(review(verdict=verdict, reason=given["reason"] or ""), reload=True)

    async def ask_verdict() -> None:
        preview = await review(verdict="accept", dry_run=True)

        def show_preview() -> None:
            widgets.add_text(learning["title"])
            widgets.show_code(preview["diff"] or "The node would not change.", "Change to the node")
            for each in preview["duplicates"]:
                widgets.add_text(f"{each['file']}:{each['line']} says probably the same: {each['text']}")

        actions = {word.capitalize(): partial(decide, word) for word in ("accept", "reject", "defer")}
        widgets.ask_person("Review a learning", [Field("reason", "Reason")], actions, show_preview)

    await view.attempt(ask_verdict())


SCREENS = (Screen("/context", "Code context", show_context, "account_tree", ("intentLayer.listNodes",), "Learn"),)
