"""Generated uids: the same program finds its state again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from plan_examples import Program

from headrace.plan.graph import Rebalance


def simple(parallelism: int = 2) -> Program:
    p = Program(parallelism)
    p.sink("out", p.keyed("count", p.source()))
    return p


def uids(program: Program) -> dict[str, str]:
    return {node.name: node.uid for node in program.graph().nodes}


def test_the_same_program_has_the_same_uids_in_another_process() -> None:
    code = "from test_generated_uids import *; print(sorted(uids(simple()).values()))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
    )
    assert answer.stdout.strip() == str(sorted(uids(simple()).values()))


def test_uids_survive_a_change_of_parallelism() -> None:
    assert uids(simple(2)) == uids(simple(7))


def test_an_operator_added_elsewhere_changes_no_uid() -> None:
    before = uids(simple())
    p = simple()
    p.sink("other", p.map("extra", p.drafts[0]))
    after = uids(p)
    assert {name: after[name] for name in before} == before


def test_an_operator_added_before_changes_the_uids_behind_it() -> None:
    p = Program()
    p.sink("out", p.keyed("count", p.map("new", p.source())))
    before, after = uids(simple()), uids(p)
    assert after["source"] == before["source"]
    assert after["count"] != before["count"]


def test_a_given_uid_shields_what_comes_after_it() -> None:
    def program(extra: bool) -> Program:
        p = Program()
        source = p.source()
        p.sink("out", p.keyed("count", p.map("new", source) if extra else source, uid="my-count"))
        return p

    assert uids(program(False))["out"] == uids(program(True))["out"]


def test_equal_branches_are_told_apart_by_their_order() -> None:
    p = Program()
    source = p.source()
    p.map("same", source)
    p.map("same", source)
    p.map("same", (source, Rebalance()))
    found = [node.uid for node in p.graph().nodes]
    assert len(set(found)) == 4


def test_uids_begin_with_a_readable_name() -> None:
    p = Program()
    p.source("Sensor readings (north)")
    assert p.graph().nodes[0].uid.startswith("sensor-readings-north-")


def test_a_given_uid_is_kept_and_marked() -> None:
    p = Program()
    p.source(uid="mine")
    (node,) = p.graph().nodes
    assert (node.uid, node.uid_is_generated) == ("mine", False)
