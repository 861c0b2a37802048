"""A page for pictures that is narrow enough, with text large enough, to be read on a phone."""

from __future__ import annotations

from textwrap import wrap

from redouble._cli.svg import Page

WIDTH = 520
# Sizes in pixels. A phone shows 520 pixels as about 330, so 15 become 9.5.
SIZES = {
    "font-size:12px": "font-size:14px",
    "font-size:13px": "font-size:15px",
    "font-size:16px": "font-size:18px",
}
CAPTION, LINE = 15, 20


class PhonePage(Page):
    """A `Page` of `WIDTH`, with larger text."""

    def __init__(self, title: str, subtitle: str, caption: str, space: float) -> None:
        # The page lays out its own caption in lines of 18 pixels; those of this one are higher.
        super().__init__(title, subtitle, "", WIDTH, space)
        self.lines = wrap(caption, int((WIDTH - 40) / 7.3), break_long_words=False, break_on_hyphens=False)
        self.drawn = self.height
        self.height += LINE * len(self.lines)

    def inside(self, left: float, right: float, bottom: float) -> tuple[float, float, float, float]:
        return left, self._top, self.width - right, self.drawn - bottom - 10

    def text(self) -> str:
        for number, line in enumerate(self.lines):
            self.write(20, self.drawn + LINE * number + 3, line, "caption")
        found = super().text()
        for small, large in SIZES.items():
            found = found.replace(small, large)
        return found.replace(".middle{", f".caption{{font-size:{CAPTION}px}}.middle{{", 1)
