"""Hooks of MkDocs: pages from outside docs/, links to files that are no pages, and folders in the navigation."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {
    "README.md": "quick-start.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "clients/go/README.md": "clients/go.md",
    "clients/java/README.md": "clients/java.md",
    "clients/rust/README.md": "clients/rust.md",
    "clients/typescript/README.md": "clients/typescript.md",
    "examples/README.md": "examples/README.md",
    "examples/liaison/README.md": "examples/liaison.md",
}
"""Files outside docs/ that are pages of the site, by their places there."""
SOURCES = {page: source for source, page in OUTSIDE.items()}
FENCED = re.compile(r"^( *)```.*?^ *```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace a folder in the navigation, such as `api/`, by its pages."""
    config.nav = [each for entry in config.nav or [] for each in expand(entry)]
    return config


def expand(entry: Any) -> list[Any]:
    """Return the entries of the navigation that an entry stands for: the pages of a folder, or itself."""
    match entry:
        case list():
            return [each for inner in entry for each in expand(inner)]
        case dict():
            return [
                {title: inner if isinstance(inner, str) and not inner.endswith("/") else expand(inner)}
                for title, inner in entry.items()
            ]
        case str() if entry.endswith("/"):
            pages = sorted((ROOT / "docs" / entry).glob("*.md"), key=lambda page: (page.name != "README.md", page.name))
            return [entry + page.name for page in pages]
    return [entry]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links that cross the border of docs/ to pages, to the repository, or to copies of files."""
    uri = page.file.src_uri
    source = SOURCES.get(uri, f"docs/{uri}")
    hidden: list[str] = []

    def hide(found: re.Match[str]) -> str:
        hidden.append(found[0])
        return f"\0{len(hidden) - 1}\0"

    def rewrite(found: re.Match[str]) -> str:
        text, target = found.groups()
        path, _, anchor = target.partition("#")
        if not path or ":" in path:
            return found[0]
        place = os.path.normpath(Path(source).parent / path)
        target = find_target(place, config, files)
        if target is None:
            return text
        if ":" not in target:
            target = os.path.relpath(target, Path(uri).parent)
        return f"[{text}]({target}{'#' if anchor else ''}{anchor})"

    rewritten = LINK.sub(rewrite, FENCED.sub(hide, markdown))
    return re.sub("\0(\\d+)\0", lambda found: hidden[int(found[1])], rewritten)


def find_target(place: str, config: MkDocsConfig, files: Files) -> str | None:
    """Return where a file of the repository is on the site, or its URL in the repository; None if nowhere."""
    if place in OUTSIDE:
        return OUTSIDE[place]
    if place.startswith("docs/"):
        return place.removeprefix("docs/")
    if config.repo_url:
        return f"{config.repo_url.rstrip('/')}/blob/HEAD/{place}"
    if (ROOT / place).is_dir() or place.endswith(".md"):
        return None
    copy = f"files/{place}"
    if files.get_file_from_path(copy) is None:
        files.append(File.generated(config, copy, abs_src_path=str(ROOT / place)))
    return copy
