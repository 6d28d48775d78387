"""compact: summaries of old decisions."""

from __future__ import annotations

from tests.cli.conftest import Server


def add_old(server: Server, count: int) -> list[str]:
    return [
        server.json("record", f"Resize the pool, step {number}", "--category", "database", "--outcome", "success",
                    "--date", "2025-01-01", "--notes", "Watch it.")["decision"]["id"]
        for number in range(count)
    ]  # fmt: skip


def test_a_dry_run_shows_the_summary_that_the_command_then_writes(server: Server) -> None:
    ids = add_old(server, 5)
    drafted = server.ok("compact", "--dry-run")
    assert "Summary of 5 decisions on database, 2025-01-01 to 2025-01-01" in drafted
    assert drafted.endswith("Would write 1 summary of 5 further decisions.\n")
    assert server.json("list", "--tag", "summary")["decisions"] == []
    written = server.json("compact")
    (summary,) = written["summaries"]
    assert summary["links"]["summarizes"] == sorted(ids)
    assert server.ok("compact").endswith("Wrote 0 summaries of 0 further decisions.\n")
    shown = server.ok("show", summary["id"])
    assert "5 decisions of alice: 5 success." in shown
    assert ids[0] in shown
    assert f"summarizes Resize the pool, step 0 ({ids[0]}" in server.ok("graph", summary["id"])
    assert "summarized by Summary of 5 decisions" in server.ok("graph", ids[0])
    # They fill no session context any more.
    assert [item["id"] for item in server.json("session-context")["summaries"]] == [summary["id"]]
    assert server.json("session-context")["lessons"] == []


def test_filters_and_numbers_choose_the_decisions(server: Server) -> None:
    add_old(server, 3)
    assert server.json("compact", "--min-decisions", "4")["summaries"] == []
    assert server.json("compact", "--min-decisions", "2", "--category", "cache")["summaries"] == []
    assert server.json("compact", "--min-decisions", "2", "--before", "2024-01-01")["summaries"] == []
    assert len(server.json("compact", "--min-decisions", "2", "--category", "database")["summaries"]) == 1


def test_a_number_out_of_range_is_refused(server: Server) -> None:
    result = server("compact", "--min-decisions", "1")
    assert result.exit_code == 2
    assert "--min-decisions" in result.stderr
