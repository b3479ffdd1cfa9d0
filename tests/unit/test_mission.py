"""The mission table: every row is there, and what it names as its proof and its page exists."""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "mission.md"
ROWS = 33
STATUSES = ("shown", "part", "open")

_ROW = re.compile(r"^\| (M\d+) \|(.*)\|$", re.MULTILINE)
_PAGE_LINK = re.compile(r"\[[^\]]+\]\(([^)#]+)(?:#[^)]*)?\)")


@dataclass(frozen=True)
class MissionRow:
    """One row of the table."""

    name: str
    status: str
    tests: tuple[str, ...]
    pages: tuple[str, ...]


def mission() -> list[MissionRow]:
    rows = []
    for name, rest in _ROW.findall(PAGE.read_text()):
        cells = [cell.strip() for cell in rest.split(" | ")]
        assert len(cells) == 5, f"{name} has {len(cells) + 1} cells, wanted 6"
        status, tests, pages = cells[2:]
        named = tuple(part.strip().strip("`") for part in tests.split("<br>")) if tests != "open" else ()
        rows.append(MissionRow(name, status, named, tuple(_PAGE_LINK.findall(pages)) if pages != "open" else ()))
    return rows


@cache
def names_in(path: Path) -> frozenset[str]:
    """The tests of a file as pytest names them, `test_…` or `Class::test_…`, read without importing it."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return frozenset(name for name in found if name.rpartition("::")[2].startswith("test_"))


def test_every_point_of_the_mission_has_one_row_in_order() -> None:
    assert [row.name for row in mission()] == [f"M{n}" for n in range(1, ROWS + 1)]


@pytest.mark.parametrize("row", mission(), ids=lambda row: row.name)
def test_a_row_that_is_not_open_names_its_tests_and_its_page(row: MissionRow) -> None:
    kind, _, what_is_open = row.status.partition(": ")
    assert kind in STATUSES
    assert bool(what_is_open) == (kind == "part"), "a part says what is open, and nothing else does"
    assert bool(row.tests) == bool(row.pages) == (kind != "open")


@pytest.mark.parametrize("row", mission(), ids=lambda row: row.name)
def test_every_named_test_exists(row: MissionRow) -> None:
    for named in row.tests:
        path, _, test = named.partition("::")
        assert (ROOT / path).is_file(), f"{row.name} names {named}, but there is no such file"
        assert test in names_in(ROOT / path), f"{row.name} names {named}, which is not in that file"


@pytest.mark.parametrize("row", mission(), ids=lambda row: row.name)
def test_every_named_page_exists(row: MissionRow) -> None:
    for page in row.pages:
        assert (PAGE.parent / page).is_file(), f"{row.name} names the page {page}, which does not exist"


def test_the_extra_that_the_documents_install_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "rocksdb" in project["optional-dependencies"]
