"""The example agents of a developer's first server, and their removal."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cstp_grpc.cli.developer_setup import example_agents, is_new_journal, read_activity
from cstp_grpc.cli.example_activity import read_steps, replay_activity
from cstp_grpc.client import CstpClient
from tests.cli.conftest import Invoke
from tests.cli.serving import ENVIRONMENT, READY, started
from tests.harness import TOKENS, running, settings

NOW = datetime(2026, 11, 28, 12, 30, tzinfo=UTC)
"""After all times of the file, so that the day of the start has all routine steps."""


def test_the_activity_is_a_year_of_decisions_and_a_week_of_actions() -> None:
    steps = sorted(read_steps(NOW))
    assert all(step.at < NOW for step in steps)
    kinds = Counter(step.kind for step in steps)
    assert kinds["decision"] >= 20
    assert kinds["review"] >= 18
    assert kinds["action"] >= 80
    actions = [step.at for step in steps if step.kind == "action"]
    assert NOW - timedelta(days=7) < min(actions)
    days = [step.at for step in steps if step.kind in ("decision", "review")]
    assert max(days) - min(days) > timedelta(days=340)
    assert {step.agent for step in steps} | {read_activity()["approver"]} == set(example_agents())
    assert all(agent.startswith("example-") for agent in example_agents())


def test_each_screen_has_something_to_show(tmp_path: Path) -> None:
    wanted = settings(tmp_path / "data", cstp={"guardrails": {"preset": "standard"}})
    (tmp_path / "data").mkdir()
    assert is_new_journal(wanted)
    assert replay_activity(wanted, NOW) > 120
    assert not is_new_journal(wanted)
    clock = iter(NOW + timedelta(seconds=each) for each in range(1_000_000))
    with (
        running(wanted, clock=lambda: next(clock)) as app,
        CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as client,
    ):
        approvals = Counter(each.status for each in client.list_approvals())
        decisions = list(client.list_decisions())
        intents = list(client.list_intents())
        agents = {each.name: each.counts for each in client.list_agents()}
    # Pending, denied and used ones.
    assert len(approvals) >= 3
    assert len({decision.agent for decision in decisions}) == 4
    assert sum(decision.HasField("reviewed_date") for decision in decisions) >= 18
    assert {intent.HasField("closing") for intent in intents} == {True, False}
    assert agents["example-coder"].checks > 20
    assert agents["example-deployer"].blocked >= 2


@pytest.mark.slow
def test_a_first_start_has_the_activity_and_one_command_removes_it(home: Path, invoke: Invoke) -> None:
    environment = {**ENVIRONMENT, "CSTP_EXAMPLES": "all", "CSTP_CSTP__GUARDRAILS__PRESET": "standard"}
    for start in range(2):
        with started("serve", "--dev", environment=environment) as process:
            process.wait_for(READY)
            assert ("a week of example agents" in process.value("data")) == (start == 0)
            as_developer = ("--agent", "developer")
            if start == 0:
                assert "example-deployer" in invoke("agents", *as_developer).stdout
                assert "60 imported decisions" in invoke("erase", "--examples", "--dry-run", *as_developer).stdout
                erased = invoke("erase", "--examples", "--yes", *as_developer)
                assert erased.exit_code == 0, erased.output
            assert invoke("list", *as_developer).stdout.startswith("No ")
            # The numbers of the last ones stay, with no name.
            for listing in (("approvals", "list"), ("intents",)):
                assert "example-" not in invoke(*listing, *as_developer).stdout
            assert process.end() == 0
    verified = invoke("audit", "verify", env={"CSTP_DATA_DIR": str(home / "var")})
    assert verified.exit_code == 0, verified.output
