"""The documentation site: it builds strictly, reads as on GitHub, and leads to what is outside docs/."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

pytest.importorskip("mkdocs", reason="the site is built with mkdocs-material, of the extra dev")
ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
REPOSITORY = "https://code.example.com/cstp"
STRUCTURE = {"h1", "h2", "h3", "h4", "li", "pre", "table", "tr", "blockquote", "strong"}


class TagReader(HTMLParser):
    """Notes the tags by which a page is structured, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        if tag in STRUCTURE:
            self.found.append(tag)


def build(folder: Path, environment: Mapping[str, str]) -> Path:
    """Build the site into a folder, and fail on any warning."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def read_page(site: Path, page: str) -> str:
    """Return the HTML of the text of a page, without the navigation around it."""
    path = site / page.removesuffix(".md") / "index.html"
    if page.endswith("README.md"):
        path = site / Path(page).parent / "index.html"
    html = path.read_text(encoding="utf-8")
    return html[html.index("<article") : html.index("</article>")]


def structure_of(html: str) -> list[str]:
    """Return the tags by which a page is structured."""
    reader = TagReader()
    reader.feed(html)
    return reader.found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as it is built where the repository has no address."""
    return build(tmp_path_factory.mktemp("site"), {"REPOSITORY_URL": "", "SITE_URL": ""})


def test_every_page_has_the_structure_that_github_shows(site: Path) -> None:
    markdown = MarkdownIt("commonmark").enable("table")
    different = [
        page
        for path in PAGES
        if structure_of(read_page(site, page := path.relative_to(ROOT / "docs").as_posix()))
        != structure_of(markdown.render(path.read_text(encoding="utf-8")))
    ]
    assert different == []


def test_a_link_out_of_docs_leads_to_a_page_or_a_copy(site: Path) -> None:
    text = read_page(site, "deployment/containers.md")
    assert 'href="../../files/deploy/Dockerfile"' in text
    assert (site / "files" / "deploy" / "Dockerfile").read_bytes() == (ROOT / "deploy" / "Dockerfile").read_bytes()
    assert 'href="quick-start/#a-session"' in read_page(site, "README.md")


def test_a_link_out_of_docs_leads_to_the_repository_where_it_has_an_address(tmp_path: Path) -> None:
    built = build(tmp_path / "site", {"REPOSITORY_URL": REPOSITORY})
    text = read_page(built, "deployment/containers.md")
    assert f'href="{REPOSITORY}/blob/HEAD/deploy/Dockerfile"' in text
    assert f'href="{REPOSITORY}/blob/HEAD/deploy"' in text
    assert not (built / "files").exists()
