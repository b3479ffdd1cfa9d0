"""The pages of `docs/`: their code blocks, links and headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!`)!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_NOT_RUN = re.compile(r"# not run(.*)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    @property
    def reason_not_to_run(self) -> str | None:
        """What follows `# not run` on its first line; None if it is to be run."""
        match = _NOT_RUN.match(self.text)
        return None if match is None else match[1].strip(" :.")


def pages() -> list[Path]:
    return sorted(DOCS.rglob("*.md"))


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def blocks_of(page: Path, language: str) -> list[Block]:
    text = page.read_text()
    return [
        Block(name_of(page), text.count("\n", 0, match.start()) + 2, match[1], match[2])
        for match in _FENCE.finditer(text)
        if match[1] == language
    ]


def links_of(page: Path) -> list[str]:
    return _LINK.findall(_FENCE.sub("", page.read_text()))


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
