"""Servers that the pages talk to."""

from __future__ import annotations

import pytest
from tests.services.postgres import Database, database, postgres_server

__all__ = ["database", "postgres_server"]


@pytest.fixture
def postgres_for_a_page(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty database, where the page looks for it."""
    monkeypatch.setenv("DATABASE_URL", database.url)
