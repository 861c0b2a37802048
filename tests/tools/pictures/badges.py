"""Draw the badges of the README from what pyproject.toml says: python tests/tools/pictures/badges.py"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "badges"

_HEIGHT, _PAD, _LETTER = 20, 7, 6.6
_BADGE = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img" aria-label="{name}: {value}">
<title>{name}: {value}</title>
<rect width="{width}" height="{height}" rx="3" fill="#1f5f8b"/>
<path d="M3 0h{left_edge}v{height}H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#444c56"/>
<g fill="#ffffff" font-family="Verdana,DejaVu Sans,Geneva,sans-serif" font-size="11">
<text x="{pad}" y="14" textLength="{left_text}">{name}</text>
<text x="{right}" y="14" textLength="{right_text}">{value}</text>
</g>
</svg>
"""


def facts() -> dict[str, tuple[str, str]]:
    """Return the file, the name and the value of each badge, as pyproject.toml has them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    project, tools = settings["project"], settings["tool"]
    branches = " of branches" if tools["coverage"]["run"]["branch"] else ""
    strict = [
        *(["mypy"] if tools["mypy"]["strict"] else []),
        *(["pyright"] if tools["pyright"]["typeCheckingMode"] == "strict" else []),
    ]
    return {
        "python": ("python", project["requires-python"].removeprefix(">=") + "+"),
        "dependencies": ("dependencies", str(len(project["dependencies"]) or "none")),
        "coverage": ("tested", f"{tools['coverage']['report']['fail_under']} %{branches}"),
        "types": ("typed", f"strict: {', '.join(strict)}"),
        "licence": ("licence", project["license"]),
    }


def badge(name: str, value: str) -> str:
    """Return a badge as SVG: its name on grey, its value on blue."""
    left_text, right_text = round(len(name) * _LETTER), round(len(value) * _LETTER)
    left = left_text + 2 * _PAD
    return _BADGE.format(
        name=name,
        value=value,
        width=left + right_text + 2 * _PAD,
        height=_HEIGHT,
        left_edge=left - 3,
        pad=_PAD,
        left_text=left_text,
        right=left + _PAD,
        right_text=right_text,
    )


def badges() -> dict[str, str]:
    """Return all badges, by the names of their files."""
    return {f"{file}.svg": badge(*said) for file, said in facts().items()}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in badges().items():
        (FOLDER / name).write_text(text, encoding="utf-8", newline="\n")
        print(f"wrote {FOLDER / name}", file=sys.stderr)


if __name__ == "__main__":
    main()
