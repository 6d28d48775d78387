"""Give the package the README and the links that package indexes show; hatchling runs it with each build.

An index shows the README without the repository, so relative links lead nowhere there. If CSTP_REPOSITORY_URL names the
repository, as in the release workflow, links and pictures lead to the files of the released version, and the package
has URLs. Otherwise, links become plain text and pictures are left out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?!https?://|#)(?P<target>[^)\s]+)\)")
CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def rewrite_links(readme: str, repository: str, tag: str) -> str:
    """Return a README with absolute links, or without relative ones if no repository is known."""

    def rewrite(link: re.Match[str]) -> str:
        if not repository:
            return "" if link["picture"] else link["text"]
        kind = "raw" if link["picture"] else "blob"
        return f"{link['picture']}[{link['text']}]({repository}/{kind}/{tag}/{link['target']})"

    # With a group, the parts at odd places are blocks of code.
    parts = CODE.split(readme)
    return "".join(part if place % 2 else RELATIVE_LINK.sub(rewrite, part) for place, part in enumerate(parts))


class CustomMetadataHook(MetadataHookInterface):
    """Adds the README and the URLs to the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the fields that pyproject.toml leaves to this hook."""
        repository = os.environ.get("CSTP_REPOSITORY_URL", "").rstrip("/")
        tag = f"v{metadata['version']}"
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": rewrite_links(readme, repository, tag),
        }
        metadata["urls"] = {}
        if repository:
            metadata["urls"] = {
                "Repository": repository,
                "Documentation": f"{repository}/blob/{tag}/docs/README.md",
                "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
