"""Measure the server, the bridge and the command, and compare what comes out with what was accepted last."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.accepted import ACCEPTED, Comparison, accept, compare, read_accepted
from tests.bench.aims import aims_list
from tests.bench.results import Results, UnreadableResults, read_results
from tests.bench.run import Run
from tests.bench.sections import SECTIONS
from tests.bench.tables import figures_table, rows_table

OUTPUT = Path("var/bench")
"""Where documents are written; no part of the tree."""


def main(given: Sequence[str]) -> int:
    """Do what the command line says, and return the exit code."""
    arguments = parse_arguments(given)
    try:
        if arguments.source:
            path = newest_document() if arguments.source == "newest" else Path(arguments.source)
            results = read_results(path)
        else:
            arguments.out = arguments.out or OUTPUT / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
            results = measure(arguments, usual_sections() if not arguments.only else arguments.only)
            print(f"Written to {arguments.out}", file=sys.stderr)
        if arguments.aims:
            print(aims_list(results))
            return 0
        report(results)
        if results.failed:
            return 1
        if arguments.check:
            return check(arguments, results)
        if arguments.accept:
            accept(results, whole=set(usual_sections()) <= set(results.sections))
            print(f"Accepted in {ACCEPTED.name}: {sum(each.is_compared for each in results.figures.values())} figures.")
    except UnreadableResults as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def parse_arguments(given: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of the command line."""
    sections = "\n".join(f"  {name:14}{section.what}" for name, section in SECTIONS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        epilog=f"sections:\n{sections}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), metavar="SECTION", help="measure only these")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured (3)")
    parser.add_argument("--calls", type=int, default=400, help="calls of a round with one in flight (400)")
    parser.add_argument("--provider", default="minilm", help="the embedding: minilm or lexical (minilm)")
    parser.add_argument("--quick", action="store_true", help="few calls, rounds and decisions, to see that it works")
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="corpora of retrieval and embedding: peps.jsonl and adr/"
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=parse_size,
        default=(1_000, 10_000, 100_000),
        metavar="SIZE",
        help="decisions in the section search, such as 10k and 1m (1k 10k 100k)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"where the JSON goes (a new file in {OUTPUT})")
    parser.add_argument(
        "--from", dest="source", metavar="FILE", help="read a JSON document, or the `newest`, instead of measuring"
    )
    then = parser.add_mutually_exclusive_group()
    then.add_argument("--aims", action="store_true", help="print only the list of aims, for docs/benchmarks.md")
    then.add_argument("--check", action="store_true", help="fail if a figure is worse than the accepted one")
    then.add_argument("--accept", action="store_true", help="keep the figures as the accepted ones")
    arguments = parser.parse_args(given)
    if arguments.accept and arguments.quick:
        parser.error("--quick measures too little to be accepted")
    return arguments


def parse_size(text: str) -> int:
    """Return a number of decisions from text such as 500, 10k or 1m. Raises ValueError."""
    factors = {"k": 1_000, "m": 1_000_000}
    factor = factors.get(text[-1:].lower())
    return int(text) if factor is None else int(text[:-1]) * factor


def usual_sections() -> list[str]:
    """Return the sections that are measured unless others are named."""
    return [name for name, section in SECTIONS.items() if section.is_usual]


def measure(arguments: argparse.Namespace, sections: Collection[str], into: Results | None = None) -> Results:
    """Measure sections, and return what came out; figures that `into` has already get more rounds."""
    rounds, calls = (2, 40) if arguments.quick else (arguments.rounds, arguments.calls)
    results = into or Results(calls)
    with tempfile.TemporaryDirectory(prefix="cstp-bench-") as folder:
        run = Run(
            Path(folder), rounds, calls, results, arguments.provider, arguments.quick, arguments.data, arguments.sizes
        )
        for number, name in enumerate(sections):
            run.title, begun = name, time.monotonic()
            try:
                SECTIONS[name].measure(run)
            except Exception:  # noqa: BLE001 - what the other sections measure shall not be lost
                results.failed[name] = traceback.format_exc()
            else:
                results.sections += [name] if name not in results.sections else []
            # After each section, so that whoever stops a run keeps what it measured.
            write(results, arguments.out)
            run.note(f"{number + 1} of {len(sections)}: {time.monotonic() - begun:.0f} s")
    return results


def write(results: Results, path: Path) -> None:
    """Write the document of a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(results.to_json())


def newest_document() -> Path:
    """Return the document that was written last. Raises UnreadableResults."""
    found = sorted(OUTPUT.glob("*.json"))
    if not found:
        raise UnreadableResults(f"there is no document in {OUTPUT}; measure first, with `make bench`")
    return found[-1]


def report(results: Results) -> None:
    """Print everything."""
    machine = results.machine
    print(f"{machine['architecture']}, {machine['cores']} cores, {machine['system']}, Python {machine['python']}\n")
    print(f"{rows_table(results)}\n\n{figures_table(results)}\n\n{aims_list(results)}")
    for beginning, reason in results.skipped.items():
        print(f"\nNot measured: {beginning}: {reason}")
    for name, problem in results.failed.items():
        print(f"\nFAILED {name}\n{problem}")


def check(arguments: argparse.Namespace, results: Results) -> int:
    """Compare with the accepted figures, and return the exit code. What seems worse is measured again, if it can be."""
    accepted = read_accepted()
    compared = compare(results, accepted)
    if compared.worse and not arguments.source:
        sections = sorted({change.measured.section for change in compared.worse})
        print(f"\nSeems worse, so it is measured again: {', '.join(sections)}", file=sys.stderr)
        results = measure(arguments, sections, results)
        if results.failed:
            report(results)
            return 1
        compared = compare(results, accepted)
    if results.machine != accepted.machine:
        print(f"\nThe accepted figures are of another kind of machine: {dict(accepted.machine)}")
    print_comparison(compared)
    return 1 if compared.failed else 0


def print_comparison(compared: Comparison) -> None:
    """Print what became of the accepted figures."""
    print(f"\n{len(compared.same)} figures are as accepted, within the noise of their rounds.")
    for change in compared.better:
        print(f"better  {change.describe()}")
    for name in compared.unknown:
        print(f"new     {name}: nothing is accepted yet")
    for name in compared.skipped:
        print(f"skipped {name}")
    for name in compared.missing:
        print(f"MISSING {name}: accepted, and not measured any more")
    for change in compared.worse:
        print(f"WORSE   {change.describe()}")


def leave(number: int, frame: object) -> None:
    """End as after an error, so that what was started is stopped."""
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, leave)
    sys.exit(main(sys.argv[1:]))
