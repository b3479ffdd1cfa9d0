"""Fixtures of the contract suites."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from backend_workshop import FLAVOURS, Workshop


@pytest.fixture(params=list(FLAVOURS))
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workshop]:
    """A workshop for each flavour of backend."""
    made = Workshop(request.param, tmp_path)
    yield made
    made.close()
