"""A process of a job with a Kafka sink that tests pause: `paused_life.py '{"servers": …, "attempt": 2}'`.

Recovers as the driver of its attempt does, from the items in the folder `checkpoint`, with failpoints from the
environment. Then it obeys lines on its standard input, as its tasks would: `write FIRST COUNT`, `barrier ID FILE`,
`complete ID`. It answers each with `done`, or with the type and text of the error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from sink_lives import Life, numbers, sink_builder


def obey(life: Life, line: str) -> None:
    order, *rest = line.split()
    if order == "write":
        life.write(*numbers(int(rest[1]), int(rest[0])))
    elif order == "barrier":
        folder = Path(rest[1])
        folder.mkdir()
        for number, item in enumerate(life.barrier(int(rest[0]))):
            (folder / f"{number}").write_bytes(item)
    else:
        life.complete(int(rest[0]))


def main(servers: str, topic: str, markers: str, attempt: int, checkpoint: str, history: str, timeout_ms: int) -> None:
    items = [path.read_bytes() for path in sorted(Path(checkpoint).iterdir())] if checkpoint else []
    sink = sink_builder(servers, topic, markers, timeout_ms=timeout_ms).build()
    life: list[Life] = []
    answer(lambda: life.append(Life(sink, attempt, items, history=history)))
    for line in sys.stdin:
        answer(lambda line=line: obey(life[0], line))


def answer(act: Callable[[], None]) -> None:
    try:
        act()
        print("done", flush=True)
    except Exception as error:
        print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
