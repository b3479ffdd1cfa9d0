"""`make demo-kafka` from end to end, smaller than by default: the job is killed twice, and its broker once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.services.kafka import CACHE

from headrace.demo import kafka_job
from headrace.demo.kafka_payments import expected_alerts, payments

PAYMENTS = 6_000
SEED = 5


@pytest.mark.spark
@pytest.mark.service
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_kafka_demo_kills_job_and_broker_and_every_alert_is_in_the_topic_once(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    command = [sys.executable, "-m", "headrace.demo.kafka_show", "--payments", str(PAYMENTS), "--seconds", "1"]
    command += ["--seed", str(SEED), "--out", str(out), "--cache", str(CACHE)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    log = out / "job.log"
    said = ran.stdout + ran.stderr + (log.read_text(errors="replace")[-3_000:] if log.exists() else "")
    assert ran.returncode == 0, said
    expected = len(expected_alerts(payments(PAYMENTS, kafka_job.PARTITIONS, SEED)))
    assert expected > 100
    assert f"{expected:,} of {expected:,} alerts from {PAYMENTS:,} payments: lost 0, double 0" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "exactly once"
    assert ran.stdout.count("SIGKILL for the job's whole process tree") == 2
    assert ran.stdout.count("SIGKILL for the broker") == 1
    assert ran.stdout.count("started the job") == 3


def test_the_target_of_the_makefile_is_what_is_tested_here() -> None:
    recipe = (Path(__file__).parents[3] / "Makefile").read_text()
    assert "\ndemo-kafka: venv\n\t$(BIN)/python -m headrace.demo.kafka_show $(ARGS)\n" in recipe
