"""Function objects, plain callables and tags."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from headrace.errors import JobDefinitionError
from headrace.operators import functions
from headrace.operators.functions import KeyedProcessFunction, MapFunction, OutputTag, ProcessFunction, callable_of
from headrace.types.information import Types


class Double(MapFunction):
    def map(self, value: Any) -> Any:
        return value * 2


class Duck:
    """Has the method, but not the base class."""

    def map(self, value: Any) -> Any:
        return value + 1


def test_objects_and_callables_are_called_alike() -> None:
    assert callable_of(Double(), "map")(4) == 8
    assert callable_of(abs, "map")(-4) == 4
    assert callable_of(Duck(), "map")(4) == 5


@pytest.mark.parametrize(
    ("function", "message"),
    [(Double, r"Write Double\(\.\.\.\)"), (None, "None cannot be called")],
)
def test_what_cannot_be_called_is_refused(function: Any, message: str) -> None:
    with pytest.raises(JobDefinitionError, match=message):
        callable_of(function, "map")


def test_a_function_of_another_kind_is_refused_by_name() -> None:
    with pytest.raises(JobDefinitionError, match=r"Double has no method filter\(\)"):
        callable_of(Double(), "filter")


def test_rich_functions_are_the_functions() -> None:
    for name in ("Map", "FlatMap", "Filter", "Reduce", "Aggregate"):
        assert getattr(functions, f"Rich{name}Function") is getattr(functions, f"{name}Function")


def test_contexts_are_reached_through_the_function_as_in_flink() -> None:
    assert ProcessFunction.Context is functions.ProcessContext
    assert KeyedProcessFunction.Context is functions.KeyedProcessContext
    assert KeyedProcessFunction.OnTimerContext is functions.OnTimerContext


def test_a_tag_is_known_by_its_name() -> None:
    tag = OutputTag("late", [str, int])
    assert tag == OutputTag("late")
    assert hash(tag) == hash(OutputTag("late", int))
    assert tag.type == Types.ROW([str, int])
    assert OutputTag("x", float).type == Types.DOUBLE()
    assert OutputTag("x").type is None
    assert pickle.loads(pickle.dumps(tag)).type == tag.type


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_tag_without_a_name_is_refused(name: Any) -> None:
    with pytest.raises(JobDefinitionError, match="non-empty str"):
        OutputTag(name)


def test_functions_need_not_open_or_close() -> None:
    function = Double()
    function.open(None)  # type: ignore[arg-type]
    function.close()
