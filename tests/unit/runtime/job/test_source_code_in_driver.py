"""Sources whose enumerators raise in the driver: a typed error with operator, uid, method and the user's line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.source import EnumeratorContext, ReaderContext, Source, SourceReader, SplitEnumerator
from headrace.errors import ConfigurationError, RestoreError, UserFunctionError
from headrace.runtime.control.messages import Announced, Message, SplitRequest
from headrace.runtime.job.enumerators import Enumerators


class Page(msgspec.Struct):
    split_id: str
    line: int = 0


class PageEnumerator(SplitEnumerator[Page]):
    """Deals pages out; fails in the method that its source names."""

    discovery_interval_ms = 10

    def __init__(self, source: Book, context: EnumeratorContext, restored: bytes | None) -> None:
        self.context = context
        self.pages = list((restored or b"1,2").decode().split(","))
        self._source = source
        source.fails("create_enumerator()")

    def start(self) -> None:
        self._source.fails("start()")

    def handle_split_request(self, subtask: int) -> None:
        self._source.fails("handle_split_request()")
        if self._source.failing == "assign":
            self.context.assign(subtask, [object()])
        self.context.assign(subtask, [Page(self.pages.pop(0))])

    def add_splits_back(self, splits: Sequence[Page]) -> None:
        self._source.fails("add_splits_back()")
        self.pages[:0] = [page.split_id for page in splits]

    def discover(self) -> None:
        self._source.fails("discover()")

    def snapshot_state(self) -> bytes:
        self._source.fails("snapshot_state()")
        return ",".join(self.pages).encode()

    def close(self) -> None:
        self._source.closed = True
        self._source.fails("close()")


class Book(Source[Page]):
    split_type = Page

    def __init__(self, failing: str = "", error: Exception | None = None) -> None:
        self.failing = failing
        self.error = error or ZeroDivisionError("page 0 of 0")
        self.closed = False

    def fails(self, method: str) -> None:
        if method == self.failing:
            raise self.error

    def create_enumerator(self, context: EnumeratorContext, restored: bytes | None) -> PageEnumerator:
        return PageEnumerator(self, context, restored)

    def create_reader(self, context: ReaderContext) -> SourceReader[Page]:
        raise AssertionError("no task runs")


def no_state(uid: str) -> bytes | None:
    return None


def one_split(uid: str) -> Sequence[bytes]:
    return [msgspec.msgpack.encode(Page("9"))]


def enumerators_of(
    *books: Book,
    sent: list[Message] | None = None,
    state: Callable[[str], bytes | None] = no_state,
    splits: Callable[[str], Sequence[bytes]] = one_split,
) -> Enumerators:
    env = StreamExecutionEnvironment.get_execution_environment()
    streams = [
        env.from_source(book, WatermarkStrategy.no_watermarks(), f"book {n}").uid(f"book-{n}")
        for n, book in enumerate(books)
    ]
    for stream in streams:
        stream.print()
    told = [] if sent is None else sent
    return Enumerators(env.build("job")[0], lambda uid, subtask, message: told.append(message), state, splits)


def restored(enumerators: Enumerators) -> Enumerators:
    enumerators.restore()
    return enumerators


def started(enumerators: Enumerators) -> Enumerators:
    restored(enumerators).start(0)
    return enumerators


USES: dict[str, Callable[[Enumerators], Any]] = {
    "create_enumerator()": restored,
    "add_splits_back()": restored,
    "start()": lambda e: restored(e).start(0),
    "handle_split_request()": lambda e: restored(e).hear(SplitRequest("book-0", 0)),
    "assign": lambda e: restored(e).hear(SplitRequest("book-0", 0)),
    "discover()": lambda e: started(e).discover(10),
    "snapshot_state()": lambda e: restored(e).snapshot(),
}


@pytest.mark.parametrize("method", USES)
def test_an_enumerator_that_raises_is_named_with_its_method_and_line(method: str) -> None:
    with pytest.raises(UserFunctionError) as caught:
        USES[method](enumerators_of(Book(method)))

    error = caught.value
    assert (error.operator, error.uid) == ("book 0", "book-0")
    assert ("handle_split_request()" if method == "assign" else method) in str(error)
    assert error.location.startswith(__file__), "the line in the program, not the one in Headrace"
    if method != "assign":
        assert "ZeroDivisionError: page 0 of 0" in str(error)
        assert "raise self.error" in error.cause


def test_a_typed_error_keeps_its_type_which_says_whether_it_may_be_tried_again() -> None:
    with pytest.raises(ConfigurationError, match="no such shelf"):
        restored(enumerators_of(Book("start()", ConfigurationError("no such shelf")))).start(0)


def test_a_look_that_is_asked_for_is_guarded_like_one_that_was_due() -> None:
    with pytest.raises(UserFunctionError, match=r"discover\(\)"):
        restored(enumerators_of(Book("discover()"))).look("book-0")


def test_a_failing_close_is_logged_and_the_others_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    books = Book("close()"), Book()
    enumerators = restored(enumerators_of(*books))
    with caplog.at_level(logging.WARNING):
        enumerators.close()

    assert [book.closed for book in books] == [True, True]
    (record,) = caplog.records
    assert "book-0" in record.getMessage()
    assert record.exc_info is not None


def test_splits_of_another_shape_are_a_refused_restore() -> None:
    with pytest.raises(RestoreError, match=r'"book 0" \(uid "book-0"\).*cannot be read as Page'):
        enumerators_of(Book(), splits=lambda uid: [msgspec.msgpack.encode({"split_id": 7})]).restore()


def test_a_source_that_could_not_be_created_stands_where_it_was_to_go_on_from() -> None:
    saved = msgspec.msgpack.encode(Page("4", line=12))
    states = {"book-0": b"5", "book-1": b"6,7"}
    failing = enumerators_of(Book(), Book("create_enumerator()"), state=states.get, splits=lambda uid: [saved])
    with pytest.raises(UserFunctionError):
        failing.restore()

    standing = failing.standing()

    assert (standing.state("book-0"), standing.splits("book-0")) == (b"4,5", [])
    assert (standing.state("book-1"), standing.splits("book-1")) == (b"6,7", [saved])


def test_splits_that_could_not_be_given_back_are_not_lost() -> None:
    saved = msgspec.msgpack.encode(Page("4", line=12))
    failing = enumerators_of(Book("add_splits_back()"), state=lambda uid: b"5", splits=lambda uid: [saved])
    with pytest.raises(UserFunctionError):
        failing.restore()
    standing = failing.standing()
    assert (standing.state("book-0"), standing.splits("book-0")) == (b"5", [saved])


def test_where_sources_stand_is_what_is_left_and_what_readers_are_at() -> None:
    enumerators = enumerators_of(Book(), splits=lambda uid: ())
    enumerators.restore()
    enumerators.hear(SplitRequest("book-0", 0))
    at = msgspec.msgpack.encode(Page("1", line=3))
    enumerators.hear(Announced("book-0", 0, (at,)))

    standing = enumerators.standing()

    assert (standing.state("book-0"), standing.splits("book-0")) == (b"2", [at])


def test_a_job_whose_checkpoints_hold_positions_does_not_remember_every_split_it_ever_assigned() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_source(Book(), WatermarkStrategy.no_watermarks(), "book 0").uid("book-0").print()
    plan, sent = env.build("job")[0], list[Message]()
    enumerators = Enumerators(plan, lambda uid, subtask, message: sent.append(message), keeps_positions=False)
    enumerators.restore()
    enumerators.hear(SplitRequest("book-0", 0))
    assert sent
    assert enumerators.positions == {}
