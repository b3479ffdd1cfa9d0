"""The peers' own environments under `bench/.env/`, installed by the benchmark and kept until their recipe changes.

.env/bare-loop, .env/bytewax, .env/spark   virtual environments, by pip
.env/flink                                  classes/ and libs/, by Maven from bench/peers/flink/pom.xml
.env/<name>/.recipe                         hash of what it was made from; another hash means: make it again
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parent
ENV_HOME = BENCH / ".env"
FLINK_SOURCES = BENCH / "peers" / "flink"

REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "bare-loop": ("pyarrow==26.*",),
    "bytewax": ("bytewax==0.21.*", "pyarrow==26.*"),
    # transformWithState speaks protobuf with the JVM, which pyspark does not install by itself.
    "spark": ("pyspark==4.3.0", "pyarrow==26.*", "pandas>=2.2,<3", "protobuf>=6"),
}
NAMES = (*REQUIREMENTS, "flink")


class InstallError(RuntimeError):
    """A peer's environment could not be made; the peer's figures are then missing."""


def ensure(name: str) -> Path:
    """Return the directory of an environment, installing it first if it is absent or of another recipe."""
    directory = ENV_HOME / name
    stamp = directory / ".recipe"
    recipe = _recipe(name)
    if stamp.exists() and stamp.read_text() == recipe:
        return directory
    shutil.rmtree(directory, ignore_errors=True)
    print(f"Installing the {name} environment …", file=sys.stderr)
    if name == "flink":
        _install_flink(directory)
    else:
        _install_python(directory, REQUIREMENTS[name])
    stamp.write_text(recipe)
    return directory


def _recipe(name: str) -> str:
    digest = hashlib.sha256(sys.version.encode())
    if name == "flink":
        for path in [*sorted((FLINK_SOURCES / "src").rglob("*.java")), FLINK_SOURCES / "pom.xml"]:
            digest.update(path.read_bytes())
    elif name in REQUIREMENTS:
        digest.update("\n".join(REQUIREMENTS[name]).encode())
    else:
        raise InstallError(f'No environment is called "{name}". There are: {", ".join(NAMES)}.')
    return digest.hexdigest()


def _install_python(directory: Path, requirements: tuple[str, ...]) -> None:
    _run([sys.executable, "-m", "venv", str(directory)], f"make {directory}")
    _run([str(directory / "bin" / "pip"), "install", "--quiet", *requirements], f"install {' '.join(requirements)}")


def _install_flink(directory: Path) -> None:
    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise InstallError("The Flink peer needs `mvn` and `java` (17 or newer) on PATH: install maven and a JDK.")
    command = ["mvn", "-B", "-ntp", "-q", "-f", str(FLINK_SOURCES / "pom.xml"), "package", f"-Dbench.out={directory}"]
    _run(command, "build the Flink peer with Maven")


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise InstallError(f"Could not {what}: exit code {done.returncode}.\n{words}")
