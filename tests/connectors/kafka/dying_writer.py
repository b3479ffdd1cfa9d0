"""A process that writes to Kafka exactly once until it is killed: `dying_writer.py '{"servers": …}'`.

Prints `prepared` when its checkpoint is on disk, `committed` when its commit has returned, and waits to be killed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from sink_lives import Life, numbers, sink_builder


def main(servers: str, topic: str, markers: str, checkpoint: str, until: str) -> None:
    life = Life(sink_builder(servers, topic, markers).build())
    life.write(*numbers(200))
    if until != "writing":
        (item,) = life.barrier(1)
        Path(checkpoint).write_bytes(item)
    if until in ("committing", "committed"):
        print("committing", flush=True)
        life.complete(1)
    life.write(*numbers(50, 200))
    print(until, flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
