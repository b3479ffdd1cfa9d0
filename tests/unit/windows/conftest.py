"""Window tests run on both backends, each in the form that is used and in one so cramped that everything is on disk."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "contracts"))

from window_bench import BACKENDS, WindowBench


@pytest.fixture(params=list(BACKENDS))
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WindowBench]:
    """Makes window operators on each kind of backend."""
    made = WindowBench(request.param, tmp_path)
    yield made
    made.close()
