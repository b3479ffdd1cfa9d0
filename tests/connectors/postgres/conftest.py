"""The server of the session, for all tests of the PostgreSQL sink."""

from tests.services.postgres import database, postgres_server

__all__ = ["database", "postgres_server"]
