"""What can be checked about this machine before Spark, or even PySpark, comes into it.

Imports neither, so that `headrace doctor` can explain why there is none.
"""

from __future__ import annotations

import importlib.metadata
import resource
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.runtime.spark.errors import JavaNotFoundError, PreflightError, UnsupportedSparkError
from headrace.runtime.spark.java import OLDEST_JAVA, find_java
from headrace.runtime.spark.settings import WORKING_VERSIONS

OLDEST_PYTHON = (3, 11)
DEPENDENCIES = {"pyarrow": "20", "msgspec": "0.20", "rocksdict": "0.3.27"}
"""What a worker needs, in the oldest version that Headrace is made for (as in pyproject.toml)."""

# A JVM with Spark had 426 files open in a job of four tasks: jars, mostly. Each task has sockets to its worker and to
# other tasks.
_JVM_FILES = 512
_TASK_FILES = 8
_DRIVER_FILES = 128


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked."""

    name: str
    ok: bool
    found: str
    wanted: str
    remedy: str = ""
    """What to do about it; empty where all is well."""

    @property
    def is_advice(self) -> bool:
        """Nothing that stops a job, but something to know before it runs."""
        return self.ok and bool(self.remedy)

    def __str__(self) -> str:
        if self.ok and not self.remedy:
            return f"{self.name}: {self.found}"
        return f"{self.name}: {self.found}; wanted {self.wanted}. {self.remedy}"


def check_machine() -> list[Finding]:
    """Check what can be checked without starting Spark: Python, Java, PySpark, limits, packages of a worker."""
    findings = [_python(), _java(), _pyspark(), open_files()]
    findings.extend(_package(name, oldest) for name, oldest in DEPENDENCIES.items())
    return findings


def require(findings: Iterable[Finding]) -> None:
    """Raise `PreflightError` with every finding that is not well; return if there is none."""
    wrong = [finding for finding in findings if not finding.ok]
    if wrong:
        raise PreflightError(_refusal(wrong))


def require_pyspark() -> None:
    """Raise `UnsupportedSparkError`, with what `headrace doctor` says, if this PySpark is none that is known to work.

    Called at the start of every job, before Spark is started or a session of the user's is looked at.
    """
    finding = _pyspark()
    if not finding.ok:
        raise UnsupportedSparkError(_refusal([finding]))


def open_files(slots: int = 1) -> Finding:
    """Whether processes of this user may open enough files for a JVM with so many tasks.

    Without them Spark's JVM ends while it starts, and says nothing of the reason.
    """
    wanted = _JVM_FILES + _TASK_FILES * slots
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A JVM raises its soft limit to the hard one by itself; this process does not.
    unlimited = resource.RLIM_INFINITY
    ok = (hard == unlimited or hard >= wanted) and (soft == unlimited or soft >= _DRIVER_FILES)
    return Finding(
        "Open files",
        ok,
        f"at most {_number(soft)}, and {_number(hard)} after ulimit -n" if soft != hard else f"at most {_number(soft)}",
        f"{wanted} or more",
        ""
        if ok
        else f"Raise the limit where the job starts: ulimit -n {wanted}. If the shell refuses, raise the hard limit "
        "first (limits.conf, LimitNOFILE of systemd, ulimits of the container).",
    )


def is_working_version(version: str) -> bool:
    """Whether PySpark, or the Spark behind a session, is one that jobs are known to work with."""
    return version == WORKING_VERSIONS or version.startswith(WORKING_VERSIONS + ".")


def _refusal(wrong: Iterable[Finding]) -> str:
    lines = "\n".join(f"  {finding}" for finding in wrong)
    return f"The job cannot start:\n{lines}\nSee also: headrace doctor"


def _number(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def _python() -> Finding:
    found = ".".join(str(part) for part in sys.version_info[:3])
    oldest = ".".join(str(part) for part in OLDEST_PYTHON)
    ok = sys.version_info >= OLDEST_PYTHON
    return Finding("Python", ok, found, f"{oldest} or newer", "" if ok else f"Install Python {oldest} or newer.")


def _java() -> Finding:
    wanted = f"{OLDEST_JAVA} or newer"
    try:
        java = find_java()
    except JavaNotFoundError as error:
        first, *rest = str(error).splitlines()
        seen = "; ".join(line.strip() for line in rest[:-1])
        return Finding("Java", False, seen or first, wanted, rest[-1] if rest else "")
    return Finding("Java", True, f"{java.version} at {java.home} (by {java.origin})", wanted)


def _pyspark() -> Finding:
    remedy = f'Install it with: pip install "pyspark=={WORKING_VERSIONS}.*"'
    # What is loaded counts: spark-submit brings a PySpark of its own, which may be another than the installed one.
    version = getattr(sys.modules.get("pyspark"), "__version__", None) or _version("pyspark")
    if version is None:
        return Finding("PySpark", False, "not installed", f"{WORKING_VERSIONS}.x", remedy)
    ok = is_working_version(version)
    return Finding("PySpark", ok, version, f"{WORKING_VERSIONS}.x", "" if ok else remedy)


def _package(name: str, oldest: str) -> Finding:
    remedy = f'Install it with: pip install "{name}>={oldest}"'
    version = _version(name)
    if version is None:
        return Finding(name, False, "not installed", f"{oldest} or newer", remedy)
    ok = _numbers(version) >= _numbers(oldest)
    return Finding(name, ok, version, f"{oldest} or newer", "" if ok else remedy)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    numbers = []
    for part in version.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
