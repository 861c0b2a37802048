"""Make the links of the README absolute, for package indexes. The build of the package runs this.

The project's address is in ``[project.urls]`` of ``pyproject.toml``, and nowhere else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Set ``readme`` to the text of README.md with absolute links."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text("utf-8")
        text = with_absolute_links(text, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_absolute_links(text: str, address: str) -> str:
    """Return the text with links to the files of the project at its address; pictures as raw files."""

    def absolute(link: re.Match[str]) -> str:
        image, words, target = link.groups()
        return f"{image}{words}({address}/{'raw' if image else 'blob'}/main/{target})"

    return RELATIVE_LINK.sub(absolute, text)
