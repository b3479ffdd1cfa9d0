"""Records in flight find their operators again in a changed program, or the restore is refused by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from headrace import DataStream, KeyedProcessFunction, OutputTag, StreamExecutionEnvironment, Types, WatermarkStrategy
from headrace.errors import RestoreError
from headrace.runtime.job.restoration import Restoration
from headrace.testing import JobHarness, JobSnapshot, ManualSource

NO_TIME = WatermarkStrategy.no_watermarks()
WORDS = [f"w{n % 7}" for n in range(60)]
TURNS = (1, 1, 2, 1, 3, 1, 1, 4)
ODD, EVEN = OutputTag("odd"), OutputTag("even")

Program = Callable[[StreamExecutionEnvironment, ManualSource], DataStream]


def environment(width: int = 2) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(width)
    env.enable_checkpointing(1_000)
    env.get_checkpoint_config().enable_unaligned_checkpoints()
    return env


def run(program: Program, source: ManualSource, width: int = 2, restored: JobSnapshot | None = None) -> JobHarness:
    return JobHarness(program(environment(width), source), restored=restored)


def words_of(env: StreamExecutionEnvironment, source: ManualSource) -> DataStream:
    return env.from_source(source, NO_TIME, "words").uid("words").name("words").set_parallelism(1)


def counted(words: DataStream, uid: str = "counts") -> DataStream:
    counts = words.key_by(lambda word: word).map_with_state(
        lambda word, n: ((word, (n or 0) + 1), (n or 0) + 1), state_type=int
    )
    return counts.uid(uid).name(uid)


def totals(counts: DataStream) -> DataStream:
    return counts.key_by(lambda count: count[0]).map(lambda count: count).uid("totals").name("totals")


def end_of(stream: DataStream) -> DataStream:
    """The operator whose output is collected is the same in all programs."""
    return stream.map(lambda result: result).uid("end")


def before(env: StreamExecutionEnvironment, source: ManualSource) -> DataStream:
    return end_of(totals(counted(words_of(env, source))))


def interrupted(program: Program, source: ManualSource) -> JobSnapshot:
    """A checkpoint with records in flight, taken by a job that is not seen again; its output is not delivered.

    The first tasks get more turns than the others, so that cells wait before each level.
    """
    with run(program, source) as job:
        job.run()
        for number, word in enumerate(WORDS):
            source.emit(word)
            job.run(turns=TURNS[number % len(TURNS)])
        taken = job.checkpoint(in_flight=True, complete=False)
    assert any(channel.count for channel in taken.metadata.channels), "nothing is in flight, so nothing is shown"
    return taken


def in_flight(saved: JobSnapshot) -> set[tuple[str, str]]:
    by_number = {edge.number: (edge.source, edge.target) for edge in saved.metadata.edge_records}
    return {by_number[number] for channel in saved.metadata.channels for number in channel.edges}


def finished(program: Program, source: ManualSource, saved: JobSnapshot, width: int = 2) -> Counter[Any]:
    with run(program, source, width, saved) as job:
        source.end()
        return Counter(job.run_to_end())


EXPECTED = Counter((word, n + 1) for word, times in Counter(WORDS).items() for n in range(times))


def other_words(env: StreamExecutionEnvironment) -> DataStream:
    nothing = ManualSource()
    nothing.end()
    return env.from_source(nothing, NO_TIME, "other").uid("other").name("other").set_parallelism(1)


def branch_first(env: StreamExecutionEnvironment, source: ManualSource) -> DataStream:
    other_words(env).key_by(lambda word: word).map(lambda word: word).rebalance().map(lambda word: word).print()
    return before(env, source)


def deeper(env: StreamExecutionEnvironment, source: ManualSource) -> DataStream:
    """Another way into "counts" pushes it, and all after it, one level down."""
    mapped = other_words(env).key_by(lambda word: word).map(lambda word: word).uid("mapped")
    return end_of(totals(counted(mapped.union(words_of(env, source)))))


def longer(env: StreamExecutionEnvironment, source: ManualSource) -> DataStream:
    after = totals(counted(words_of(env, source))).rebalance().map(lambda count: count).uid("after")
    return end_of(after.rebalance())


@pytest.mark.parametrize("after", [before, branch_first, deeper, longer])
@pytest.mark.parametrize("width", [2, 1, 3])
def test_a_program_with_more_operators_takes_every_record_in_flight(after: Program, width: int) -> None:
    source = ManualSource()
    saved = interrupted(before, source)
    assert in_flight(saved) == {("words", "counts"), ("counts", "totals")}
    assert finished(after, source, saved, width) == EXPECTED


@pytest.mark.parametrize("width", [2, 3])
def test_a_program_with_fewer_operators_takes_them_too(width: int) -> None:
    source = ManualSource()
    saved = interrupted(deeper, source)
    assert ("words", "counts") in in_flight(saved)
    plan, _ = environment_plan(before, source, width)
    matched = Restoration.of(plan, saved.metadata, allow_non_restored=True).restore
    assert matched is not None
    assert not any("records in flight" in left for left in matched.dropped)
    assert all(way.edge is not None for way in matched.in_flight.edges)


def environment_plan(program: Program, source: ManualSource, width: int = 2) -> Any:
    env = environment(width)
    program(env, source).print()
    return env.build("harness")


def inserted(env: StreamExecutionEnvironment, source: ManualSource) -> DataStream:
    counts = counted(words_of(env, source))
    return end_of(totals(counts.rebalance().map(lambda count: count).uid("between").disable_chaining()))


def renamed(env: StreamExecutionEnvironment, source: ManualSource) -> DataStream:
    counts = counted(words_of(env, source))
    return end_of(counts.key_by(lambda count: count[0]).map(lambda count: count).uid("sums").name("sums"))


def not_keyed(env: StreamExecutionEnvironment, source: ManualSource) -> DataStream:
    counts = counted(words_of(env, source))
    return end_of(counts.rebalance().map(lambda count: count).uid("totals").name("totals"))


def twice(env: StreamExecutionEnvironment, source: ManualSource) -> DataStream:
    counts = counted(words_of(env, source))
    return end_of(totals(counts.union(counts)))


def typed(env: StreamExecutionEnvironment, source: ManualSource) -> DataStream:
    words = words_of(env, source).map(lambda word: word, output_type=Types.STRING()).uid("words-typed")
    return end_of(totals(counted(words)))


@pytest.mark.parametrize(
    ("after", "named"),
    [
        (
            inserted,
            r'from "counts" \(uid counts\) to "totals" \(uid totals\), but the program no longer has such an edge',
        ),
        (typed, r'from "words" \(uid words\) to "counts" \(uid counts\), but the program no longer has such an edge'),
        (not_keyed, r'to "totals" \(uid totals\), routed by key_by, but the program now routes them by rebalance'),
        (twice, r'to "totals" \(uid totals\), on 1 such edge\(s\), but the program has 2'),
    ],
)
def test_what_does_not_map_to_one_edge_is_refused_by_name(after: Program, named: str) -> None:
    source = ManualSource()
    saved = interrupted(before, source)
    with pytest.raises(RestoreError, match=named) as refused:
        run(after, source, restored=saved)
    assert "Restore it with the program that took it and take a savepoint" in str(refused.value)


def test_records_for_an_operator_that_is_gone_are_left_behind_only_on_request() -> None:
    source = ManualSource()
    saved = interrupted(before, source)
    with pytest.raises(RestoreError, match=r'"totals" \(uid totals\): records in flight from "counts" \(uid counts\)'):
        run(renamed, source, restored=saved)
    plan, _ = environment_plan(renamed, source)
    restore = Restoration.of(plan, saved.metadata, allow_non_restored=True).restore
    assert restore is not None
    assert '"totals" (uid totals): records in flight from "counts" (uid counts)' in restore.dropped


class Parted(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield (EVEN if int(value[1:]) % 2 == 0 else ODD), value


def parted(odd_first: bool) -> Program:
    def program(env: StreamExecutionEnvironment, source: ManualSource) -> DataStream:
        parts = words_of(env, source).key_by(lambda word: word).process(Parted()).uid("parted").name("parted")

        def half(tag: OutputTag) -> DataStream:
            one = parts.get_side_output(tag).rebalance()
            return one.map(lambda word: (tag.tag_id, word)).uid(tag.tag_id).name(tag.tag_id)

        first, second = (half(ODD), half(EVEN)) if odd_first else (half(EVEN), half(ODD))
        return first.union(second).rebalance().map(lambda pair: pair).uid("joined")

    return program


def test_side_outputs_in_another_order_are_not_mixed_up() -> None:
    source = ManualSource()
    saved = interrupted(parted(odd_first=True), source)
    assert {("parted", "odd"), ("parted", "even")} <= in_flight(saved)
    found = finished(parted(odd_first=False), source, saved)
    assert found == Counter(("even" if int(word[1:]) % 2 == 0 else "odd", word) for word in WORDS)


def swapped_side_outputs(env: StreamExecutionEnvironment, source: ManualSource) -> DataStream:
    parts = words_of(env, source).key_by(lambda word: word).process(Parted()).uid("parted").name("parted")
    odd = parts.get_side_output(EVEN).rebalance().map(lambda word: word).uid("odd").name("odd")
    even = parts.get_side_output(ODD).rebalance().map(lambda word: word).uid("even").name("even")
    return odd.union(even).rebalance().map(lambda word: word).uid("joined")


def test_a_side_output_that_now_leads_elsewhere_is_refused_by_its_name() -> None:
    source = ManualSource()
    saved = interrupted(parted(odd_first=True), source)
    with pytest.raises(RestoreError, match=r'from side output "(odd|even)" of "parted" \(uid parted\) to "(odd|even)"'):
        run(swapped_side_outputs, source, restored=saved)


@pytest.mark.parametrize("width", [2, 3])
def test_a_stream_joined_with_itself_comes_back_on_both_edges(width: int) -> None:
    source = ManualSource()
    saved = interrupted(twice, source)
    doubled = Counter({pair: 2 * times for pair, times in EXPECTED.items()})
    assert finished(twice, source, saved, width) == doubled


def without_uids(*, branch: bool = False, shift: bool = False) -> Program:
    """Uids are derived from the place in the graph."""

    def program(env: StreamExecutionEnvironment, source: ManualSource) -> DataStream:
        if branch:
            other_words(env).rebalance().map(lambda word: word).print()
        words = env.from_source(source, NO_TIME, "words").set_parallelism(1)
        if shift:
            words = words.rebalance().map(lambda word: word)
        return words.rebalance().map(lambda word: (word, 1)).name("pairs").rebalance().map(lambda pair: pair).uid("end")

    return program


def test_derived_uids_lead_records_in_flight_past_a_new_branch_and_not_past_a_new_operator() -> None:
    source = ManualSource()
    saved = interrupted(without_uids(), source)
    with pytest.raises(RestoreError, match=r'from "pairs" \(uid pairs-\w+\) to "map" \(uid end\), but the program no'):
        run(without_uids(shift=True), source, restored=saved)
    assert finished(without_uids(branch=True), source, saved) == Counter((word, 1) for word in WORDS)


def by_default(width_of_last: int) -> Program:
    """No route is given, so that the last edge is round robin or, at equal width, a call within one task."""

    def program(env: StreamExecutionEnvironment, source: ManualSource) -> DataStream:
        last = counted(words_of(env, source)).map(lambda count: count).uid("last").name("last")
        return last.set_parallelism(width_of_last)

    return program


def test_records_in_flight_reach_an_operator_that_is_chained_now() -> None:
    source = ManualSource()
    saved = interrupted(by_default(3), source)
    assert ("counts", "last") in in_flight(saved)
    with run(by_default(2), source, restored=saved) as job:
        again = job.checkpoint(in_flight=True, complete=False)
        assert ("counts", "last") not in in_flight(again), "it waits for them, so that any width restores it"
    assert finished(by_default(2), source, saved) == EXPECTED


def test_a_checkpoint_of_an_older_release_restores_into_the_same_program() -> None:
    source = ManualSource()
    saved = interrupted(before, source)
    older = replace(saved, metadata=msgspec.structs.replace(saved.metadata, edge_records=()))
    assert finished(before, source, older, 3) == EXPECTED


def test_a_checkpoint_of_an_older_release_is_refused_by_a_changed_program() -> None:
    source = ManualSource()
    saved = interrupted(before, source)
    older = replace(saved, metadata=msgspec.structs.replace(saved.metadata, edge_records=()))
    with pytest.raises(RestoreError, match=r"did not save which operators they travel between.*take a savepoint"):
        run(branch_first, source, restored=older)


def test_records_of_another_type_are_refused_before_they_are_read() -> None:
    source = ManualSource()

    def of_type(kind: Any) -> Program:
        def program(env: StreamExecutionEnvironment, source: ManualSource) -> DataStream:
            numbers = words_of(env, source).map(lambda word: int(word[1:]), output_type=kind).uid("numbers")
            return numbers.rebalance().map(lambda number: number).uid("same").name("same")

        return program

    saved = interrupted(of_type(Types.LONG()), source)
    with pytest.raises(RestoreError, match=r'to "same" \(uid same\), of type LONG, but the program now sends DOUBLE'):
        run(of_type(Types.DOUBLE()), source, restored=saved)
