"""A driver's control server as a process of its own: prints its port, then a line for each event."""

from __future__ import annotations

import sys

from headrace.runtime.control.heartbeats import Heartbeats
from headrace.runtime.control.server import ControlServer, ServerEvent

SECRET = b"s" * 32


def main(interval_s: float, timeout_s: float) -> None:
    def show(event: ServerEvent) -> None:
        print(type(event).__name__, flush=True)

    server = ControlServer("127.0.0.1", 0, SECRET, 1, show, heartbeats=Heartbeats(interval_s, timeout_s))
    print(server.port, flush=True)
    sys.stdin.read()
    server.close()


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
