"""What a figure was measured on: without it a rate means nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = ("headrace", "pyspark", "pyarrow", "rocksdict", "msgspec", "numpy")


def facts() -> dict[str, Any]:
    """Describe the machine and our own side's versions; what cannot be found out is None."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _first_match(Path("/proc/cpuinfo"), r"model name\s*:\s*(.+)"),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": _java(),
        "load_average_before": round(os.getloadavg()[0], 2),
        "versions": {package: _version(package) for package in PACKAGES},
    }


def _first_match(path: Path, pattern: str) -> str | None:
    found = re.search(pattern, path.read_text()) if path.exists() else None
    return found.group(1).strip() if found else None


def _java() -> str | None:
    java = shutil.which("java")
    if java is None:
        return None
    words = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "([^"]+)"', words)
    return found.group(1) if found else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
