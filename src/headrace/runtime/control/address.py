"""Where the driver listens for its tasks, and under which address they reach it."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from headrace.errors import ConfigurationError

LOOPBACK = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::")
BIND_OPTION = "control.bind-address"
PORT_OPTION = "control.port"
"""The settings behind it, for errors: options are declared on a floor above this one."""


@dataclass(frozen=True, slots=True)
class ControlAddress:
    """`bind` is an address of this machine; `advertised` is where tasks connect to."""

    bind: str
    advertised: str
    port: int
    """0 for any free one."""


def cannot_listen(host: str, port: int, error: OSError) -> ConfigurationError:
    """Why the driver cannot listen there, and what to do."""
    where = f"The driver cannot listen for its tasks on {host}, port {port}"
    if error.errno == errno.EADDRINUSE:
        return ConfigurationError(
            f"{where}: the port is taken, perhaps by another job with the same {PORT_OPTION}. Give each job on this "
            f"machine a port of its own, or leave {PORT_OPTION} out for any free one."
        )
    return ConfigurationError(
        f"{where}: {error}. Set {BIND_OPTION} (or spark.driver.bindAddress) to an address of the driver's machine"
        + (f", or {PORT_OPTION} to a port that this user may open." if port else ".")
    )


def control_address(
    bind_address: str | None,
    port: int,
    *,
    is_local: bool,
    driver_host: str | None,
    driver_bind_address: str | None,
) -> ControlAddress:
    """Loopback for tasks on this machine; else as Spark's own driver endpoint, unless an option says otherwise.

    `bind_address` and `port` are the options, None and 0 if not set. `driver_host` and `driver_bind_address` are
    Spark's settings of that name.
    """
    if is_local:
        bind = bind_address or LOOPBACK
        return ControlAddress(bind, LOOPBACK if bind in EVERYWHERE else bind, port)
    advertised = _plain(driver_host or LOOPBACK)
    return ControlAddress(_plain(bind_address or driver_bind_address or advertised), advertised, port)


def _plain(host: str) -> str:
    """Spark writes IPv6 addresses in brackets."""
    return host.removeprefix("[").removesuffix("]")
