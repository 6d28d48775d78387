"""Print the notes of a release from CHANGELOG.md. Usage: release_notes.py TAG

It fails unless the tag is `v` and the version of the package, and the changelog has a section of that version.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def read_version() -> str:
    """Return the version of the package, from where packaging reads it."""
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["version"]
    found = re.search(source["pattern"], (ROOT / source["path"]).read_text())
    assert found, source
    return found["version"]


def read_notes(version: str) -> str | None:
    """Return the section of a released version without its heading, or None if there is none."""
    changelog = (ROOT / "CHANGELOG.md").read_text()
    heading = rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d\n"
    found = re.search(rf"{heading}(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE)
    return found and found[1].strip()


def main() -> None:
    """Run the command."""
    (tag,) = sys.argv[1:]
    version = read_version()
    if tag != f"v{version}":
        sys.exit(f"The tag is {tag}, and the version of the package is {version}.")
    notes = read_notes(version)
    if not notes:
        sys.exit(f"CHANGELOG.md has no section '## {version} - DATE'.")
    print(notes)


if __name__ == "__main__":
    main()
