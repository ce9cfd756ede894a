"""The README as PyPI shows it: its links and pictures lead to the repository that the release comes from.

hatchling runs this when it builds a distribution. PyPI resolves no relative links, and only the release
workflow knows the address of the repository: it sets STICKYTOKEN_REPOSITORY. Without it, the README is taken
as it is, and the package names no addresses.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?P<text>(?P<picture>!?)\[[^\]]*\])\((?!https?:|#|mailto:)(?P<target>[^)\s]+)\)")


class PackagePage(MetadataHookInterface):
    """Sets the README, and the addresses if they are known."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add what is not there already: an unpacked sdist brings its own."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if repository := os.environ.get("STICKYTOKEN_REPOSITORY", "").rstrip("/"):
            tag = f"v{metadata['version']}"
            text = absolute(text, repository, tag)
            addresses = {
                "Source": repository,
                "Documentation": f"{repository}/tree/{tag}/docs",
                "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
            metadata.setdefault("urls", addresses)
        metadata.setdefault("readme", {"content-type": "text/markdown", "text": text})


def absolute(text: str, repository: str, tag: str) -> str:
    """Return a page from the root of the repository with its links as they are from anywhere."""
    fenced = [found.span() for found in _FENCED.finditer(text)]

    def link(found: re.Match[str]) -> str:
        if any(start <= found.start() < end for start, end in fenced):
            return found[0]
        kind = "raw" if found["picture"] else "blob"
        return f"{found['text']}({repository}/{kind}/{tag}/{found['target']})"

    return _LINK.sub(link, text).replace('srcset="', f'srcset="{repository}/raw/{tag}/')
