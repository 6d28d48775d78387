"""The `cstp doctor` command: faults of an installation and their fixes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from cstp_grpc.cli.command_decorators import config_option, current_state, seconds_option, with_output
from cstp_grpc.cli.output import Output, to_printable
from cstp_grpc.common.extras import require_extra

if TYPE_CHECKING:
    from cstp_grpc.server.status.machine_checks import Diagnosis

EXIT_WRONG: Final = 3
"""The exit code if something is wrong."""
EXIT_WARNED: Final = 4
"""The exit code if there are only warnings."""
PROBE_SECONDS: Final = 3.0
"""Seconds to wait for a peer by default, as of `cstp peers`."""

SIGNS: Final = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "error": ("wrong", "red")}
"""The word and the colour of a finding, by its status."""


@click.command()
@click.option("--thorough", is_flag=True, help="Read all pages of a SQLite database, which takes a while.")
@seconds_option(PROBE_SECONDS, "How long to wait for a peer.")
@config_option
@with_output
def doctor_command(out: Output, thorough: bool, seconds: float) -> None:
    """Check an installation and suggest fixes.

    Checks the configuration, the rule set, the disk, the database, the clock, the certificates, the embedder,
    the issuers of JWTs, the search engine, Redis and the peers. Nothing is changed, and servers may run. Exit code 0
    means that all is well, 3 that something is wrong, 4 that there are warnings only.

    \b
    Examples:
      cstp doctor
      cstp doctor --config /etc/cstp/cstp.yaml --thorough --json
    """
    require_extra("server")
    # Imported here: it loads the server, which `--help` does without.
    from cstp_grpc.cli.server_examination import examine_server

    findings = examine_server(current_state().settings, seconds, thorough=thorough)
    if out.json_wanted:
        out.document({"findings": [finding_to_json(finding) for finding in findings]})
    for finding in findings:
        print_finding(out, finding)
    found = {finding.status.value for finding in findings}
    code = EXIT_WRONG if "error" in found else EXIT_WARNED if "warning" in found else 0
    click.get_current_context().exit(code)


def finding_to_json(finding: Diagnosis) -> dict[str, str]:
    found = {"check": finding.check, "status": finding.status.value, "message": finding.message}
    return found if finding.advice is None else {**found, "advice": finding.advice}


def print_finding(out: Output, finding: Diagnosis) -> None:
    from cstp_grpc.cli.console import Text

    word, colour = SIGNS[finding.status.value]
    out.line(Text().append(f"{word:8}", colour).append(f"{finding.check:14}{to_printable(finding.message)}"))
    if finding.advice is not None:
        out.line(f"{'':22}{to_printable(finding.advice)}")
