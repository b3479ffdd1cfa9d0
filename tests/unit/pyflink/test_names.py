"""Every name of PyFlink's DataStream surface is here, or says that it is not and what to use instead."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from surface import ABSENT_METHODS, ABSENT_MODULES, METHODS, MODULES

import headrace.pyflink
from headrace.pyflink.absence import NAMES
from headrace.pyflink.common import JobClient, Row, Types
from headrace.pyflink.datastream import DataStream, StreamExecutionEnvironment


def mirrored(module: str) -> Any:
    return import_module(f"headrace.pyflink.{module}")


def class_at(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(mirrored(module), name)


@pytest.mark.parametrize("module", MODULES)
def test_every_name_of_a_module_is_there_or_is_knowingly_absent(module: str) -> None:
    found = mirrored(module)
    missing = NAMES.get(found.__name__, {})
    for name in MODULES[module].split():
        assert (name in found.__all__) != (name in missing), name


@pytest.mark.parametrize("path", METHODS)
def test_every_method_of_a_class_is_there_or_is_knowingly_absent(path: str) -> None:
    cls = class_at(path)
    for name in METHODS[path].split():
        assert hasattr(cls, name) != ((path, name) in ABSENT_METHODS), name


def test_what_is_said_to_be_absent_is_in_the_list_of_what_flink_has() -> None:
    assert {path for path, _ in ABSENT_METHODS} <= set(METHODS)
    assert all(name in METHODS[path].split() for path, name in ABSENT_METHODS)


def modules() -> set[str]:
    root = Path(headrace.pyflink.__file__).parent
    paths = {path.relative_to(root).with_suffix("") for path in root.rglob("*.py")}
    names = {".".join(path.parts).removesuffix("__init__").removesuffix(".") for path in paths}
    return names - {"", "absence"}


def test_the_lists_know_every_module_of_the_mirror() -> None:
    assert modules() == set(MODULES) | set(ABSENT_MODULES) | {"datastream.formats"}


@pytest.mark.parametrize("module", MODULES)
def test_what_a_module_promises_it_has_in_order(module: str) -> None:
    found = mirrored(module)
    assert found.__all__ == sorted(set(found.__all__), key=lambda name: (name[0].islower(), name))
    for name in found.__all__:
        assert getattr(found, name) is not None


@pytest.mark.parametrize(("module", "name"), [(m, n) for m in MODULES for n in MODULES[m].split()])
def test_an_absent_name_tells_what_is_nearest(module: str, name: str) -> None:
    found = mirrored(module)
    instead = NAMES.get(found.__name__, {}).get(name)
    if instead is None:
        exec(f"from {found.__name__} import {name}", {})
        return
    with pytest.raises(ImportError) as refused:
        exec(f"from {found.__name__} import {name}", {})
    assert str(refused.value) == f"{found.__name__} has no {name}: {instead}"


def test_a_name_that_flink_does_not_have_either_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Riverbed'"):
        mirrored("datastream").Riverbed  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Riverbed'"):
        exec("from headrace.pyflink.datastream import Riverbed", {})


@pytest.mark.parametrize("module", ABSENT_MODULES)
def test_an_absent_module_tells_what_is_nearest(module: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=rf"There is no headrace\.pyflink\.{module}: \w+.*\."):
        mirrored(module)


def test_an_absent_method_of_a_stream_tells_what_is_nearest() -> None:
    stream = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    with pytest.raises(AttributeError, match=r"no attribute 'cache'\. Headrace keeps no results .* sink_to\(\)"):
        stream.cache  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'riverbed'$"):
        stream.riverbed  # type: ignore[attr-defined]  # noqa: B018


def test_an_absent_method_of_a_job_client_tells_what_is_nearest() -> None:
    client = JobClient.__new__(JobClient)
    with pytest.raises(AttributeError, match=r"no accumulators; user metrics are in get_status_report\(\)\.metrics"):
        client.get_accumulators()


def test_the_mirror_names_headraces_own_classes() -> None:
    assert DataStream is headrace.DataStream
    assert Row is headrace.Row
    assert Types is headrace.Types
    assert issubclass(StreamExecutionEnvironment, headrace.StreamExecutionEnvironment)
