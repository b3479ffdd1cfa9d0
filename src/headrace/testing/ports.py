"""Ports for servers that are told theirs before they start, and keep it over a restart."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

LOWEST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_FIRST = 32_768


def free_ports(count: int) -> list[int]:
    """So many ports of 127.0.0.1 on which nobody listens.

    They lie below those that the system hands out by itself: else any connection that is made on this machine before
    the server has taken its port, or while it is down, might be given the same one.
    """
    # Whatever a program has seeded: two processes that ask at the same moment must not go through the same numbers.
    candidates = random.SystemRandom().sample(range(LOWEST, _first_of_the_system()), 1_000)
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            break
        with contextlib.suppress(OSError), socket.socket() as probe:
            # As servers do: a port on which connections of the past still wait for their end is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            found.append(port)
    if len(found) < count:
        raise OSError(f"Of 1000 ports below {_first_of_the_system()} not even {count} could be had.")
    return found


def _first_of_the_system() -> int:
    """The first port that the system hands out by itself."""
    try:
        first = int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL_FIRST
    # A machine whose range begins so low has no ports beside it.
    return first if first >= LOWEST + 2_000 else _USUAL_FIRST
