"""The ledger as a program of its own, for tests that kill whole processes: `ledger_job.py '{"directory": …}'`.

Exits 0 when the job finished, 130 after Ctrl-C, 3 if another process owns the job, 4 if this one was fenced off.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from ledger import Ledger, LedgerSink, ledger_stream
from pyspark.sql import SparkSession

from headrace import (
    EmbeddedRocksDBStateBackend,
    ExternalizedCheckpointRetention,
    HashMapStateBackend,
    RestartStrategies,
    StreamExecutionEnvironment,
    spark_conf,
)
from headrace.checkpoint.storage.hdfs import HdfsCheckpointStorage
from headrace.datastream.overrides import Overrides, overriding
from headrace.errors import FencedError, JobOwnedError


def run(settings: dict[str, Any]) -> int:
    directory = Path(settings["directory"])
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.get("parallelism", 2))
    env.enable_checkpointing(settings.get("interval", 100))
    config = env.get_checkpoint_config()
    hdfs = settings.get("hdfs")
    # On HDFS all state is to go to files, however small.
    on_hdfs = None if hdfs is None else HdfsCheckpointStorage(hdfs, file_state_size_threshold=0)
    config.set_checkpoint_storage(on_hdfs or f"file://{directory}/checkpoints")
    config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
    if settings.get("mode") == "unaligned":
        config.enable_unaligned_checkpoints()
    rocksdb = settings.get("backend") == "rocksdb"
    env.set_state_backend(EmbeddedRocksDBStateBackend() if rocksdb else HashMapStateBackend())
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(settings.get("restarts", 10), 20))
    if settings.get("own_session"):
        # The program's own Spark, active in its process.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        builder = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.executorEnv.PYTHONPATH", str(Path(__file__).parent))
        builder.config(map=spark_conf(4, 2)).getOrCreate()
    ledger_stream(env, Ledger(**settings["ledger"])).sink_to(LedgerSink(directory / "out")).uid("sink")
    with overriding(Overrides(master=settings.get("master"), take_over=settings.get("take_over", False))):
        try:
            env.execute("ledger")
        except KeyboardInterrupt:
            return 130
        except JobOwnedError as error:
            print(error, file=sys.stderr)
            return 3
        except FencedError as error:
            print(error, file=sys.stderr)
            return 4
    return 0


if __name__ == "__main__":
    sys.exit(run(json.loads(sys.argv[1])))
