"""A PySpark or a Spark of another version is refused when a job starts, with the words of `headrace doctor`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from click.testing import CliRunner

from headrace import StreamExecutionEnvironment
from headrace.cli.main import main
from headrace.runtime.spark.errors import UnsupportedSparkError
from headrace.runtime.spark.machine import check_machine
from headrace.runtime.spark.pipelined import probe

OTHERS = ["4.2.1", "4.4.0", "4.30.0", "3.5.1", "5.0.0.dev1"]


@pytest.mark.parametrize("version", OTHERS)
def test_a_job_does_not_start_on_another_pyspark_and_says_what_doctor_says(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1, 2, 3]).print()

    with pytest.raises(UnsupportedSparkError) as refusal:
        env.execute("another version")

    [finding] = [finding for finding in check_machine() if not finding.ok]
    assert finding.name == "PySpark"
    assert str(finding) in str(refusal.value)
    assert f"PySpark: {version}; wanted 4.3.x. Install it with: pip install" in str(refusal.value)
    told = CliRunner().invoke(main, ["doctor", "--no-spark"])
    assert told.exit_code == 1
    assert f"PySpark: {finding.remedy}" in told.output
    assert version in told.output


@pytest.mark.parametrize("version", ["4.3", "4.3.0", "4.3.7", "4.3.0.dev2"])
def test_versions_that_work_are_well(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    assert all(finding.ok for finding in check_machine())


@pytest.mark.parametrize("version", ["4.2.0", "4.4.0-SNAPSHOT"])
def test_another_spark_behind_the_session_is_refused_whatever_its_shape(version: str) -> None:
    """As SPARK_HOME or a session of the user's may bring it. Its version is all that is looked at."""
    session: Any = SimpleNamespace(version=version)
    with pytest.raises(UnsupportedSparkError, match=rf"Spark {version} is behind this session: wanted 4\.3\.x.*pip"):
        probe(session)
