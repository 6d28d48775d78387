"""record, show, list, review, share and unshare."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

from cstp_grpc.client import CstpClient
from tests.cli.conftest import Server
from tests.harness import TOKENS


def record(server: Server, title: str, *options: object, agent: str = "alice") -> str:
    decision_id: str = server.json("record", title, *options, agent=agent)["decision"]["id"]
    return decision_id


def test_a_recorded_decision_is_shown_whole(server: Server) -> None:
    decision_id = record(
        server,
        "Use PostgreSQL for orders",
        *("--context", "Two stores got out of step", "--category", "database", "--stakes", "high"),
        *("--confidence", 0.8, "--reason", "analysis=lost orders", "--tag", "orders", "--project", "shop"),
        *("--date", "2026-01-31"),
    )
    shown = server.ok("show", decision_id)
    for expected in (
        "Use PostgreSQL for orders",
        "Two stores got out of step",
        "database",
        "high",
        "0.8",
        "analysis: lost orders",
        "orders",
        "shop",
        "2026-01-31 00:00:00Z",
        "private",
        "alice",
    ):
        assert expected in shown


def test_a_private_decision_is_nobody_elses(server: Server) -> None:
    decision_id = record(server, "Use PostgreSQL")
    result = server("show", decision_id, agent="bob")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")


def test_sharing_and_taking_it_back(server: Server) -> None:
    decision_id = record(server, "Use PostgreSQL", "--context", "secret circumstances")
    assert server.ok("share", decision_id) == f"{decision_id} is shared.\n"
    seen = server.json("show", decision_id, agent="bob")["decision"]
    assert seen["title"] == "Use PostgreSQL"
    assert "context" not in seen
    assert server.json("unshare", decision_id)["decision"]["visibility"] == "private"
    assert server("show", decision_id, agent="bob").exit_code == 1


def test_a_review_keeps_the_lesson_unless_it_brings_one(server: Server) -> None:
    decision_id = record(server, "Use PostgreSQL")
    server.ok("review", decision_id, "--outcome", "partial", "--notes", "Add an index")
    reviewed = server.json("review", decision_id, "--outcome", "success")["decision"]
    assert (reviewed["outcome"], reviewed["notes"], reviewed["status"]) == ("success", "Add an index", "reviewed")


def test_a_listing_goes_over_as_many_pages_as_it_takes(server: Server) -> None:
    for number in range(7):
        record(server, f"Decision {number}", "--date", f"2026-01-0{number + 1}")
    listed = server.json("list", "--limit", 5)
    assert [found["title"] for found in listed["decisions"]] == [f"Decision {number}" for number in (6, 5, 4, 3, 2)]
    assert listed["nextPageToken"] == ""
    assert "Decision 0" in server.ok("list", "--before", "2026-01-02")
    assert server.ok("list", "--tag", "nothing") == "No matching decisions.\n"


def test_links_name_other_decisions(server: Server) -> None:
    old = record(server, "Use MongoDB")
    new = record(server, "Use PostgreSQL", "--supersedes", old)
    assert server.json("show", old)["decision"]["status"] == "superseded"
    assert server.json("show", new)["decision"]["links"]["supersedes"] == [old]


def test_a_request_id_makes_a_repetition_safe(server: Server) -> None:
    first = record(server, "Use PostgreSQL", "--request-id", "mine-1")
    assert record(server, "Use PostgreSQL", "--request-id", "mine-1") == first
    assert server("record", "Use MongoDB", "--request-id", "mine-1").exit_code == 1


def test_titles_are_printed_as_they_are_and_steer_no_terminal(server: Server) -> None:
    record(server, "Use [bold]markup[/bold] :smile: \x1b[31mred\x07", "--share")
    shown = server.ok("list", agent="bob")
    assert "Use [bold]markup[/bold] :smile: \N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER}" in shown
    assert "\x1b" not in shown


def test_what_is_recorded_tells_a_revision_that_searches_take(server: Server) -> None:
    printed = server.ok("record", "Use PostgreSQL for orders").split()
    revision = printed[printed.index("revision") + 1]
    for command in ("query", "announce"):
        assert "Use PostgreSQL for orders" in server.ok(command, "PostgreSQL for orders", "--min-revision", revision)
        refused = server(command, "PostgreSQL for orders", "--min-revision", "1-0123456789ab")
        assert refused.exit_code == 1
        assert "minJournalRevision" in refused.stderr


def test_due_reviews_are_listed_and_earlier_ones_are_shown(server: Server) -> None:
    late = record(server, "Try the new cache", "--review-by", "2026-02-01")
    later = record(server, "Try the old cache", "--review-by", "2026-01-01")
    record(server, "Never mind")
    listed = [item["id"] for item in server.json("review", "--due")["decisions"]]
    assert [key for key in listed if key in (late, later)] == [later, late]
    assert "2026-02-01" in server.ok("review", "--due")
    server.ok("review", late, "--outcome", "success", "--notes", "Fast")
    server.ok("review", late, "--outcome", "failure", "--notes", "Not fast")
    assert late not in server.ok("review", "--due")
    shown = server.ok("show", late)
    assert "success by alice: Fast" in shown
    assert "Not fast" in shown


def test_a_review_without_an_outcome_is_wrong_usage(server: Server) -> None:
    for arguments in (["dec-1"], ["--outcome", "success"], ["--due", "dec-1"]):
        result = server("review", *arguments)
        assert result.exit_code != 0
        assert "--due" in result.stderr


def test_an_update_changes_what_is_given_and_shows_what_was_before(server: Server) -> None:
    decision_id = record(server, "Use PostgreSQL", "--category", "database", "--tag", "orders")
    options = ("--title", "Use PostgreSQL 18", "--remove", "category", "--tag", "sql", "--revision", 1)
    updated = server.json("update", decision_id, *options)["decision"]
    assert (updated["title"], updated["tags"], updated["history"]["revision"]) == ("Use PostgreSQL 18", ["sql"], 2)
    assert "category" not in updated
    shown = server.ok("show", decision_id)
    assert "Use PostgreSQL\n" in shown
    assert "revision 2" in shown
    result = server("update", decision_id, "--title", "Use MySQL", "--revision", 1)
    assert result.exit_code == 1
    assert "is 2, not 1" in result.stderr


def test_an_update_of_nothing_is_wrong_usage(server: Server) -> None:
    result = server("update", "dec-1")
    assert result.exit_code != 0
    assert "--title" in result.stderr


def test_a_deleted_decision_is_gone(server: Server) -> None:
    decision_id = record(server, "Use PostgreSQL")
    assert server("delete", decision_id).exit_code != 0
    assert server.ok("show", decision_id)
    assert server.ok("delete", decision_id, "--yes") == f"{decision_id} is deleted.\n"
    assert server("show", decision_id).exit_code == 1
    assert server.json("delete", decision_id, "--yes")["id"] == decision_id


def test_a_graph_is_shown_as_text_mermaid_and_svg(server: Server) -> None:
    old = record(server, 'Use "PostgreSQL" <b>9</b> & wait')
    new = record(server, "Use PostgreSQL 18", "--supersedes", old)
    third = record(server, "Move the orders")
    server.ok("link", third, "--depends-on", new, "--relates-to", old)
    server.ok("review", new, "--outcome", "success")
    text = server.ok("graph", old)
    assert text.splitlines()[0].startswith(f'Use "PostgreSQL" <b>9</b> & wait ({old}, superseded')
    assert f"superseded by Use PostgreSQL 18 ({new}, success" in text
    assert f"relates to {text.splitlines()[0]}" not in text
    assert text.count("(see above)") == 1
    mermaid = server.ok("graph", old, "--format", "mermaid")
    assert mermaid.startswith("flowchart LR\n")
    assert "#34;PostgreSQL#34; #60;b#62;9" in mermaid
    assert mermaid.count("|supersedes|") == 1
    svg = ElementTree.fromstring(server.ok("graph", old, "--format", "svg"))
    # The background, three decisions, and the outcomes of the legend.
    assert len(svg.findall(".//{*}rect")) == 4 + 2
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[-5:] == ["supersedes", "depends on", "relates to", "success", "no outcome yet"]
    assert "Use PostgreSQL 18" in [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert [link["type"] for link in server.json("graph", old, "--depth", 1)["links"]].count("supersedes") == 1


def test_links_are_removed(server: Server) -> None:
    old, new = record(server, "Use PostgreSQL"), record(server, "Use PostgreSQL 18")
    assert server.json("link", new, "--supersedes", old)["decision"]["links"]["supersedes"] == [old]
    assert server.json("show", old)["decision"]["status"] == "superseded"
    assert server.json("link", new, "--supersedes", old, "--remove")["decision"]["links"]["supersedes"] == []
    assert server.json("show", old)["decision"]["status"] == "decided"
    assert server("link", new).exit_code != 0


def test_a_graph_says_that_there_is_more(server: Server) -> None:
    first = record(server, "First")
    for number in range(3):
        record(server, f"Next {number}", "--depends-on", first)
    assert "More decisions are linked" in server.ok("graph", first, "--max-nodes", 2)
    assert "More decisions are linked" not in server.ok("graph", first)


def test_an_export_is_read_back_by_an_import(server: Server, tmp_path: Path) -> None:
    first = record(server, "Keep sessions in Redis", "--context", "It was slow", "--project", "round trip")
    options = ("--reason", "analysis=it is fast", "--tag", "redis", "--review-by", "2027-01-01", "--supersedes", first)
    second = record(server, "Keep sessions in PostgreSQL", *options, "--project", "round trip", "--stakes", "high")
    server.ok("review", second, "--outcome", "partial", "--notes", "Add an index")
    file = tmp_path / "decisions.jsonl"
    assert server.ok("export", "--project", "round trip", "--output", file) == ""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert {line["id"] for line in lines} == {first, second}
    server.ok("import", file, agent="bob")
    filters = ("--project", "round trip", "--by", "bob")
    copies = [json.loads(line) for line in server.ok("export", *filters, agent="bob").splitlines()]
    (new,) = [copy for copy in copies if copy["title"] == "Keep sessions in PostgreSQL"]
    (old,) = [copy for copy in copies if copy["title"] == "Keep sessions in Redis"]
    (line,) = [line for line in lines if line["id"] == second]
    own = ("id", "agent", "source", "links", "reviewedDate", "provenance")
    assert {key: new[key] for key in new if key not in own} == {key: line[key] for key in line if key not in own}
    assert new["links"]["supersedes"] == [old["id"]]
    assert (old["status"], old["context"]) == ("superseded", "It was slow")


def test_an_export_that_cannot_be_written_leaves_what_was_there(server: Server, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "decisions.jsonl"
    result = server("export", "--output", nowhere)
    assert result.exit_code == 1
    assert f"cannot write {nowhere}: No such file or directory" in result.stderr
    folder = tmp_path / "exports"
    folder.mkdir()
    kept = folder / "decisions.jsonl"
    kept.write_text("before", encoding="utf-8")
    result = server("export", "--all", "--output", kept, "--min-confidence", "7")
    assert result.exit_code != 0
    assert [each.read_text(encoding="utf-8") for each in folder.iterdir()] == ["before"]


def test_an_export_without_all_is_of_the_callers_own(server: Server) -> None:
    own, shared = record(server, "Mine"), record(server, "Theirs", "--share", agent="bob")
    exported = {json.loads(line)["id"] for line in server.ok("export").splitlines()}
    assert own in exported
    assert shared not in exported
    assert shared in server.ok("export", "--all")


def test_a_watch_prints_changes_from_a_revision_on(server: Server) -> None:
    begun = server.json("record", "Begin")["decision"]["journalRevision"]
    kept, gone = record(server, "Use a queue", "--project", "watched"), record(server, "Use none")
    server.ok("review", kept, "--outcome", "failure")
    server.ok("delete", gone, "--yes")
    printed = server.ok("watch", "--from-revision", begun, "--limit", 2)
    assert f"failure     Use a queue ({kept}, alice, watched)" in printed
    assert f"deleted     {gone}" in printed
    (line,) = server.ok("watch", "--from-revision", begun, "--limit", 1, "--json").splitlines()
    assert json.loads(line)["decision"]["id"] == kept


def test_duplicates_are_printed_in_groups(server: Server) -> None:
    for _ in range(2):
        record(server, "Put the jobs of the night on a queue", "--project", "twice")
    record(server, "Drop the cache", "--project", "twice")
    printed = server.ok("duplicates", "--project", "twice")
    assert "2 alike, up to 1.00" in printed
    assert printed.count("Put the jobs of the night on a queue") == 2
    assert "3 decisions compared, 1 group of duplicates." in printed
    assert server.json("duplicates", "--project", "twice", "--limit", 1)["compared"] == 3


def test_an_intent_watch_goes_on_behind_a_token(server: Server) -> None:
    with CstpClient(server.app.target, TOKENS["alice"]) as alice, closing(alice.watch_intents()) as intents:
        token = next(intents).resume_token
    server.ok("announce", "Deploy the watched shop", "--stakes", "high", "--category", "operations")
    printed = server.ok("intent", "watch", "--after", token, "--stakes", "high", "--limit", 1)
    assert "Deploy the watched shop (" in printed
    assert ", alice, high, operations)" in printed
    (line,) = server.ok("intent", "watch", "--after", token, "--by", "alice", "--limit", 1, "--json").splitlines()
    assert json.loads(line)["intent"]["agent"] == "alice"
