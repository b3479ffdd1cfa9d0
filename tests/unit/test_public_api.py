"""The names at the root of the package, compared with reality."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import headrace


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_all_is_sorted_and_names_each_thing_once() -> None:
    """Constants, then classes, then functions, as the linter wants it."""
    in_order = sorted(set(headrace.__all__), key=lambda name: (not name.isupper(), name[0].islower(), name))
    assert headrace.__all__ == in_order


def test_every_name_is_what_its_home_defines() -> None:
    for home, names in headrace._HOMES.items():
        for name in names:
            assert getattr(headrace, name) is getattr(import_module(home), name)
    assert sorted(name for names in headrace._HOMES.values() for name in names) == sorted(headrace.__all__)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(headrace.__file__).read_text())
    (block,) = (n for n in tree.body if isinstance(n, ast.If))
    seen = {alias.name: n.module for n in block.body if isinstance(n, ast.ImportFrom) for alias in n.names}
    assert seen == {name: home for home, names in headrace._HOMES.items() for name in names}


def test_dir_lists_what_has_not_been_loaded_yet() -> None:
    assert set(headrace.__all__) <= set(dir(headrace))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'StreamingEnvironment'"):
        headrace.StreamingEnvironment  # noqa: B018


def test_importing_the_package_loads_nothing_else() -> None:
    code = (
        "import headrace, sys; "
        "print(sorted(m for m in sys.modules if m.startswith('headrace.') or m in ('pyspark', 'pyarrow')))"
    )
    assert run(code) == "[]"


def test_building_and_explaining_a_job_needs_no_spark() -> None:
    code = """
import sys
from headrace import *
from headrace.plan.explain import explain
env = StreamExecutionEnvironment.get_execution_environment()
readings = env.from_source(SensorSource(10), WatermarkStrategy.for_monotonous_timestamps(), "sensors")
readings.key_by(lambda r: r.id).max("temperature").print()
assert "Level 1" in explain(*env.build("alerts"))
print(sorted(m for m in sys.modules if m.split(".")[0] in ("pyspark", "py4j", "rocksdict", "click", "rich")))
"""
    assert run(code) == "[]"
