"""Write `docs/configuration/` from the settings, a page for each section of the configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from cstp_grpc.cli.config import config_markdown, wrap_text

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "configuration"


def split_pages(document: str) -> Mapping[str, str]:
    """Return the pages of the document that `cstp config docs` prints, by their file names."""
    introduction, *parts = re.split(r"^(?=## )", document, flags=re.MULTILINE)
    top, sections = parts[0], parts[1:]
    pages: dict[str, str] = {}
    listed = []
    for part in sections:
        name = re.split(r"[.\[]", part.removeprefix("## ").partition("\n")[0])[0]
        file = f"{name}.md"
        if file not in pages:
            part = part.removeprefix("#")
            listed.append(list_item(f"[`{name}`]({file})", part.split("\n\n")[1]))
        pages[file] = pages.get(file, "") + part
    first_page = f"{introduction}## Sections\n\n{chr(10).join(listed)}\n\n{top}"
    return {"README.md": trim(first_page), **{file: trim(text) for file, text in pages.items()}}


def list_item(link: str, purpose: str) -> str:
    """Return an item of the list of sections."""
    return wrap_text(f"- {link}: {purpose}").replace("\n", "\n  ")


def trim(page: str) -> str:
    """Return a page with one line break at its end."""
    return page.rstrip("\n") + "\n"


def main() -> None:
    """Write the pages and remove those of sections that are gone."""
    pages = split_pages(config_markdown())
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.md"):
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
