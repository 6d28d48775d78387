"""A task that says canceled has done nothing, whichever bridge is asked, over every binding."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bridge.a2a.bindings import BINDINGS, Answered, Binding
from tests.bridge.a2a.talking import calling
from tests.harness import GrpcCaller, Peers, peering, running, settings
from tests.waiting import wait_until

ATTEMPTS = 10


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GrpcCaller, Peers, Peers]]:
    """A server with two bridges before it."""
    wanted = settings(tmp_path_factory.mktemp("canceling"))
    with running(wanted) as app, peering(wanted, app.target) as first, peering(wanted, app.target) as second:
        core = GrpcCaller(app.target)
        yield core, first, second
        core.close()


@pytest.mark.parametrize("kind", BINDINGS)
@pytest.mark.parametrize("bridges", [1, 2])
def test_a_canceled_task_recorded_nothing_and_any_other_has_its_result(
    product: tuple[GrpcCaller, Peers, Peers], kind: type[Binding], bridges: int
) -> None:
    core, *peers = product
    sending, canceling = kind(peers[0]), kind(peers[bridges - 1])
    prefix = f"{kind.__name__} {bridges}:"
    ended = {f"{prefix} {number}": race(sending, canceling, f"{prefix} {number}") for number in range(ATTEMPTS)}
    recorded = {title for title in recorded_titles(core) if title.startswith(prefix)}
    assert recorded == {title for title, answer in ended.items() if answer.state == "completed"}


def race(sending: Binding, canceling: Binding, title: str) -> Answered:
    """Return the ended task of a call that records a decision and is canceled at once."""
    call = calling("cstp.recordDecision", decision={"title": title})
    task_id = sending.send(call, at_once=True).task["id"]
    answer = canceling.cancel(task_id)

    def has_ended() -> bool:
        return canceling.get(task_id).state in ("canceled", "completed")

    wait_until(has_ended, "the task has ended")
    ended = canceling.get(task_id)
    if ended.state == "canceled":
        assert answer.state == "canceled"
        assert not ended.task.get("artifacts")
    else:
        assert answer.reason == "TASK_NOT_CANCELABLE"
        assert ended.task["artifacts"]
    return ended


def recorded_titles(core: GrpcCaller) -> set[str]:
    """Return the titles of all decisions."""
    titles: set[str] = set()
    token = ""
    while True:
        page = core.call("cstp.listDecisions", {"pageSize": 100, "pageToken": token}).result
        assert page is not None
        titles |= {decision["title"] for decision in page["decisions"]}
        token = page.get("nextPageToken", "")
        if not token:
            return titles
