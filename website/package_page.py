"""The README as PyPI shows it, with links and pictures that lead to the repository of the release.

hatchling runs this when it builds a distribution. PyPI does not resolve relative links, and only the release
workflow knows the address of the repository: it sets STICKYTOKEN_REPOSITORY. Without that variable, the
README stays as it is, and the package names no addresses.
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
    """Adds the README to the metadata of the package, and the addresses if they are known."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add what the metadata lacks: an unpacked sdist has its own README."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = os.environ.get("STICKYTOKEN_REPOSITORY", "").rstrip("/")
        if repository:
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
    """Return a page from the root of the repository with absolute links.

    Args:
        text: the page, in Markdown.
        repository: its address, such as ``https://github.com/OWNER/NAME``.
        tag: of the release.
    """
    fences = [fence.span() for fence in _FENCED.finditer(text)]

    def link(match: re.Match[str]) -> str:
        is_fenced = any(start <= match.start() < end for start, end in fences)
        if is_fenced:
            return match[0]
        kind = "raw" if match["picture"] else "blob"
        return f"{match['text']}({repository}/{kind}/{tag}/{match['target']})"

    return _LINK.sub(link, text).replace('srcset="', f'srcset="{repository}/raw/{tag}/')
