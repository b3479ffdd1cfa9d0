"""The shape of the package: imports point down, Spark stays in one place, tasks carry nothing they do not need."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "headrace"
SOURCES = sorted(PACKAGE.rglob("*.py"))
LONGEST_FILE = 600

BELOW: dict[str, set[str]] = {
    "errors": set(),
    "clocks": set(),
    "durations": {"errors"},
    "failpoints": {"errors"},
    "types": {"errors"},
    "options": {"errors", "durations"},
    "checkpoint": {"errors", "clocks", "failpoints"},
    "state": {"errors", "durations", "types", "checkpoint"},
    "connectors": {"errors", "clocks", "durations", "failpoints", "types", "checkpoint", "state"},
    "backends": {"errors", "failpoints", "types", "checkpoint", "state"},
    "operators": {"errors", "durations", "failpoints", "types", "checkpoint", "state", "connectors"},
    "plan": {"errors", "durations", "types", "checkpoint", "state", "backends", "connectors", "operators"},
    "runtime.control": {"errors", "checkpoint"},
    "runtime.coordinator": {
        "errors",
        "clocks",
        "durations",
        "failpoints",
        "checkpoint",
        "operators",
        "plan",
        "runtime.control",
    },
    "runtime.spark": {"errors", "plan"},
    "runtime.task": {
        *("errors", "durations", "failpoints", "types", "checkpoint", "state", "backends", "connectors", "operators"),
        *("plan", "runtime.control", "runtime.spark"),
    },
    "runtime.job": {
        *(
            "errors",
            "clocks",
            "durations",
            "failpoints",
            "types",
            "checkpoint",
            "state",
            "backends",
            "connectors",
            "operators",
        ),
        *("plan", "runtime.control", "runtime.coordinator", "runtime.spark", "runtime.task"),
    },
    "datastream": {
        *("errors", "durations", "options", "types", "checkpoint", "state", "backends", "connectors", "operators"),
        *("plan", "runtime.job"),
    },
    "cep": {"errors", "durations", "types", "state", "operators", "datastream"},
}
"""What each part may import, bottom up. What stands on top of them all may import all."""

TOP = {"__init__", "__main__", "cli", "demo", "pyflink", "state_reader", "testing"}
"""The root, the command line, the demo, PyFlink's names, what reads state without a job and what users test their jobs
with: nothing below may import these."""

NOT_IN_A_TASK = ("headrace.cli", "headrace.demo", "click", "rich", "starlette", "uvicorn", "matplotlib")


def part_of(module: str) -> str:
    """The part of the package that a dotted name below `headrace` belongs to."""
    names = module.split(".")
    return ".".join(names[:2]) if names[0] == "runtime" and len(names) > 1 else names[0]


def imports_of(path: Path) -> Iterator[str]:
    """Every module a file imports, wherever in the file the statement stands, as absolute names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} has a relative import, line {node.lineno}"
            # `from headrace import options` names a module, `from headrace.options import Option` does not.
            yield from (f"headrace.{a.name}" for a in node.names) if node.module == "headrace" else [node.module]


def own_part(path: Path) -> str:
    names = path.relative_to(PACKAGE).with_suffix("").parts
    return part_of(".".join(names[:-1] if len(names) > 1 and names[-1] == "__init__" else names))


def upward_imports() -> set[tuple[str, str]]:
    found = set()
    for path in SOURCES:
        own = own_part(path)
        if own in TOP or own == "runtime":
            continue
        for module in imports_of(path):
            if not module.startswith("headrace."):
                continue
            target = part_of(module.removeprefix("headrace."))
            if target != own and target not in BELOW[own]:
                found.add((path.relative_to(PACKAGE).as_posix(), target))
    return found


def test_every_part_of_the_package_has_its_place_in_the_order() -> None:
    parts = {own_part(path) for path in SOURCES} - TOP - {"runtime"}
    assert parts == set(BELOW)


def test_the_order_has_no_circle() -> None:
    placed: set[str] = set()
    for part, below in BELOW.items():
        assert below <= placed, f"{part} stands before what it may import: {sorted(below - placed)}"
        placed.add(part)


def test_imports_point_down_only() -> None:
    assert upward_imports() == set()


def test_pyspark_is_imported_in_one_place_only() -> None:
    importers = {
        path.parent.relative_to(PACKAGE).as_posix()
        for path in SOURCES
        for module in imports_of(path)
        if module.split(".")[0] in ("pyspark", "py4j")
    }
    assert importers == {"runtime/spark"}


def test_no_module_is_called_utils() -> None:
    # The mirror of PyFlink has the names of PyFlink's modules.
    own = [path.relative_to(PACKAGE) for path in SOURCES if own_part(path) != "pyflink"]
    names = {part for path in own for part in path.with_suffix("").parts}
    assert not names & {"utils", "util", "helpers", "common", "misc"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_every_module_says_what_it_is_and_stays_short(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), "a module begins with a docstring"
    assert len(text.splitlines()) <= LONGEST_FILE


def test_tests_stay_short_too() -> None:
    long = {
        path.relative_to(ROOT).as_posix(): lines
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if (lines := len(path.read_text().splitlines())) > LONGEST_FILE
    }
    assert long == {}


def test_a_task_loads_neither_command_line_nor_web_nor_demo() -> None:
    program = (
        "import json, sys, headrace.runtime.task.main\n"
        f"print(json.dumps([m for m in {NOT_IN_A_TASK!r} if m in sys.modules]))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == []


def test_import_of_the_package_starts_nothing_and_needs_no_spark() -> None:
    program = "import json, sys, headrace; print(json.dumps([m for m in ('pyspark', 'pyarrow') if m in sys.modules]))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == []
