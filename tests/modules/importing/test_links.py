"""Links between Markdown records."""

from __future__ import annotations

import pytest

from cstp_grpc.contract.enums import DecisionStatus, Outcome
from cstp_grpc.core.decisions.model import SourceLinks
from cstp_grpc.modules.importing import ParsedRecord
from tests.modules.importing.folder import Folder, nygard

OTHER = ("0002-other-way.md",)


@pytest.fixture
def records(folder: Folder) -> Folder:
    """A folder with two records to refer to, and a page that is none."""
    folder.write("0002-other-way.md", nygard(2))
    folder.write("0003 third.md", nygard(3))
    folder.write("guide.md", "# A guide\n\nHow we work.\n")
    return folder


@pytest.mark.parametrize(
    ("status", "links"),
    [
        ("Superseded by [2. Other way](0002-other-way.md)", SourceLinks(superseded_by=OTHER)),
        ("Superseded by [2](./0002-other-way.md#decision)", SourceLinks(superseded_by=OTHER)),
        ("Superseded by [2](../records/0002-other-way.md)", SourceLinks(superseded_by=OTHER)),
        ("Superseded by [2](0002-other-way)", SourceLinks(superseded_by=OTHER)),
        ("Superseded by [2](0002-other-way.html)", SourceLinks(superseded_by=OTHER)),
        ("Superseded by [2][]\n\n[2]: 0002-other-way.md", SourceLinks(superseded_by=OTHER)),
        ("Superseded by [2](0007-other-way.md)", SourceLinks(superseded_by=OTHER)),
        ("Superseded by [2](other_way.md)", SourceLinks(superseded_by=OTHER)),
        ("Superseded by [2](0002.md)", SourceLinks(superseded_by=OTHER)),
        ("Superseded by 0007-other-way.md", SourceLinks(superseded_by=OTHER)),
        ("Superseded by ADR-0007-other-way", SourceLinks(superseded_by=OTHER)),
        ("Accepted, see ADR-2-style names", SourceLinks(relates_to=OTHER)),
        ("Accepted, requires 2 servers", SourceLinks()),
        ("Accepted, requires 2, and more", SourceLinks(depends_on=OTHER)),
        ("Superseded by ADR-0002", SourceLinks(superseded_by=OTHER)),
        ("Superseded by ADR 2", SourceLinks(superseded_by=OTHER)),
        ("Superseded by 0002.", SourceLinks(superseded_by=OTHER)),
        ("Replaced by #2", SourceLinks(superseded_by=OTHER)),
        ("Superseded by [3](0003%20third.md)", SourceLinks(superseded_by=("0003 third.md",))),
        ("Accepted\n\nSupersedes [2](0002-other-way.md)", SourceLinks(supersedes=OTHER)),
        ("Accepted\n\nSupersedes:\n\n- ADR-2\n- ADR-3", SourceLinks(supersedes=("0002-other-way.md", "0003 third.md"))),
        ("Accepted\n\nThis ADR in part supersedes [2](0002-other-way.md).", SourceLinks(relates_to=OTHER)),
        ("Accepted (partially superseded by ADR-2)", SourceLinks(relates_to=OTHER)),
        ("Accepted\n\nAmends [2](0002-other-way.md)", SourceLinks(relates_to=OTHER)),
        ("Accepted, depends on ADR-0002", SourceLinks(depends_on=OTHER)),
        (
            "Accepted, supersedes ADR-2, depends on ADR-3",
            SourceLinks(supersedes=OTHER, depends_on=("0003 third.md",)),
        ),
        ("Superseded by 2020-01-01", SourceLinks()),
        ("Superseded by [ADR-2](https://example.org/0002-other-way.md)", SourceLinks()),
        ("Accepted, see [the guide](guide.md) and [us](mailto:us@example.org)", SourceLinks()),
        ("Accepted, supersedes [1](0001-this.md)", SourceLinks()),
        (f"Superseded by [x]({'x' * 300}.md)", SourceLinks()),
        ("Accepted, see [a picture](0002-other-way.png) and [numbers](0002-other-way.csv)", SourceLinks()),
        ("Superseded by [x](//[) and [y](%00.md)", SourceLinks()),
    ],
)
def test_a_status_line_becomes_links(records: Folder, status: str, links: SourceLinks) -> None:
    records.write("0001-this.md", nygard(1, status=status))
    assert records.links("0001-this.md") == links


@pytest.mark.parametrize(
    ("front", "links"),
    [
        ("status: superseded by ADR-0002", SourceLinks(superseded_by=OTHER)),
        ('status: "superseded by [ADR-0002](0002-other-way.md)"', SourceLinks(superseded_by=OTHER)),
        ("superseded-by: 0002-other-way.md", SourceLinks(superseded_by=OTHER)),
        ("supersedes: [2, ADR-3]", SourceLinks(supersedes=("0002-other-way.md", "0003 third.md"))),
        ("supersedes: 0002", SourceLinks(supersedes=OTHER)),
        ("related: 2, 3", SourceLinks(relates_to=("0002-other-way.md", "0003 third.md"))),
        ("depends-on: '[two](0002-other-way.md)'", SourceLinks(depends_on=OTHER)),
    ],
)
def test_front_matter_becomes_links(records: Folder, front: str, links: SourceLinks) -> None:
    records.write("0001-this.md", f"---\n{front}\n---\n# A\n\n## Context\n\nB\n\n## Decision\n\nC\n")
    assert records.links("0001-this.md") == links


def test_a_section_of_links_says_how_records_relate(records: Folder) -> None:
    text = nygard(1) + "\n## Links\n\n* Supersedes [2](0002-other-way.md)\n* Refined by [3](<0003 third.md>)\n"
    records.write("0001-this.md", text)
    assert records.links("0001-this.md") == SourceLinks(supersedes=OTHER, relates_to=("0003 third.md",))


def test_a_link_in_the_text_relates_and_a_stronger_one_wins(records: Folder) -> None:
    context = "As in [2](0002-other-way.md) and [3](<0003 third.md>), but not [the guide](guide.md)."
    records.write("0001-this.md", nygard(1, context=context, status="Accepted\n\nSupersedes ADR-2"))
    assert records.links("0001-this.md") == SourceLinks(supersedes=OTHER, relates_to=("0003 third.md",))


def test_a_record_that_says_elsewhere_by_what_it_is_superseded_is_superseded(records: Folder) -> None:
    records.write("0001-this.md", "---\nstatus: accepted\nsuperseded-by: 2\n---\n# A\n\n## Decision\n\nB\n")
    parsed = records.parsed("0001-this.md")
    assert parsed.record.content.status is DecisionStatus.SUPERSEDED
    assert parsed.record.content.outcome is Outcome.PARTIAL
    assert "taken as superseded, since a link names the successor" in parsed.notes


@pytest.mark.parametrize(("named", "told"), [("[old](0007-gone.md)", "old"), ("ADR-0007", "ADR-0007"), ("7", "7")])
def test_a_replacement_that_is_not_there_is_reported(records: Folder, named: str, told: str) -> None:
    records.write("0001-this.md", nygard(1, status=f"Superseded by {named}"))
    parsed = records.parsed("0001-this.md")
    assert parsed.record.links == SourceLinks()
    assert f"superseded by {told!r}: there is no such record" in parsed.notes


@pytest.mark.parametrize(
    ("status", "remark"),
    [
        ("Superseded by [2](0002-former-name.md)", "superseded by '2': there is no such record"),
        ("Superseded by 0002-former-name.md", "superseded by '0002-former-name.md': there is no such record"),
        ("Accepted\n\nAs in [two](0002-former-name.md).", "relates to 'two': there is no such record"),
    ],
)
def test_a_link_to_another_name_is_reported_and_never_taken_by_its_number(
    records: Folder, status: str, remark: str
) -> None:
    records.write("0001-this.md", nygard(1, status=status))
    parsed = records.parsed("0001-this.md")
    assert parsed.record.links == SourceLinks()
    assert remark in parsed.notes


def test_links_follow_records_that_were_all_renumbered(folder: Folder) -> None:
    # Each name but the first has the number that its predecessor in the list had when the links were written.
    names = ("use-redis", "use-kafka", "use-postgres")
    for number, name in enumerate(names, 2):
        links = "\n".join(f"- [{other}]({old:04}-{other}.md)" for old, other in enumerate(names, 1) if other != name)
        folder.write(f"{number:04}-{name}.md", nygard(number, name) + f"\n## Links\n\n{links}\n")
    for number, name in enumerate(names, 2):
        found = folder.links(f"{number:04}-{name}.md")
        assert set(found.relates_to) == {f"{n:04}-{other}.md" for n, other in enumerate(names, 2) if other != name}


def test_a_slug_that_two_files_have_is_no_reference(records: Folder) -> None:
    records.write("0004-other-way.md", nygard(4))
    records.write("0001-this.md", nygard(1, status="Superseded by [2](0009-other-way.md)"))
    assert records.links("0001-this.md") == SourceLinks()


def test_pages_that_are_no_records_are_linked_without_a_remark(records: Folder) -> None:
    records.write("0001-this.md", nygard(1, context="See [the guide](guide.md), [gone](gone.md), [me](0001-this.md)."))
    assert records.parsed("0001-this.md").notes == ()


def test_a_number_that_two_files_have_is_no_reference(records: Folder) -> None:
    records.write("0002-twin.md", nygard(2))
    records.write("0001-this.md", nygard(1, status="Superseded by ADR-2"))
    assert records.links("0001-this.md") == SourceLinks()


def test_links_are_the_same_whatever_is_imported_beside(records: Folder) -> None:
    records.write("0001-this.md", nygard(1, status="Superseded by ADR-2"))
    alone = records.parsed("0001-this.md").record
    assert alone in [found.record for found in records.read() if isinstance(found, ParsedRecord)]
