"""The process that forks workers: loaded, single-threaded, with the right environment."""

from __future__ import annotations

import json
import subprocess
import sys

PROBE = """
import json, os, sys
sys.path.append("/nowhere/pyspark.zip")
os.environ["SPARK_BUFFER_SIZE"] = "128"
from headrace.runtime.spark.daemon import prepare
prepare()
wanted = ("numpy", "pyarrow", "msgspec", "rocksdict", "pyspark.worker")
print(json.dumps({
    "threads": len(os.listdir("/proc/self/task")),
    "loaded": sorted(name for name in wanted if name in sys.modules),
    "zips": [entry for entry in sys.path if entry.endswith(".zip")],
    "buffer": os.environ["SPARK_BUFFER_SIZE"],
    "blas": os.environ["OPENBLAS_NUM_THREADS"],
}))
"""


def prepared() -> dict[str, object]:
    run = subprocess.run(
        [sys.executable, "-c", PROBE],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
    )
    assert run.stderr == ""
    found: dict[str, object] = json.loads(run.stdout)
    return found


def test_everything_a_task_needs_is_loaded_before_the_first_fork_and_no_thread_runs() -> None:
    assert prepared() == {
        # Counted by the kernel: threads of native libraries are none of Python's.
        "threads": 1,
        "loaded": ["msgspec", "numpy", "pyarrow", "pyspark.worker", "rocksdict"],
        "zips": [],
        "buffer": "65536",
        "blas": "1",
    }
