"""Calibration: how reliable stated confidences are, over time, by agent and category, and patterns of failure."""

from __future__ import annotations

from functools import partial

from console import charts, texts, widgets
from console.frame import Screen
from console.view import Answer, View
from console.widgets import Field

FILTERS = (
    Field("agent", "Agent (empty for all)"),
    Field("category", "Category"),
    Field("project", "Project"),
    Field("since", "Since (90d, a date)"),
)
GROUPS = (
    "Group: value; Decisions: count; Confidence: calibration.meanConfidence|percent; "
    "Success: calibration.successRate|percent"
)
FACTORS = "Factor: name; Failed with it: with; Failed without it: without; Odds ratio: odds; Certainty: certainty|badge"


async def show_calibration(view: View) -> None:
    """Show the figures of the decisions that match, and what failures have in common."""
    widgets.show_filters(view.path, view.arguments, FILTERS)
    conditions: dict[str, object] = {name: view.arguments.get(name) for name in ("agent", "category", "project")}
    conditions["date_after"] = texts.parse_since(view.arguments.get("since"))
    filters = {name: value for name, value in conditions.items() if value}
    fields = {"filters": filters, "all_agents": "agent" not in filters}
    await view.show_part(partial(show_figures, view, fields))
    view.show_later(partial(show_patterns, view, fields))


async def show_figures(view: View, fields: dict[str, object]) -> None:
    """Show the reliability diagram, the months and the groups."""
    answer = await view.call("getCalibration", **fields, group_by=["month", "agent", "category"])
    found = answer.get("calibration")
    if found is None:
        few = f"There are {answer['count']} reviewed decisions with a confidence; {answer['minimum']} are needed."
        widgets.show_empty(few, "Review decisions when their outcome is known, or widen the filters.")
        return
    with widgets.add_group("div", "tiles"):
        widgets.show_number(f"{answer['count']:,}", "reviewed decisions")
        widgets.show_number(texts.format_percent(found["meanConfidence"]), "stated confidence")
        widgets.show_number(texts.format_percent(found["successRate"]), "success rate")
        widgets.show_number(f"{found['expectedCalibrationError']:.2f}", "calibration error (0 is best)")
        widgets.show_number(f"{found['brierScore']:.2f}", "Brier score (0 is best)")
    groups = {
        name: [each for each in answer["groups"] if each["grouping"] == name] for name in ("month", "agent", "category")
    }
    with widgets.add_group("div", "columns"):
        with widgets.add_card("Reliability", hint="with 95 % intervals; the dashed line is perfect"):
            charts.draw_reliability(found["buckets"])
        show_months(sorted(groups["month"], key=lambda each: str(each.get("value"))), answer)
        for name, title in (("agent", "By agent"), ("category", "By category")):
            with widgets.add_card(title):
                widgets.show_table(title, groups[name][:12], GROUPS, terse=False)


def show_months(months: list[Answer], answer: Answer) -> None:
    """Show how confidence and success changed, and whether the change is more than chance."""
    with widgets.add_card("Over time", hint="rates where a month has enough decisions"):
        charts.draw_months(months)
        drift = answer.get("drift")
        if drift is None:
            widgets.add_text("There are too few decisions to test for drift.", "muted")
        elif not drift["detected"]:
            widgets.add_text(f"No drift among the latest {drift['count']} decisions.", "muted")
        else:
            widgets.add_badges("drift")
            widgets.add_text(
                f"Since {texts.format_day(drift['changedAt'])}, confidences are {100 * drift['gapAfter']:+.0f} points "
                f"above the outcomes; before, they were {100 * drift['gapBefore']:+.0f} points above."
            )


async def show_patterns(view: View, fields: dict[str, object]) -> None:
    """Show factors of failure with their counts, and failures that recur."""
    answer = await view.call("getPatterns", **fields, limit=12)
    with widgets.add_card("Factors of failure", hint=f"{answer['failures']} of {answer['count']} failed"):
        if answer["factors"]:
            widgets.show_table("Factors", map(describe_factor, answer["factors"]), FACTORS, terse=False)
        else:
            widgets.add_text("There are too few reviewed decisions to find factors.", "muted")
    for group in answer["recurring"]:
        with widgets.add_card(f"Recurring: {', '.join(group['terms'][:5])}", hint=f"{group['count']} failures"):
            for each in group["decisions"]:
                widgets.add_link(each["title"], f"/decisions/{each['id']}")


def describe_factor(factor: Answer) -> Answer:
    """Return the texts of a factor's row."""
    name = f"{texts.format_word(factor['kind'])}: {factor['value']}"
    with_it, without = (
        f"{factor[f'failures{suffix}']} of {factor[f'failures{suffix}'] + factor[f'others{suffix}']}"
        for suffix in ("With", "Without")
    )
    certainty = "significant" if factor["significant"] else "may be chance"
    return {
        "name": name,
        "with": with_it,
        "without": without,
        "odds": f"{factor['oddsRatio']:.1f}",
        "certainty": certainty,
    }


SCREENS = (Screen("/calibration", "Calibration", show_calibration, "insights", ("getCalibration",), "Learn"),)
