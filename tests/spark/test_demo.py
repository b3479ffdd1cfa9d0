"""`headrace demo` from end to end, smaller than by default: a worker is killed, then the whole process tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from headrace.demo.job import THRESHOLD, sensors

pytestmark = pytest.mark.spark


@pytest.mark.timeout(900)
def test_the_demo_kills_twice_and_every_alert_arrives_once(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    command = [sys.executable, "-m", "headrace.cli", "demo", "--readings", "80000", "--rate", "10000", "--seed", "5"]
    ran = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    table = {
        name: value.strip()
        for line in ran.stdout.splitlines()
        for name, _, value in [line.partition("   ")]
        if value.strip() and not line.startswith(" ")
    }
    expected = sensors(80_000, 10_000, 5, 0).expected_alerts(THRESHOLD)
    assert table["readings"] == "80,000"
    assert table["alerts expected"] == table["alerts received"] == f"{expected:,}"
    assert table["lost"] == table["duplicated"] == "0"
    assert table["restarts"] == "1 within the process, 1 new process"
    assert "SIGKILL for worker" in ran.stdout
    assert "SIGKILL for the whole process tree" in ran.stdout
    lines = sum(len(file.read_text().splitlines()) for file in (out / "alerts").glob("*.jsonl"))
    assert lines == expected
    ElementTree.parse(out / "throughput.svg")
