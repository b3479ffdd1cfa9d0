"""What is refused before anything starts."""

from __future__ import annotations

import pytest
from plan_examples import Program

from headrace.errors import DuplicateUidError, JobDefinitionError, KeyedStateError
from headrace.operators.factories import ProcessFactory
from headrace.plan.graph import Forward


def test_two_operators_with_one_uid_are_both_named() -> None:
    p = Program()
    source = p.source(declared_at="jobs/a.py:1")
    p.map("first", source, uid="x", declared_at="jobs/a.py:7")
    p.map("second", source, uid="x", declared_at="jobs/b.py:9")
    with pytest.raises(DuplicateUidError) as caught:
        p.plan()
    for part in ('"x"', "first", "jobs/a.py:7", "second", "jobs/b.py:9", "Rename one"):
        assert part in str(caught.value)


def test_a_parallelism_above_the_maximum_is_refused() -> None:
    p = Program(parallelism=200)
    p.source()
    with pytest.raises(
        JobDefinitionError, match=r"parallelism of operator .* is 200, above its max parallelism of 128"
    ):
        p.plan()


@pytest.mark.parametrize("max_parallelism", [0, -1, 32_769])
def test_a_maximum_out_of_bounds_is_refused(max_parallelism: int) -> None:
    p = Program(parallelism=1)
    p.source(max_parallelism=max_parallelism)
    with pytest.raises(JobDefinitionError, match="wanted 1 to 32768"):
        p.plan()


def test_forward_between_unequal_widths_is_refused() -> None:
    p = Program()
    p.map("narrow", (p.source(), Forward()), parallelism=1)
    with pytest.raises(JobDefinitionError, match=r"of parallelism 2 with .*narrow.* of parallelism 1.*rebalance\(\)"):
        p.plan()


def test_a_keyed_operator_without_a_key_is_refused() -> None:
    p = Program()
    p.add("count", ProcessFactory(str, keyed=True), p.source())
    with pytest.raises(KeyedStateError, match=r"count.*Call key_by\(\) first"):
        p.plan()


def test_a_job_without_operators_is_refused() -> None:
    with pytest.raises(JobDefinitionError, match=r"has no operators.*from_source"):
        Program().plan()


def test_an_operator_that_nothing_feeds_is_refused() -> None:
    p = Program()
    p.map("orphan")
    with pytest.raises(JobDefinitionError, match=r"Nothing feeds operator .orphan."):
        p.plan()
