"""The job with every kind of state as a program of its own: `every_state_job.py '{"directory": …, "parallelism": 3}'`.

Its input comes in parts: the first is held back until the file `rules-known` lies in the directory, part n + 1 until
`go-n` does. Exits 130 after Ctrl-C.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from every_state import EVENT, TIME_OF_ONE_MS, everything

from headrace import (
    EmbeddedRocksDBStateBackend,
    Encoder,
    ExternalizedCheckpointRetention,
    FileSink,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from headrace.testing import TestSource, WaitUntil

KEYS = [f"key-{n}" for n in range(23)]
EVENTS = [(KEYS[n * n % len(KEYS)], n) for n in range(600)]
RULES = {"limit": 7, "floor": -3}


def there(path: Path) -> Callable[[], bool]:
    return path.exists


def run(settings: dict[str, Any]) -> int:
    directory = Path(settings["directory"])
    parts = settings["parts"]
    size = len(EVENTS) // parts
    script: list[Any] = [WaitUntil(there(directory / "rules-known"))]
    for part in range(parts):
        script += EVENTS[part * size : (part + 1) * size]
        # Nothing ends before the test says so, or there would be nothing left to go on with.
        script.append(WaitUntil(there(directory / f"go-{part}")))
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings["parallelism"])
    env.enable_checkpointing(100)
    config = env.get_checkpoint_config()
    config.set_checkpoint_storage(f"file://{directory}/checkpoints")
    config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
    env.set_state_backend(EmbeddedRocksDBStateBackend())
    in_order = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda event, _: event[1] * TIME_OF_ONE_MS
    )
    events = env.from_source(TestSource(script, EVENT), in_order, "events").uid("events")
    told = TestSource(list(RULES.items()), Types.TUPLE([Types.STRING(), Types.LONG()]))
    rules = env.from_source(told, WatermarkStrategy.no_watermarks(), "rules").uid("rules")
    sink = FileSink.for_row_format(str(directory / "out"), Encoder.simple_string_encoder()).build()
    everything(events, rules).map(repr, output_type=Types.STRING()).sink_to(sink).uid("sink")
    try:
        env.execute("ledger")
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(run(json.loads(sys.argv[1])))
