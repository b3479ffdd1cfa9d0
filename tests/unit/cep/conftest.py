"""A bench for each backend; the backends themselves come from the contract suite's workshop."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "contracts"))
sys.path.insert(0, str(Path(__file__).parent))

from operator_bench import OperatorBench


@pytest.fixture(params=["heap", "rocksdb", "rocksdb-cramped"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OperatorBench]:
    made = OperatorBench(request.param, tmp_path)
    yield made
    made.close()
