"""Writing records and reading them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from cstp_grpc.core.decisions.model import DecisionContent, SourceLinks
from cstp_grpc.modules.importing import (
    FieldMapping,
    ParsedRecord,
    ReadResult,
    SkippedRecord,
    load_mapping,
    read_records,
)

NYGARD = """\
# {number}. {title}

Date: {date}

## Status

{status}

## Context

{context}

## Decision

We will do so.

## Consequences

{consequences}
"""


def nygard(
    number: int = 1,
    title: str = "Keep sessions in Redis",
    date: str = "2017-09-04",
    status: str = "Accepted",
    context: str = "Sessions are read with every request.",
    consequences: str = "Losing Redis logs everybody out.",
) -> str:
    """Return a record in Nygard's format."""
    return NYGARD.format(
        number=number, title=title, date=date, status=status, context=context, consequences=consequences
    )


class Folder:
    """A folder with files that a test writes and reads."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path

    def write(self, name: str, text: str | bytes) -> Path:
        """Write a file, and the folders it lies in, and return its path."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def read(self, *names: str, mapping: FieldMapping | None = None) -> list[ReadResult]:
        """Read files, or the whole folder, and return all results."""
        return list(read_records([self.path / name for name in names] or [self.path], mapping=mapping))

    def parsed(self, name: str = ".") -> ParsedRecord:
        """Read a file that holds a record and return it."""
        (result,) = self.read(name)
        assert isinstance(result, ParsedRecord), result
        return result

    def skipped(self, name: str = ".") -> SkippedRecord:
        """Read a file that is skipped and return why."""
        (result,) = self.read(name)
        assert isinstance(result, SkippedRecord), result
        return result

    def content(self, text: str, name: str = "0001-record.md") -> DecisionContent:
        """Write a record and return what was read from it."""
        self.write(name, text)
        return self.parsed(name).record.content

    def links(self, name: str) -> SourceLinks:
        """Return the links of a record, by the names of their files."""
        links = self.parsed(name).record.links
        return SourceLinks(
            **{
                kind: tuple(source.rpartition("/")[2] for source in getattr(links, kind))
                for kind in ("supersedes", "superseded_by", "depends_on", "relates_to")
            }
        )

    def mapping(self, text: str) -> FieldMapping:
        """Write a mapping file and return what is in it."""
        return load_mapping(self.write("../mapping.yaml", text))


def git(folder: Path, *arguments: str, date: str = "2020-02-03T04:05:06+00:00") -> None:
    """Run git as somebody on some day."""
    identity = ["-c", "user.name=Tester", "-c", "user.email=tester@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(
        ["git", *identity, *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        env={
            "PATH": "/usr/bin:/bin:/usr/local/bin:/opt/homebrew/bin",
            "GIT_AUTHOR_DATE": date,
            "GIT_COMMITTER_DATE": date,
        },
    )
