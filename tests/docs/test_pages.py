"""Pages hang together: links lead somewhere, pictures are there, generated pages are up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pages import DOCS, ROOT, anchors_of, links_of, name_of, pages

from headrace.options import all_options


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_lead_to_pages_files_and_headings_that_exist(page: Path) -> None:
    for link in links_of(page):
        if "://" in link:
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), f"{name_of(page)} links to {link}"
        assert target.is_relative_to(ROOT), f"{name_of(page)} links out of the project: {link}"
        if anchor:
            assert anchor in anchors_of(target), f"{name_of(page)} links to {link}, which has no such heading"


def test_every_page_can_be_reached_from_the_first() -> None:
    reached, ahead = set(), [DOCS / "index.md"]
    while ahead:
        page = ahead.pop()
        if page in reached:
            continue
        reached.add(page)
        targets = [(page.parent / link.partition("#")[0]).resolve() for link in links_of(page) if "://" not in link]
        ahead += [target for target in targets if target.suffix == ".md" and target.is_relative_to(DOCS)]
    assert {name_of(page) for page in pages()} - {name_of(page) for page in reached} <= {"design/progress.md"}


def test_every_picture_is_well_formed_tells_what_it_shows_and_is_used() -> None:
    used = {(page.parent / link).resolve() for page in pages() for link in links_of(page) if link.endswith(".svg")}
    pictures = set((DOCS / "img").glob("*.svg"))
    assert used == pictures
    for picture in pictures:
        root = ElementTree.parse(picture).getroot()
        for part in ("title", "desc"):
            assert root.findtext(f"{{http://www.w3.org/2000/svg}}{part}"), f"{picture.name} has no {part}"


def test_the_configuration_page_is_what_the_option_declarations_say() -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "generate_configuration.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_configuration_page_has_every_option() -> None:
    text = (DOCS / "configuration.md").read_text()
    assert [option.key for option in all_options() if f"| `{option.key}` |" not in text] == []


def test_pages_are_plain() -> None:
    for page in pages():
        assert "simply" not in page.read_text().lower(), name_of(page)
