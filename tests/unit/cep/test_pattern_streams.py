"""Patterns in programs: what is built of them, and what is refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import JobDefinitionError, OutputTag, StreamExecutionEnvironment, Types
from headrace.cep import CEP, EventComparator, MalformedPatternError, Pattern, PatternProcessFunction
from headrace.cep.operator import PatternFactory

READING = Types.ROW_NAMED(["id", "temperature"], [str, float])


class First(PatternProcessFunction):
    def process_match(self, match: dict[str, list[Any]], ctx: Any) -> list[Any]:
        return match["a"]


class ByTemperature(EventComparator):
    def compare(self, value1: Any, value2: Any) -> int:
        return int(value1.temperature - value2.temperature)


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    made = StreamExecutionEnvironment.get_execution_environment()
    made.set_parallelism(2)
    return made


def readings(env: StreamExecutionEnvironment) -> Any:
    return env.from_collection([("s", 1.0)], READING)


def pattern() -> Pattern:
    return Pattern.begin("a").where(lambda r: r.temperature > 1).next("b")


def pattern_node(env: StreamExecutionEnvironment) -> Any:
    graph = env.build("job")[0].graph
    return next(node for node in graph.nodes if isinstance(node.factory, PatternFactory))


def test_a_keyed_stream_keeps_its_width_and_its_type(env: StreamExecutionEnvironment) -> None:
    CEP.pattern(readings(env).key_by("id"), pattern()).select(lambda match: match["a"][0].id, Types.STRING()).print()
    node = pattern_node(env)
    assert node.factory.user_function.__name__ == "<lambda>"
    assert (node.name, node.parallelism, node.output_type) == ("pattern", 2, Types.STRING())
    assert node.factory.event_type == READING
    assert node.factory.event_time
    assert node.declared_at.startswith("cep/test_pattern_streams.py:")


def test_a_stream_without_keys_is_looked_at_in_one_task(env: StreamExecutionEnvironment) -> None:
    CEP.pattern(readings(env), pattern()).process(First()).print()
    assert pattern_node(env).parallelism == 1


def test_time_lateness_and_comparator_reach_the_operator(env: StreamExecutionEnvironment) -> None:
    late = OutputTag("late", READING)
    found = CEP.pattern(readings(env).key_by("id"), pattern(), ByTemperature())
    result = (
        found.in_processing_time().in_event_time().side_output_late_data(late).in_processing_time().process(First())
    )
    result.get_side_output(late).print()
    result.print()
    factory = pattern_node(env).factory
    assert (factory.event_time, factory.late_tag) == (False, late)
    assert factory.comparator.__self__.__class__ is ByTemperature
    assert found.event_time, "a pattern stream does not change"


def test_an_untyped_stream_keeps_any_plain_value(env: StreamExecutionEnvironment) -> None:
    CEP.pattern(env.from_collection([1, 2]).key_by(lambda n: 0), Pattern.begin("a")).flat_select(
        OutputTag("over"), lambda match, time: [], lambda match: match["a"]
    ).print()
    assert pattern_node(env).factory.event_type == Types.ANY()


def test_a_malformed_pattern_is_refused_where_it_meets_the_stream(env: StreamExecutionEnvironment) -> None:
    with pytest.raises(MalformedPatternError, match='named "a"'):
        CEP.pattern(readings(env), Pattern.begin("a").next("a"))
    with pytest.raises(MalformedPatternError, match=r"Begin with Pattern.begin\(\)"):
        CEP.pattern(readings(env), "a")  # type: ignore[arg-type]
    with pytest.raises(JobDefinitionError, match="wanted a stream"):
        CEP.pattern(pattern(), pattern())  # type: ignore[arg-type]


def test_what_cannot_be_done_with_matches_is_refused(env: StreamExecutionEnvironment) -> None:
    found = CEP.pattern(readings(env), pattern())
    with pytest.raises(JobDefinitionError, match=r"use select\(\) or flat_select\(\)"):
        found.process(lambda match: match)  # type: ignore[arg-type]
    with pytest.raises(JobDefinitionError, match="PatternProcessFunction"):
        found.process(First)  # type: ignore[arg-type]
    with pytest.raises(JobDefinitionError, match="cannot be called"):
        found.select(3)  # type: ignore[call-overload]
    for wrong in [(), (OutputTag("over"),), (OutputTag("over"), len), (len, str, str, str, str)]:
        with pytest.raises(JobDefinitionError, match="Give a function of the match"):
            found.select(*wrong)
    with pytest.raises(JobDefinitionError, match="wanted an OutputTag"):
        found.side_output_late_data("late")  # type: ignore[arg-type]
    with pytest.raises(JobDefinitionError, match="compare"):
        CEP.pattern(readings(env), pattern(), 3)  # type: ignore[arg-type]


def test_the_names_of_the_package_are_all_there() -> None:
    from headrace import cep

    assert all(hasattr(cep, name) for name in cep.__all__)
    assert set(cep.__all__) <= set(dir(cep))
    assert sorted(name for names in cep._HOMES.values() for name in names) == sorted(cep.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Paterns'"):
        cep.Paterns  # noqa: B018
