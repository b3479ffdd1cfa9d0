"""The PostgreSQL client library, loaded when it is first used; where the server is; and which words nobody may read.

Nothing else here imports psycopg: a program without PostgreSQL, and every task of it, runs without the package.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any
from urllib.parse import unquote

from headrace.errors import (
    CommitFailedError,
    CommitOutcomeUnknownError,
    ConfigurationError,
    HeadraceError,
    MissingDependencyError,
    retry,
)

HIDDEN = "***"
_DEFAULTS = {
    "connect_timeout": "10",
    # A server that went away without a word is noticed after half a minute, not after two hours.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
    "application_name": "headrace",
}
LOCK_WAIT = "30s"
"""How long a statement waits for another's lock before it gives up and is tried again."""

_IN_AUTHORITY = re.compile(r"(?<=://)(?P<user>[^:/?#@]*):(?P<secret>[^/?#]*)(?=@)")
_IN_QUERY = re.compile(r"(?<=[?&])(?P<name>(?:ssl)?password)=(?P<secret>[^&#]*)", re.IGNORECASE)
_IN_WORDS = re.compile(r"\b(?P<name>(?:ssl)?password)\s*=\s*(?P<secret>'(?:[^'\\]|\\.)*'|[^\s'&]+)", re.IGNORECASE)


class PostgresUnavailableError(HeadraceError, ConnectionError):
    """The server cannot be reached, or refused what the sink needs; the message says what to look at."""

    recovery = retry("the server may answer again")


class PostgresLibrary:
    """The names of psycopg that are used here, in one place."""

    def __init__(self) -> None:
        import psycopg
        from psycopg import conninfo, errors, sql
        from psycopg.types import json

        self.connect: Any = psycopg.connect
        self.Error: Any = psycopg.Error
        self.OperationalError: Any = psycopg.OperationalError
        self.errors: Any = errors
        self.sql: Any = sql
        self.Jsonb: Any = json.Jsonb
        self.conninfo_to_dict: Any = conninfo.conninfo_to_dict


@cache
def _library() -> PostgresLibrary:
    return PostgresLibrary()


def postgres(who: str = "PostgresSink") -> PostgresLibrary:
    """The client library; `who` needs it, and is named if it is missing."""
    try:
        return _library()
    except ImportError as error:
        raise MissingDependencyError(f'{who} needs psycopg: pip install "headrace[postgres]"') from error


class Server:
    """Where the server is, as a URL or as words (`host=… dbname=…`). Its text form hides every password.

    What it does not say, libpq takes from the environment of the process that connects: PGPASSWORD, PGPASSFILE,
    PGSERVICE. So a password need not stand in a program at all.
    """

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    @property
    def shown(self) -> str:
        """Fit for logs, errors and `explain`."""
        text = _IN_AUTHORITY.sub(lambda m: f"{m['user']}:{HIDDEN}", self._conninfo)
        text = _IN_QUERY.sub(lambda m: f"{m['name']}={HIDDEN}", text)
        return _IN_WORDS.sub(lambda m: f"{m['name']}={HIDDEN}", text)

    def redact(self, text: object) -> str:
        """`text` without any secret of this server, on one line."""
        shown = str(text).replace(self._conninfo, self.shown)
        for secret in self._secrets():
            shown = shown.replace(secret, HIDDEN)
        return "; ".join(line.strip() for line in shown.splitlines())

    def connect(self, who: str, *, autocommit: bool = False) -> Any:
        """A new connection; raises `PostgresUnavailableError`."""
        library = postgres(who)
        try:
            wanted = {**_DEFAULTS, **library.conninfo_to_dict(self._conninfo)}
            connection = library.connect(autocommit=True, **wanted)
            connection.execute(f"SET lock_timeout = '{LOCK_WAIT}'")
            connection.autocommit = autocommit
        except library.Error as error:
            # Not chained: what the library says may quote the connection string.
            raise PostgresUnavailableError(
                f"{who} cannot connect to {self.shown}: {self.redact(error)}. See that the server runs, can be reached "
                "from this host and lets this user in."
            ) from None
        return connection

    def _secrets(self) -> list[str]:
        found = {
            match["secret"].strip("'")
            for pattern in (_IN_AUTHORITY, _IN_QUERY, _IN_WORDS)
            for match in pattern.finditer(self._conninfo)
        }
        # Shorter ones would hide half of every message, and are no secrets.
        return sorted({s for secret in found for s in (secret, unquote(secret)) if len(s) > 2}, key=len, reverse=True)

    def __repr__(self) -> str:
        return f"Server({self.shown!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Server) and self._conninfo == other._conninfo

    def __hash__(self) -> int:
        return hash(self._conninfo)


class Session:
    """A connection that is made when it is needed, and made anew after it broke. Used by one thread at a time."""

    def __init__(self, server: Server, who: str, *, autocommit: bool = False) -> None:
        self._server = server
        self._who = who
        self._autocommit = autocommit
        self._connection: Any = None

    def connection(self) -> Any:
        if self._connection is None or self._connection.closed:
            self._connection = self._server.connect(self._who, autocommit=self._autocommit)
        return self._connection

    def commit_connection(self) -> Any:
        """The same for a committer: that there is no server means that nothing happened."""
        try:
            return self.connection()
        except PostgresUnavailableError as error:
            raise CommitFailedError(str(error)) from None

    def drop(self) -> None:
        """Give the connection up, and with it whatever transaction is open on it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def answered(error: Any) -> bool:
    """Whether the server itself refused, so that the outcome is known: not a lost connection, not a shutdown."""
    state = getattr(error, "sqlstate", None)
    return state is not None and state[:2] not in ("08", "57", "58", "XX")


def commit_failure(error: Any, what: str, server: Server) -> HeadraceError:
    """What a commit that raised means: it did not happen, or nobody can tell."""
    text = f"{what} failed: {server.redact(error)}."
    if answered(error):
        return CommitFailedError(f"{text} Nothing was written; it is tried again.")
    return CommitOutcomeUnknownError(f"{text} It may have got through; the ledger is asked before it is tried again.")


def refused(error: Any, what: str, way_out: str, server: Server) -> ConfigurationError:
    """A preflight check that the server answered with an error."""
    return ConfigurationError(f"{what}: {server.redact(error)}. {way_out}")
