"""Make the links of the README absolute, for package indexes. The build of the package runs this.

The project's address is in ``[project.urls]`` of ``pyproject.toml``, and nowhere else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# A block of code, which stays as it is, or a link that is neither absolute nor to a heading of the README.
CODE_OR_LINK = re.compile(
    r"^(`{3,}).*?^\1$|(!?)(\[[^\[\]]*\])\((?!https?:|#)([^)\s]+)\)", re.DOTALL | re.MULTILINE
)


class ReadmeHook(MetadataHookInterface):
    """Set ``readme`` to the text of README.md with absolute links."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text("utf-8")
        text = with_absolute_links(text, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_absolute_links(text: str, address: str) -> str:
    """Return the text with links to the files of the project at its address; pictures as raw files."""

    def absolute(found: re.Match[str]) -> str:
        fence, image, words, target = found.groups()
        if fence:
            return found[0]
        return f"{image}{words}({address}/{'raw' if image else 'blob'}/main/{target})"

    return CODE_OR_LINK.sub(absolute, text)
