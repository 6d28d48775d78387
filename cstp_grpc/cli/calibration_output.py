"""Output of calibration and patterns: for people, with plots in the terminal, and as plots in SVG."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from cstp_grpc.cli.answer_fields import enum_word, format_date
from cstp_grpc.cli.console import COLUMN_GAP, Console, Text, TextTable
from cstp_grpc.cli.output import to_printable
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.gen.cstp.v1 import calibration_pb2 as pb2

PLOT_COLUMNS: Final = 41
"""Characters of a scale where there is room: odd, so that its middle is one of them, and 10 for each quarter."""
MIN_PLOT_COLUMNS: Final = 13
"""Characters of the narrowest scale; where there is less room, there is no plot."""

POINT, LINE, LOW_END, HIGH_END, STATED = "●", "─", "├", "┤", "┊"

MAX_ODDS: Final = 64
"""Where the scale of odds ratios ends; on the other side 1 / 64. More than that is drawn at the end."""


def print_calibration(console: Console, answer: pb2.GetCalibrationResponse) -> None:
    """Print how far confidences can be relied on."""
    console.print(Text(headline_of_calibration(answer), style="bold"))
    if not answer.HasField("calibration"):
        console.print(f"Too few for figures, which need {answer.minimum}.")
    else:
        item = answer.calibration
        interval = item.success_interval
        came_true = f"{item.success_rate:.2f} ({interval.low:.2f} to {interval.high:.2f})"
        console.print(f"On average {item.mean_confidence:.2f} was stated, and {came_true} came true.")
        console.print()
        console.print(reliability_table(item.buckets, console.width))
        console.print(Text(f"{POINT} came true  {LOW_END}{LINE}{HIGH_END} 95 % interval  {STATED} stated", style="dim"))
        console.print()
        console.print(figures_table(item))
    console.print(Text(drift_text(answer), style="yellow" if answer.drift.detected else ""))
    if answer.groups:
        console.print()
        console.print(groups_table(answer.groups))


def headline_of_calibration(answer: pb2.GetCalibrationResponse) -> str:
    left_out = f"; {answer.left_out} without a confidence or abandoned" if answer.left_out else ""
    return f"{count_decisions(answer.count, truncated=answer.truncated)} with a confidence and an outcome{left_out}"


def count_decisions(count: int, *, truncated: bool = False) -> str:
    return f"{'The latest ' if truncated else ''}{count_noun(count, 'decision')}"


def reliability_table(buckets: Sequence[pb2.ReliabilityBucket], width: int) -> TextTable:
    """Return the buckets as rows with a plot each, as wide as there is room."""
    columns = plot_columns(width, ["confidence", "decisions", "came true"])
    scale = scale_text([("0", 0), ("0.5", 0.5), ("1", 1)], columns)
    table = TextTable("confidence", "decisions", "came true", scale)
    for item in buckets:
        interval = item.success_interval
        is_within = interval.low <= item.mean_confidence <= interval.high
        plot = plot_interval(interval.low, item.success_rate, interval.high, item.mean_confidence, columns)
        table.add_row(
            f"{item.lower:.1f} to {item.upper:.1f}",
            f"{item.count:>9}",
            f"{item.success_rate:>9.2f}",
            Text(plot, style="green" if is_within else "red"),
        )
    return table


def plot_columns(width: int, widest: Sequence[str]) -> int:
    """Return the characters of a scale in the last column of a line; the others are as wide as their widest cells."""
    room = width - sum(len(cell) + len(COLUMN_GAP) for cell in widest)
    columns = min(room - 1 + room % 2, PLOT_COLUMNS)
    return columns if columns >= MIN_PLOT_COLUMNS else 0


def plot_interval(low: float, point: float, high: float, mark: float, columns: int = PLOT_COLUMNS) -> str:
    """Return an interval with its point and a mark, each from 0 to 1, on a scale of so many columns; empty for none."""
    if not columns:
        return ""
    cells = [" "] * columns
    first, last = plot_column(low, columns), plot_column(high, columns)
    for place in range(first, last + 1):
        cells[place] = LINE
    cells[first], cells[last] = LOW_END, HIGH_END
    # In this order: the ends over the line, the mark over both, and the point over everything.
    cells[plot_column(mark, columns)] = STATED
    cells[plot_column(point, columns)] = POINT
    return "".join(cells).rstrip()


def plot_column(value: float, columns: int) -> int:
    return round(min(max(value, 0.0), 1.0) * (columns - 1))


def scale_text(labels: Sequence[tuple[str, float]], columns: int) -> str:
    """Return the labels of a scale, each centred at its value from 0 to 1, as far as there is room."""
    line = ""
    for label, value in labels if columns else ():
        start = min(max(plot_column(value, columns) - len(label) // 2, 0), columns - len(label))
        line = line.ljust(start) + label
    return line


def figures_table(item: pb2.Calibration) -> TextTable:
    table = TextTable()
    table.add_row("Brier score", f"{item.brier_score:.3f}", "0 is best; the sum of the next terms")
    table.add_row("  reliability", f"+{item.reliability:.3f}", "confidences differ from success rates")
    table.add_row("  resolution", f"-{item.resolution:.3f}", "confidences separate good decisions from bad ones")
    table.add_row("  uncertainty", f"+{item.uncertainty:.3f}", "outcomes vary")
    table.add_row("  spread", f"{item.spread:+.3f}", "confidences differ within buckets")
    error = f"{item.expected_calibration_error:.3f}"
    table.add_row("calibration error", error, "mean distance between confidences and success rates")
    if item.HasField("p_value"):
        table.add_row("p-value", p_value_text(item.p_value), "of such differences if every confidence were right")
    return table


def p_value_text(p_value: float) -> str:
    """Return a p-value; a very small one only as being so."""
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def drift_text(answer: pb2.GetCalibrationResponse) -> str:
    drift = answer.drift
    if not answer.HasField("drift"):
        return f"Too few for a test for drift, which needs {answer.minimum_for_drift}."
    test = f"p {p_value_text(drift.p_value)}, {count_decisions(drift.count)}"
    if not drift.detected:
        return f"No drift was found ({test})."
    return (
        f"Drift since {format_date(drift.changed_at)}: confidences are {gap_text(drift.gap_after)} what came true;"
        f" before they were {gap_text(drift.gap_before)} it ({test})."
    )


def gap_text(gap: float) -> str:
    return f"{abs(gap):.2f} {'above' if gap >= 0 else 'below'}"


def groups_table(groups: Sequence[pb2.CalibrationGroup]) -> TextTable:
    table = TextTable("group", "decisions", "stated", "came true", "error", "Brier score")
    for item in groups:
        value = item.value if item.HasField("value") else "(none)"
        name = f"{enum_word(pb2.CalibrationGrouping, item.grouping)} {to_printable(value)}"
        table.add_row(name, f"{item.count:>9}", *group_figures(item))
    return table


def group_figures(item: pb2.CalibrationGroup) -> Iterator[str]:
    if not item.HasField("calibration"):
        yield from ("", "", "", "too few")
        return
    figures = item.calibration
    yield f"{figures.mean_confidence:>6.2f}"
    yield f"{figures.success_rate:>9.2f}"
    yield f"{figures.expected_calibration_error:>5.2f}"
    yield f"{figures.brier_score:.3f}"


def print_patterns(console: Console, answer: pb2.GetPatternsResponse) -> None:
    """Print the factors that failures have in common."""
    compared = count_decisions(answer.count, truncated=answer.truncated)
    console.print(Text(f"{compared} with an outcome; {answer.failures} failed", style="bold"))
    if answer.too_few:
        console.print(
            f"Too few to find factors of failure: that needs {answer.minimum} decisions, of which"
            f" {answer.minimum_failures} failed and {answer.minimum_failures} did not."
        )
    elif not answer.factors:
        console.print("Nothing that decisions have in common is frequent enough to be tested.")
    else:
        console.print()
        console.print(factors_table(answer.factors, console.width))
        console.print(
            Text(
                f"{POINT} odds ratio of failure  {LOW_END}{LINE}{HIGH_END} 95 % interval  {STATED} no difference;"
                f" p-values account for {answer.tested} tests; * is significant",
                style="dim",
            )
        )
    print_recurring_failures(console, answer.recurring)


def factors_table(factors: Sequence[pb2.FailureFactor], width: int) -> TextTable:
    """Return the factors as rows with a plot each, as wide as there is room."""
    rows = [
        (
            factor_label(item),
            f"{item.failures_with} of {item.failures_with + item.others_with}",
            f"{item.failures_without} of {item.failures_without + item.others_without}",
            f"{item.odds_ratio:>6.2f}",
            f"{p_value_text(item.adjusted_p_value)}{'*' if item.significant else ''}",
        )
        for item in factors
    ]
    headings = ("factor", "failed with", "without", "odds", "p")
    columns = plot_columns(width, [max(cells, key=len) for cells in zip(headings, *rows, strict=True)])
    table = TextTable(*headings, scale_text([(f"1/{MAX_ODDS}", 0), ("1", 0.5), (str(MAX_ODDS), 1)], columns))
    for item, row in zip(factors, rows, strict=True):
        ends = item.odds_interval
        low, point, high, mark = map(odds_position, (ends.low, item.odds_ratio, ends.high, 1))
        style = "" if not item.significant else "red" if item.odds_ratio > 1 else "green"
        table.add_row(*row, Text(plot_interval(low, point, high, mark, columns), style=style))
    return table


def factor_label(item: pb2.FailureFactor) -> str:
    name = to_printable(f"{enum_word(pb2.FailureFactorKind, item.kind)} {item.value}")
    return name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…"


def odds_position(odds: float) -> float:
    """Return the position of odds on a logarithmic scale, 0 to 1; 1 is in the middle."""
    return min(max(0.5 + math.log(odds) / math.log(MAX_ODDS) / 2, 0.0), 1.0)


def print_recurring_failures(console: Console, groups: Sequence[pb2.RecurringFailure]) -> None:
    """Print the groups of failures that resemble each other."""
    for item in groups:
        terms = f": {', '.join(map(to_printable, item.terms))}" if item.terms else ""
        when = f"{format_date(item.first_at)} to {format_date(item.last_at)}"
        console.print()
        console.print(
            Text(f"{item.count} similar failures{terms}", style="bold").append(f" ({when})", style="not bold")
        )
        table = TextTable()
        for decision in item.decisions:
            text = Text(to_printable(decision.title)).append(f"\n{decision.agent}  {decision.id}", style="dim")
            if decision.notes:
                text.append(f"\nLesson: {to_printable(' '.join(decision.notes.split()))}")
            table.add_row(f"  {format_date(decision.date)}", text)
        console.print(table)
        if hidden := item.count - len(item.decisions):
            console.print(Text(f"  and {hidden} more", style="dim"))


SIDE: Final = 400
"""Pixels of each side of the reliability diagram."""
MARGIN: Final = 60
ROW: Final = 26
"""Pixels of a row of the diagram of odds ratios."""
LABELS: Final = 260
"""Pixels for the names of factors."""
MAX_LABEL: Final = 36
"""Characters of a name, so that it fits into `LABELS`."""
TITLE_LETTER: Final = 8
"""Pixels of a letter of the title, more than the mean of usual fonts."""
RIGHT_COLOUR: Final = "#1a7f37"
WRONG_COLOUR: Final = "#c0392b"
PLAIN_COLOUR: Final = "#555555"
NO_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that an XML document must not have."""


def reliability_diagram(answer: pb2.GetCalibrationResponse) -> str:
    """Return a plot of success rates over confidences; on the diagonal, confidences are right.

    Source: Murphy and Winkler 1977, Reliability of Subjective Probability Forecasts of Precipitation and Temperature.
    """
    size = SIDE + 2 * MARGIN
    shapes = [*diagram_axes(), *(shape for item in answer.calibration.buckets for shape in bucket_shapes(item))]
    if not answer.HasField("calibration"):
        shapes.append(svg_text(MARGIN + SIDE / 2, MARGIN + SIDE / 2, f"too few: figures need {answer.minimum}"))
    return svg_document(size, size, headline_of_calibration(answer), shapes)


def diagram_axes() -> Iterator[str]:
    end = MARGIN + SIDE
    yield f'<rect x="{MARGIN}" y="{MARGIN}" width="{SIDE}" height="{SIDE}" fill="none" stroke="{PLAIN_COLOUR}"/>'
    yield svg_line(MARGIN, end, end, MARGIN, PLAIN_COLOUR, dashed=True)
    for tenth in range(0, 11, 2):
        value = tenth / 10
        yield svg_text(horizontal_place(value), end + 18, f"{value:.1f}")
        yield svg_text(MARGIN - 22, vertical_place(value) + 4, f"{value:.1f}")
    yield svg_text(MARGIN + SIDE / 2, end + 42, "stated confidence")
    yield svg_text(MARGIN, MARGIN - 12, "came true")


def bucket_shapes(item: pb2.ReliabilityBucket) -> Iterator[str]:
    interval = item.success_interval
    is_within = interval.low <= item.mean_confidence <= interval.high
    colour = RIGHT_COLOUR if is_within else WRONG_COLOUR
    across, up = horizontal_place(item.mean_confidence), vertical_place(item.success_rate)
    # The root, because the eye compares areas.
    radius = min(3 + math.sqrt(item.count), 20)
    yield svg_line(across, vertical_place(interval.low), across, vertical_place(interval.high), colour)
    yield f'<circle cx="{across:.1f}" cy="{up:.1f}" r="{radius:.1f}" fill="{colour}" fill-opacity="0.6"/>'
    yield svg_text(across + radius + 10, up + 4, str(item.count))


def horizontal_place(value: float) -> float:
    return MARGIN + SIDE * value


def vertical_place(value: float) -> float:
    return MARGIN + SIDE * (1 - value)


def odds_ratio_diagram(answer: pb2.GetPatternsResponse) -> str:
    """Return a plot of odds ratios with their intervals, one factor a row, on a logarithmic scale."""
    height = 2 * MARGIN + ROW * max(len(answer.factors), 1)
    middle = LABELS + SIDE / 2
    shapes = [svg_line(middle, MARGIN, middle, height - MARGIN, PLAIN_COLOUR, dashed=True)]
    for odds, label in ((1 / 64, "1/64"), (1 / 8, "1/8"), (1, "1"), (8, "8"), (64, "64")):
        shapes.append(svg_text(LABELS + SIDE * odds_position(odds), height - MARGIN + 22, label))
    shapes.append(svg_text(middle, height - 14, "odds ratio of failure"))
    for number, item in enumerate(answer.factors):
        shapes += factor_shapes(item, MARGIN + ROW * (number + 0.5))
    if answer.too_few:
        shapes.append(svg_text(middle, MARGIN + ROW / 2, f"too few: factors need {answer.minimum} decisions"))
    return svg_document(LABELS + SIDE + MARGIN, height, f"{answer.failures} of {answer.count} failed", shapes)


def factor_shapes(item: pb2.FailureFactor, up: float) -> Iterator[str]:
    colour = PLAIN_COLOUR
    if item.significant:
        colour = WRONG_COLOUR if item.odds_ratio > 1 else RIGHT_COLOUR
    low, point, high = (
        LABELS + SIDE * odds_position(odds)
        for odds in (item.odds_interval.low, item.odds_ratio, item.odds_interval.high)
    )
    yield svg_text(LABELS - 12, up + 4, factor_label(item), anchor="end")
    yield svg_line(low, up, high, up, colour)
    tooltip = escape(f"odds ratio {item.odds_ratio:.2f}, p {p_value_text(item.adjusted_p_value)}")
    yield f'<circle cx="{point:.1f}" cy="{up:.1f}" r="5" fill="{colour}"><title>{tooltip}</title></circle>'


def svg_document(width: int, height: int, title: str, shapes: Iterable[str]) -> str:
    """Return an SVG document with a title and a white background, so that it can be read wherever it is shown."""
    lines = textwrap.wrap(title, int(width / TITLE_LETTER))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' font-family="sans-serif" font-size="12" role="img">',
            f"<title>{escape(title)}</title>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *(title_line(width / 2, 18 + 17 * row, line) for row, line in enumerate(lines)),
            *shapes,
            "</svg>\n",
        ]
    )


def title_line(across: float, up: float, text: str) -> str:
    return f'<text x="{across:.1f}" y="{up:.1f}" text-anchor="middle" font-size="14">{escape(text)}</text>'


def svg_line(left: float, top: float, right: float, bottom: float, colour: str, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="4 4"' if dashed else ""
    ends = f'x1="{left:.1f}" y1="{top:.1f}" x2="{right:.1f}" y2="{bottom:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="2"{dashes}/>'


def svg_text(across: float, up: float, text: str, anchor: str = "middle") -> str:
    """Return a text; characters that XML forbids are replaced, since agents wrote some of it."""
    shown = escape(NO_XML.sub("\N{REPLACEMENT CHARACTER}", text))
    return f'<text x="{across:.1f}" y="{up:.1f}" text-anchor="{anchor}" fill="#222222">{shown}</text>'
