"""The Kafka demo's payments and its judge, without Kafka."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.demo.kafka_payments import expected_alerts, judge, payments
from headrace.demo.kafka_show import _make_room
from headrace.errors import ConfigurationError


def test_payments_are_the_same_for_the_same_seed_and_fill_partitions_evenly() -> None:
    some = list(payments(1_000, 2, seed=3))
    assert some == list(payments(1_000, 2, seed=3)) != list(payments(1_000, 2, seed=4))
    assert [sum(p.partition == n for p in some) for n in (0, 1)] == [500, 500]
    assert len({(p.account, p.partition) for p in some}) == len({p.account for p in some}), "an account has one place"
    assert json.loads(some[7].encode()) == {"account": some[7].account, "number": 7, "amount": some[7].amount}


def test_the_judge_notices_what_is_lost_double_made_up_or_out_of_order() -> None:
    alerts = expected_alerts(payments(3_000, 2, seed=1))
    assert judge(alerts, alerts).exactly_once
    assert judge(alerts, alerts[1:]).lost == 1
    assert judge(alerts, [*alerts, alerts[0]]).duplicated == 1
    account, number, balance = alerts[0]
    assert not judge(alerts, [(account, number, balance - 1), *alerts[1:]]).exactly_once
    assert judge(alerts, alerts[::-1]).out_of_order > 0


def test_the_demo_takes_an_empty_directory_or_its_own(tmp_path: Path) -> None:
    _make_room(tmp_path / "new")
    (tmp_path / "new" / "checkpoints").mkdir()
    _make_room(tmp_path / "new")
    assert not (tmp_path / "new" / "checkpoints").exists()
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(ConfigurationError, match="holds other files"):
        _make_room(tmp_path)
    assert (tmp_path / "mine").exists()
