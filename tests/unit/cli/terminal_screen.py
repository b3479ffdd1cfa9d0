"""A terminal as far as the live line needs one: it understands line ends, return and "erase this line"."""

from __future__ import annotations

import io
import re

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_STEP = re.compile(r"\r\x1b\[2K|\n|[^\r\n\x1b]+")


class Screen(io.StringIO):
    """Keeps what was written; `lines()` is what a person sees."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        plain = _STYLE.sub("", self.getvalue())
        shown = [""]
        position = 0
        while position < len(plain):
            step = _STEP.match(plain, position)
            assert step is not None, f"unknown control at {plain[position : position + 10]!r}"
            match step.group():
                case "\n":
                    shown.append("")
                case "\r\x1b[2K":
                    shown[-1] = ""
                case text:
                    shown[-1] += text
            position = step.end()
        return shown
