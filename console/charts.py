"""Charts of ECharts. Labels and tooltips are drawn as text on a canvas, so that no text of an agent becomes HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from nicegui import ui

from console import widgets
from console.texts import format_percent

INK: Final = "#7c8798"
"""The colour of axes and labels, readable in light and in dark."""
GRID: Final = "rgba(124, 135, 152, 0.25)"
BLUE, GREEN, RED, AMBER, GREY, PURPLE = "#4c7fe0", "#2f9e68", "#d1495b", "#d99a2b", "#8d97a5", "#8a6fd1"
OUTCOMES: Final = {"unknown": BLUE, "success": GREEN, "partial": AMBER, "failure": RED, "abandoned": GREY}
RATES: Final = (("stated confidence", "meanConfidence", BLUE), ("success rate", "successRate", PURPLE))
TEXT: Final = {"color": INK, "fontFamily": "Roboto, sans-serif"}
TOOLTIP: Final = {"renderMode": "richText", "confine": True}
"""Without HTML: a tooltip is drawn on the canvas, too."""
LEGEND: Final = {"textStyle": TEXT, "top": 0, "left": 0, "icon": "roundRect", "itemWidth": 12, "itemHeight": 12}


def draw_chart(options: Mapping[str, Any], summary: str, classes: str = "") -> ui.echart:
    """Draw a chart; the summary says in words what it shows."""
    grid = {"left": 8, "right": 16, "top": 36, "bottom": 8, "containLabel": True}
    chart = ui.echart({"textStyle": TEXT, "animation": False, "tooltip": TOOLTIP, "grid": grid, **options})
    chart.props.update({"role": "img", "aria-label": summary})
    return chart.classes(f"chart {classes}")


def category_axis(names: Sequence[str], **more: Any) -> dict[str, Any]:
    label = {**TEXT, "hideOverlap": True, "width": 170, "overflow": "truncate"}
    line = {"axisLine": {"lineStyle": {"color": GRID}}, "axisTick": {"show": False}}
    return {"type": "category", "data": list(names), "axisLabel": label, **line, **more}


def value_axis(**more: Any) -> dict[str, Any]:
    return {"type": "value", "axisLabel": TEXT, "splitLine": {"lineStyle": {"color": GRID}}, **more}


def draw_verdicts(
    names: Sequence[str], counts: Sequence[Mapping[str, Any]], total: Mapping[str, Any], *, others: bool = True
) -> None:
    """Draw columns of verdicts, and of entries without one; `total` has the counts of all columns."""
    series = {name: [int(each[name]) for each in counts] for name in ("allowed", "blocked")}
    if others:
        pairs = zip(series["allowed"], series["blocked"], strict=True)
        series["other events"] = [int(each["entries"]) - sum(pair) for each, pair in zip(counts, pairs, strict=True)]
    colours = {"allowed": GREEN, "blocked": RED, "other events": BLUE}
    bars = [
        {"name": name, "type": "bar", "stack": "all", "data": values, "itemStyle": {"color": colours[name]}}
        for name, values in series.items()
    ]
    axes = {"xAxis": category_axis(names), "yAxis": value_axis(minInterval=1)}
    summary = f"{total['allowed']} allowed, {total['blocked']} blocked, {total['entries']} entries in all"
    draw_chart({"tooltip": {**TOOLTIP, "trigger": "axis"}, "legend": LEGEND, **axes, "series": bars}, summary)


def draw_bars(values: Mapping[str, float]) -> None:
    """Draw one horizontal bar for each name, the first at the top."""
    if not values:
        widgets.add_text("There is nothing yet.", "muted")
        return
    bar = {
        **{"type": "bar", "data": list(values.values()), "barMaxWidth": 16},
        **{"itemStyle": {"color": BLUE, "borderRadius": 3}, "label": {"show": True, "position": "right", "color": INK}},
    }
    axes = {"xAxis": value_axis(show=False), "yAxis": category_axis(list(values), inverse=True)}
    grid = {"left": 0, "right": 40, "top": 0, "bottom": 0, "containLabel": True}
    summary = "; ".join(f"{name}: {value}" for name, value in values.items())
    draw_chart({**axes, "grid": grid, "series": [bar]}, summary).style(f"height: {12 + 30 * len(values)}px")


def draw_reliability(buckets: Sequence[Mapping[str, Any]]) -> None:
    """Draw the success rate of each bucket of confidence with its interval, and the diagonal of perfect calibration."""
    line: dict[str, Any] = {"type": "line", "showSymbol": False, "silent": True}
    whiskers: list[dict[str, Any]] = [
        {**line, "lineStyle": {"color": BLUE, "width": 2, "opacity": 0.5},
         "data": [[each["meanConfidence"], each["successInterval"][end]] for end in ("low", "high")]}
        for each in buckets
    ]  # fmt: skip
    diagonal = {**line, "data": [[0, 0], [1, 1]], "lineStyle": {"type": "dashed", "color": INK}}
    points = [[each["meanConfidence"], each["successRate"]] for each in buckets]
    rates = {"type": "line", "data": points, "symbolSize": 9, "itemStyle": {"color": BLUE}, "name": "success rate"}
    name = {"name": "stated confidence", "nameLocation": "middle", "nameGap": 28, "nameTextStyle": TEXT}
    grid = {"left": 8, "right": 16, "top": 12, "bottom": 28, "containLabel": True}
    axes = {"grid": grid, "xAxis": value_axis(min=0, max=1, **name), "yAxis": value_axis(min=0, max=1)}
    spoken = "; ".join(f"{format_percent(one)} stated, {format_percent(other)} succeeded" for one, other in points)
    draw_chart({**axes, "series": [diagonal, *whiskers, rates]}, f"Reliability: {spoken}", "tall")


def draw_months(months: Sequence[Mapping[str, Any]]) -> None:
    """Draw the decisions of each month as columns, and their rates as lines; a missing rate leaves a gap."""
    lines: list[dict[str, Any]] = [
        {"name": name, "type": "line", "yAxisIndex": 1, "itemStyle": {"color": colour},
         "data": [each.get("calibration", {}).get(field) for each in months]}
        for name, field, colour in RATES
    ]  # fmt: skip
    counts = [each["count"] for each in months]
    columns: dict[str, Any] = {"name": "decisions", "type": "bar", "data": counts, "itemStyle": {"color": GRID}}
    axes = {
        "xAxis": category_axis([each.get("value", "") for each in months]),
        "yAxis": [value_axis(minInterval=1), value_axis(min=0, max=1, splitLine={"show": False})],
    }
    options = {"tooltip": {**TOOLTIP, "trigger": "axis"}, "legend": LEGEND, **axes, "series": [columns, *lines]}
    draw_chart(options, f"Decisions by month, {sum(counts)} in all, with stated confidence and success rate", "tall")


def draw_graph(
    nodes: Sequence[Mapping[str, Any]], links: Sequence[Mapping[str, Any]], open_node: Callable[[str], None]
) -> None:
    """Draw linked decisions, coloured by outcome; a click opens one."""
    outcomes = list(OUTCOMES)
    drawn = [
        # The name is the identifier, since titles need not be unique.
        {"name": each["id"], "category": outcomes.index(each.get("outcome") or "unknown"),
         "symbolSize": 26 if each["distance"] == 0 else 16, "label": {"formatter": shorten_label(each["title"])}}
        for each in nodes
    ]  # fmt: skip
    edges = [
        {"source": each["fromId"], "target": each["toId"],
         "label": {"show": True, "formatter": each["type"].replace("_", " "), "color": INK, "fontSize": 11}}
        for each in links
    ]  # fmt: skip
    graph = {
        **{"type": "graph", "layout": "force", "roam": True, "top": 40, "data": drawn, "links": edges},
        "force": {"repulsion": 420, "edgeLength": 130, "layoutAnimation": False},
        "categories": [{"name": name, "itemStyle": {"color": colour}} for name, colour in OUTCOMES.items()],
        **{"edgeSymbol": ["none", "arrow"], "lineStyle": {"color": INK, "curveness": 0.1}},
        "label": {"show": True, "position": "bottom", "color": INK},
    }
    legend = {**LEGEND, "data": outcomes}
    options = {"tooltip": {"show": False}, "legend": legend, "series": [graph]}
    chart = draw_chart(options, f"{len(nodes)} linked decisions", "tall")
    chart.on("componentClick", lambda event: open_node(str(event.args["name"])), ["name"])
    widgets.add_text("Arrows lead from a decision to what it builds on or replaces. Select one to open it.", "muted")


def shorten_label(text: str) -> str:
    """Return a label of a chart, in which braces would be templates of ECharts."""
    plain = text.translate({ord("{"): "(", ord("}"): ")"})
    return plain if len(plain) <= 34 else f"{plain[:33]}…"
