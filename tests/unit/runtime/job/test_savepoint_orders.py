"""Orders for savepoints: each gets exactly one answer, whatever becomes of the attempt and the job."""

from __future__ import annotations

import pytest

from headrace.errors import SavepointError
from headrace.runtime.coordinator.savepoints import Savepoint, SavepointOrder, SavepointOrders

DONE = Savepoint("file:///kept", 7, 10, 100)


def test_an_attempt_that_fails_fails_what_it_had_taken_and_leaves_the_rest_to_the_next() -> None:
    orders = SavepointOrders()
    taken, waiting = SavepointOrder("file:///a", taken=True), SavepointOrder("file:///b")
    assert orders.add(taken)
    assert orders.add(waiting)
    orders.end_attempt("the job failed")
    with pytest.raises(SavepointError, match="file:///a failed: the job failed"):
        taken.answer.result(0)
    assert not waiting.answer.done()
    assert orders.get(waiting.request) is waiting


def test_a_stop_whose_savepoint_is_complete_outlives_its_attempt() -> None:
    orders = SavepointOrders()
    order = SavepointOrder("file:///a", stop=True, taken=True)
    orders.add(order)
    assert orders.stopped is None
    order.published = DONE
    assert orders.stopped is order
    orders.end_attempt("the job failed")
    assert not order.answer.done()
    orders.complete(order)
    assert order.answer.result(0) == DONE
    assert orders.stopped is None


def test_the_end_of_the_job_answers_everybody_and_names_a_savepoint_that_is_there() -> None:
    orders = SavepointOrders()
    waiting, published = SavepointOrder("file:///a"), SavepointOrder("file:///b", stop=True, published=DONE)
    for order in (waiting, published):
        orders.add(order)
    orders.end("The job has ended.")
    with pytest.raises(SavepointError, match="The job has ended"):
        waiting.answer.result(0)
    with pytest.raises(SavepointError, match="itself is complete: file:///kept"):
        published.answer.result(0)
    late = SavepointOrder("file:///c")
    assert not orders.add(late)
    with pytest.raises(SavepointError, match="The job has ended"):
        late.answer.result(0)
