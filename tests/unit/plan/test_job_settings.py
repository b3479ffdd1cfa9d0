"""Settings of a run, and the id that a job is known by."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ConfigurationError
from headrace.plan.settings import CheckpointSettings, job_id_of


@pytest.mark.parametrize(
    ("name", "job_id"),
    [
        ("alerts", "alerts"),
        ("Temperature alerts (hourly)", "temperature-alerts-hourly"),
        ("Zähler v1.2", "zahler-v1.2"),
        ("../../etc/passwd", "etc-passwd"),
        ("x" * 300, "x" * 100),
    ],
)
def test_a_job_id_is_a_safe_directory_name(name: str, job_id: str) -> None:
    assert job_id_of(name) == job_id


@pytest.mark.parametrize("name", ["", "···", "../.."])
def test_a_name_that_leaves_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="no letter or digit"):
        job_id_of(name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval_ms": 0},
        {"interval_ms": -1},
        {"timeout_ms": 0},
        {"min_pause_ms": -1},
        {"max_concurrent": 0},
        {"tolerable_failures": -1},
        {"retain": 0},
        {"alignment_max_bytes": 0},
        {"aligned_timeout_ms": -1},
        {"retain": True},
    ],
)
def test_checkpoint_settings_that_cannot_work_name_themselves_and_the_wanted_value(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="wanted a whole number"):
        CheckpointSettings(**wrong)
