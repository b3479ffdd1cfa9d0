"""What can be checked about this machine before Spark, or even PySpark, comes into it.

Imports neither, so that `headrace doctor` can explain why there is none.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.runtime.spark.errors import JavaNotFoundError, PreflightError, UnsupportedSparkError
from headrace.runtime.spark.java import OLDEST_JAVA, find_java
from headrace.runtime.spark.settings import WORKING_VERSIONS

OLDEST_PYTHON = (3, 11)
DEPENDENCIES = {"pyarrow": "20", "msgspec": "0.20", "rocksdict": "0.3.27"}
"""What a worker needs, in the oldest version that Headrace is made for (as in pyproject.toml)."""


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
    """Check what can be checked without starting Spark: Python, Java, PySpark and the packages of a worker."""
    findings = [_python(), _java(), _pyspark()]
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


def is_working_version(version: str) -> bool:
    """Whether PySpark, or the Spark behind a session, is one that jobs are known to work with."""
    return version == WORKING_VERSIONS or version.startswith(WORKING_VERSIONS + ".")


def _refusal(wrong: Iterable[Finding]) -> str:
    lines = "\n".join(f"  {finding}" for finding in wrong)
    return f"The job cannot start:\n{lines}\nSee also: headrace doctor"


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
