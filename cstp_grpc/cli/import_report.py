"""What became of an import, file by file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from cstp_grpc.cli.output import printable
from cstp_grpc.cli.render import word
from cstp_grpc.client import codec
from cstp_grpc.gen.cstp.v1 import journal_pb2
from cstp_grpc.importing import ParsedRecord, SkippedRecord

READ = "read"
"""What a dry run does with a record."""
ACTIONS = (READ, "imported", "updated", "unchanged")
STYLES = {"imported": "green", "updated": "yellow", "unchanged": "dim", READ: "green"}


@dataclass
class ImportReport:
    """Gathers what was read, what was skipped, and what the server did with each record, in their order."""

    parsed: list[ParsedRecord] = field(default_factory=list)
    skipped: list[SkippedRecord] = field(default_factory=list)
    results: list[journal_pb2.ImportResult] = field(default_factory=list)
    dry_run: bool = False

    @property
    def failed(self) -> bool:
        """Whether anything was skipped for an error."""
        return any(skipped.error for skipped in self.skipped)

    def actions(self) -> Iterator[tuple[ParsedRecord, str]]:
        """Yield what was done with each record."""
        if self.dry_run:
            yield from ((parsed, READ) for parsed in self.parsed)
        for parsed, result in zip(self.parsed, self.results, strict=False):
            yield parsed, word(journal_pb2.ImportAction, result.action)

    def as_json(self) -> dict[str, Any]:
        """Return the report as programs read it."""
        answer = codec.to_json(journal_pb2.ImportDecisionsResponse(results=self.results))
        return {
            **answer,
            "dryRun": self.dry_run,
            "records": [
                {
                    "source": parsed.record.source,
                    "path": str(parsed.path),
                    "line": parsed.line,
                    "dateFrom": parsed.date_from.value,
                    "notes": list(parsed.notes),
                }
                for parsed in self.parsed
            ],
            "skipped": [
                {"path": str(s.path), "line": s.line, "reason": s.reason, "error": s.error} for s in self.skipped
            ],
        }

    def show(self, console: Console, *, verbose: bool) -> None:
        """Print the report."""
        actions: dict[Path, Counter[str]] = defaultdict(Counter)
        for parsed, action in self.actions():
            actions[parsed.path][action] += 1
        skipped: dict[Path, list[SkippedRecord]] = defaultdict(list)
        for item in self.skipped:
            skipped[item.path].append(item)
        dates, remarks = self._dates(), self._remarks()
        for path in dict.fromkeys([*actions, *skipped]):
            if path in actions:
                console.print(told(path, actions[path], dates[path]), soft_wrap=True)
            for line in skipped[path]:
                console.print(refused(line), soft_wrap=True)
            for remark in remarks[path] if verbose else ():
                console.print(f"             {printable(remark)}", soft_wrap=True)
        console.print(self._summary(actions.values()), soft_wrap=True)
        if count := sum(map(len, remarks.values())) if not verbose else 0:
            console.print(f"There are {count} remarks on what was read; --verbose shows them.", soft_wrap=True)

    def _dates(self) -> dict[Path, Counter[str]]:
        found: dict[Path, Counter[str]] = defaultdict(Counter)
        for parsed in self.parsed:
            found[parsed.path][parsed.date_from.value] += 1
        return found

    def _remarks(self) -> dict[Path, list[str]]:
        found: dict[Path, list[str]] = defaultdict(list)
        for parsed in self.parsed:
            where = f"line {parsed.line}: " if parsed.line else ""
            found[parsed.path] += [f"{where}{note}" for note in parsed.notes]
        return found

    def _summary(self, actions: Iterable[Counter[str]]) -> Text:
        total: Counter[str] = sum(actions, Counter())
        counts = [f"{total[action]} {action}" for action in ACTIONS if total[action] or action != READ]
        errors = sum(skipped.error for skipped in self.skipped)
        counts.append(f"{len(self.skipped)} skipped" + (f", {errors} of them for an error" if errors else ""))
        return Text(f"{', '.join(counts)}.", style="bold")


def told(path: Path, actions: Counter[str], dates: Counter[str]) -> Text:
    """Return the line of a file that was read."""
    only = next(iter(actions)) if actions.total() == 1 else None
    text = Text()
    if only:
        text.append(f"{only:11}", style=STYLES[only]).append(f" {printable(str(path))}")
    else:
        counts = ", ".join(f"{actions[action]} {action}" for action in ACTIONS if actions[action])
        text.append(f"{'':11} {printable(str(path))}: {counts}")
    origins = " and ".join(name if count == dates.total() else f"{count} by {name}" for name, count in dates.items())
    return text.append(f"  (dated by {origins.replace('by ', '', 1)})", style="dim")


def refused(item: SkippedRecord) -> Text:
    """Return the line of something that was skipped."""
    where = f"{item.path}:{item.line}" if item.line else str(item.path)
    style = "red" if item.error else "dim"
    return Text(f"{'skipped':11}", style=style).append(printable(f" {where}: {item.reason}"), style="default")
