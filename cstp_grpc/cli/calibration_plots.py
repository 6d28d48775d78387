"""Plots of calibration and patterns as SVG."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from html import escape
from typing import Final

from cstp_grpc.cli.calibration_output import headline_of_calibration, odds_position, p_value_text
from cstp_grpc.cli.decision_output import enum_word
from cstp_grpc.gen.cstp.v1 import calibration_pb2 as pb2

SIDE: Final = 400
"""Pixels of each side of the reliability diagram."""
MARGIN: Final = 60
ROW: Final = 26
"""Pixels of a row of the diagram of odds ratios."""
LABELS: Final = 260
"""Pixels for the names of factors."""
MAX_LABEL: Final = 36
"""Characters of a name, so that it fits into `LABELS`."""
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
    """Yield the frame, the diagonal, and the labels of the axes."""
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
    """Yield the interval, the point and the count of a bucket; the point is larger for more decisions."""
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
    """Return the horizontal coordinate of a value from 0 to 1."""
    return MARGIN + SIDE * value


def vertical_place(value: float) -> float:
    """Return the vertical coordinate of a value from 0 to 1."""
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
    """Yield the name, the interval and the point of a factor at a vertical coordinate."""
    colour = PLAIN_COLOUR
    if item.significant:
        colour = WRONG_COLOUR if item.odds_ratio > 1 else RIGHT_COLOUR
    low, point, high = (
        LABELS + SIDE * odds_position(odds)
        for odds in (item.odds_interval.low, item.odds_ratio, item.odds_interval.high)
    )
    name = f"{enum_word(pb2.FailureFactorKind, item.kind)} {item.value}"
    short = name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…"
    yield svg_text(LABELS - 12, up + 4, short, anchor="end")
    yield svg_line(low, up, high, up, colour)
    tooltip = escape(f"odds ratio {item.odds_ratio:.2f}, p {p_value_text(item.adjusted_p_value)}")
    yield f'<circle cx="{point:.1f}" cy="{up:.1f}" r="5" fill="{colour}"><title>{tooltip}</title></circle>'


def svg_document(width: int, height: int, title: str, shapes: Iterable[str]) -> str:
    """Return an SVG document with a title and a white background, so that it can be read wherever it is shown."""
    heading = escape(title)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' font-family="sans-serif" font-size="12" role="img">',
            f"<title>{heading}</title>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            f'<text x="{width / 2:.1f}" y="24" text-anchor="middle" font-size="14">{heading}</text>',
            *shapes,
            "</svg>\n",
        ]
    )


def svg_line(left: float, top: float, right: float, bottom: float, colour: str, *, dashed: bool = False) -> str:
    """Return a line."""
    dashes = ' stroke-dasharray="4 4"' if dashed else ""
    ends = f'x1="{left:.1f}" y1="{top:.1f}" x2="{right:.1f}" y2="{bottom:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="2"{dashes}/>'


def svg_text(across: float, up: float, text: str, anchor: str = "middle") -> str:
    """Return a text; characters that XML forbids are replaced, since agents wrote some of it."""
    shown = escape(NO_XML.sub("\N{REPLACEMENT CHARACTER}", text))
    return f'<text x="{across:.1f}" y="{up:.1f}" text-anchor="{anchor}" fill="#222222">{shown}</text>'
