"""What is checked in the driver before a job starts, whichever way it writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.connectors.postgres.client import PostgresUnavailableError, Server
from headrace.errors import ConfigurationError


@contextmanager
def checked_connection(server: Server, who: str) -> Iterator[Any]:
    """A connection with autocommit to a server that takes writes; closed behind the block."""
    try:
        connection = server.connect(who, autocommit=True)
    except PostgresUnavailableError as error:
        raise ConfigurationError(str(error)) from None
    with connection:
        if connection.execute("SHOW transaction_read_only").fetchone()[0] == "on":
            raise ConfigurationError(
                f"{who} cannot write to {server.shown}: the server or the user is read-only (transaction_read_only is "
                "on). Connect to the primary, or take default_transaction_read_only off this user."
            )
        yield connection
