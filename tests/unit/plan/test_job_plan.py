"""Chains, levels and slots."""

from __future__ import annotations

from plan_examples import Program, chain_names, slots_of

from headrace.plan.graph import Broadcast, Chaining, Forward, Rebalance


def test_forward_operators_of_one_width_run_in_one_task() -> None:
    p = Program()
    p.sink("out", p.filter("keep", p.map("double", p.source())))
    plan = p.plan()
    assert chain_names(plan) == [(0, ["source", "double", "keep", "out"])]
    assert plan.exchanged == frozenset()
    assert plan.total_slots == 2


def test_a_key_starts_a_new_level() -> None:
    p = Program()
    p.sink("out", p.keyed("count", p.map("double", p.source())))
    plan = p.plan()
    assert chain_names(plan) == [(0, ["source", "double"]), (1, ["count", "out"])]
    assert len(plan.exchanged) == 1
    assert [level.slots for level in plan.levels] == [2, 2]


def test_a_change_of_parallelism_starts_a_new_level_with_round_robin() -> None:
    p = Program(parallelism=3)
    p.map("narrow", p.source(), parallelism=1)
    plan = p.plan()
    assert chain_names(plan) == [(0, ["source"]), (1, ["narrow"])]
    assert plan.graph.edges[0].partitioning == Rebalance()
    assert plan.total_slots == 4
    assert plan.largest_level == 3


def test_an_operator_that_feeds_several_forms_a_tree_in_one_chain() -> None:
    p = Program()
    source = p.source()
    p.sink("left", p.map("a", source))
    p.sink("right", p.map("b", source))
    assert chain_names(p.plan()) == [(0, ["source", "a", "left", "b", "right"])]


def test_a_union_is_never_chained_because_it_has_two_inputs() -> None:
    p = Program()
    p.sink("out", p.source("one"), p.source("two"))
    plan = p.plan()
    assert chain_names(plan) == [(0, ["one"]), (0, ["two"]), (1, ["out"])]
    assert plan.exchanged == {0, 1}


def test_a_source_stands_as_late_as_its_consumers_allow() -> None:
    p = Program()
    counted = p.keyed("count", p.source("early"))
    p.sink("out", (counted, Rebalance()), (p.source("late"), Rebalance()))
    assert chain_names(p.plan()) == [(0, ["early"]), (1, ["count"]), (1, ["late"]), (2, ["out"])]


def test_a_source_that_feeds_two_levels_stands_before_the_first_of_them() -> None:
    p = Program()
    source = p.source()
    counted = p.keyed("count", source)
    p.sink("out", (counted, Rebalance()), (source, Broadcast()))
    assert chain_names(p.plan()) == [(0, ["source"]), (1, ["count"]), (2, ["out"])]


def test_chaining_switches_split_chains_where_they_say() -> None:
    p = Program()
    head = p.map("head", p.source(), chaining=Chaining.HEAD)
    joined = p.map("joined", head)
    alone = p.map("alone", joined, chaining=Chaining.NEVER)
    p.map("after", alone)
    assert chain_names(p.plan()) == [(0, ["source"]), (1, ["head", "joined"]), (2, ["alone"]), (3, ["after"])]


def test_no_operators_are_chained_when_chaining_is_off() -> None:
    p = Program()
    p.sink("out", p.map("double", p.source()))
    plan = p.plan(chaining=False)
    assert chain_names(plan) == [(0, ["source"]), (1, ["double"]), (2, ["out"])]
    assert all(edge.partitioning == Forward() for edge in plan.graph.edges)


def test_narrow_chains_of_a_level_are_spread_over_its_slots() -> None:
    p = Program(parallelism=4)
    p.source("wide")
    for name in ("a", "b", "c", "d", "e"):
        p.source(name, parallelism=1)
    plan = p.plan()
    assert slots_of(plan, "wide") == (0, 1, 2, 3)
    assert [slots_of(plan, name) for name in "abcde"] == [(0,), (1,), (2,), (3,), (0,)]


def test_a_chain_never_has_two_subtasks_on_one_slot() -> None:
    p = Program(parallelism=5)
    for width in (1, 2, 3, 4, 5, 3):
        p.source(f"w{width}-{len(p.drafts)}", parallelism=width)
    for chain in p.plan().chains:
        assert len(set(chain.slots)) == chain.parallelism
        assert chain.slots == tuple(sorted(chain.slots))


def test_a_stream_that_nobody_reads_is_allowed() -> None:
    p = Program()
    p.map("dangling", p.source())
    assert chain_names(p.plan()) == [(0, ["source", "dangling"])]


def test_operators_declared_before_are_part_of_a_graph_that_they_feed() -> None:
    p = Program()
    source = p.source()
    p.drafts.clear()
    p.sink("second job", source)
    assert chain_names(p.plan()) == [(0, ["source", "second job"])]


def test_the_same_graph_gives_the_same_plan() -> None:
    p = Program(parallelism=3)
    p.sink("out", p.keyed("count", p.source(parallelism=2)), parallelism=1)
    assert p.plan() == p.plan()
