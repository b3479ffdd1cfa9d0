"""Temporal join: each record meets the row that was valid at its time, as a plain model finds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from two_input_rig import BOTH, Rig

from headrace import MIN_WATERMARK, OutputTag, Types
from headrace.datastream.joins import pair
from headrace.errors import UserFunctionError
from headrace.operators.temporal_join import TemporalJoinOperator

LATE = OutputTag("late")


def join(outer: bool = True) -> Any:
    return lambda: TemporalJoinOperator(
        pair, Types.STRING(), Types.STRING(), outer=outer, is_deletion=lambda row: row == "deleted", late=LATE
    )


@pytest.mark.parametrize("flavour", BOTH)
def test_a_record_meets_the_row_of_its_own_time_in_whatever_order_they_come(tmp_path: Path, flavour: str) -> None:
    rig = Rig(join(), tmp_path, flavour=flavour)
    rig.feed(0, "at 15", key="k", at=15)
    rig.feed(1, "from 20", key="k", at=20)
    rig.feed(0, "at 20", key="k", at=20)
    rig.feed(1, "from 10", key="k", at=10)
    rig.feed(0, "at 5", key="k", at=5)
    rig.feed(1, "from 1", key="another key", at=1)
    assert rig.out.values == [], "before the watermark nothing is known for good"
    rig.watermark(15)
    assert rig.out.timed == [(("at 5", None), 5), (("at 15", "from 10"), 15)]
    rig.watermark(30)
    assert rig.out.timed[2:] == [(("at 20", "from 20"), 20)]
    rig.close()


def test_an_inner_join_leaves_out_what_has_no_row(tmp_path: Path) -> None:
    rig = Rig(join(outer=False), tmp_path)
    rig.feed(1, "from 10", key="k", at=10)
    rig.feed(1, "deleted", key="k", at=20)
    for at in (5, 15, 25):
        rig.feed(0, f"at {at}", key="k", at=at)
    rig.watermark(100)
    assert rig.out.values == [("at 15", "from 10")]


def test_a_deleted_row_is_gone_until_the_next_one(tmp_path: Path) -> None:
    rig = Rig(join(), tmp_path)
    for at, row in ((10, "a"), (20, "deleted"), (30, "b")):
        rig.feed(1, row, key="k", at=at)
    for at in (19, 20, 29, 30):
        rig.feed(0, f"{at}", key="k", at=at)
    rig.watermark(100)
    assert rig.out.values == [("19", "a"), ("20", None), ("29", None), ("30", "b")]


@pytest.mark.parametrize("flavour", BOTH)
def test_only_the_newest_row_behind_the_watermark_is_kept(tmp_path: Path, flavour: str) -> None:
    rig = Rig(join(), tmp_path, flavour=flavour)
    for at in range(1, 51):
        for key in "ab":
            rig.feed(1, f"from {at}", key=key, at=at)
            rig.feed(0, f"at {at}", key=key, at=at)
    rig.watermark(100)
    assert rig.entries() == 2
    rig.feed(0, "at 100", key="a", at=100)
    rig.feed(0, "at 60", key="b", at=60)
    assert rig.out.values[-2:] == [("at 100", "from 50"), ("at 60", "from 50")]
    rig.close()


def test_a_record_whose_row_is_gone_is_late(tmp_path: Path) -> None:
    rig = Rig(join(), tmp_path)
    rig.feed(1, "from 10", key="k", at=10)
    rig.feed(1, "from 20", key="k", at=20)
    rig.watermark(30)
    rig.feed(0, "at 15", key="k", at=15)
    rig.feed(0, "at 25", key="k", at=25)
    assert rig.out.values == [("at 25", "from 20")]
    assert rig.out.aside == {"late": ["at 15"]}


def test_a_late_row_counts_from_now_on_unless_a_newer_one_does(tmp_path: Path) -> None:
    rig = Rig(join(), tmp_path)
    rig.watermark(100)
    rig.feed(1, "from 50", key="k", at=50)
    rig.feed(0, "at 100", key="k", at=100)
    rig.feed(1, "from 40", key="k", at=40)
    rig.feed(0, "at 101", key="k", at=101)
    rig.watermark(200)
    assert rig.out.values == [("at 100", "from 50"), ("at 101", "from 50")]
    assert rig.entries() == 1


def test_a_record_without_a_timestamp_is_refused(tmp_path: Path) -> None:
    rig = Rig(join(), tmp_path)
    with pytest.raises(UserFunctionError, match="has no timestamp"):
        rig.feed(1, "x", key=1)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.integers(0, 2), st.integers(0, 30)),
        st.tuples(st.just("row"), st.integers(0, 2), st.integers(0, 30)),
        st.tuples(st.just("deleted"), st.integers(0, 2), st.integers(0, 30)),
        st.tuples(st.just("watermark"), st.just(0), st.integers(0, 30)),
        st.tuples(st.just("restart"), st.integers(1, 3), st.just(0)),
    ),
    max_size=40,
)


@pytest.mark.thorough
@settings(max_examples=25)
@given(events=EVENTS, flavour=st.sampled_from(BOTH))
def test_it_finds_the_rows_of_a_plain_model_through_restarts_at_any_width(
    tmp_path_factory: pytest.TempPathFactory, events: list[Any], flavour: str
) -> None:
    """Records and rows that keep to the watermark; what is late has tests of its own."""
    rig = Rig(join(), tmp_path_factory.mktemp("rig"), flavour=flavour)
    watermark = MIN_WATERMARK
    rows: dict[tuple[int, int], str | None] = {}
    records: list[tuple[str, int, int]] = []
    for number, (what, key, at) in enumerate(events):
        match what:
            case "watermark":
                watermark = max(watermark, at)
                rig.watermark(watermark)
            case "restart":
                rig = rig.restarted(rig.snapshot(number + 1), parallelism=key)
                if watermark > MIN_WATERMARK:
                    rig.watermark(watermark)
            case "record" if at > watermark:
                records.append((f"{number}", key, at))
                rig.feed(0, f"{number}", key=key, at=at)
            case "row" | "deleted" if at > watermark:
                rows[key, at] = None if what == "deleted" else f"{number}"
                rig.feed(1, "deleted" if what == "deleted" else f"{number}", key=key, at=at)
    rig.watermark(1_000)

    def valid(key: int, at: int) -> str | None:
        times = [time for its_key, time in rows if its_key == key and time <= at]
        return rows[key, max(times)] if times else None

    assert sorted(rig.out.values, key=str) == sorted(((name, valid(key, at)) for name, key, at in records), key=str)
    assert rig.entries() == len({key for key, _ in rows})
    rig.close()
