"""What all tests share: temporary places for what is written, the settings of Hypothesis, one Spark application."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

SHARED_SLOTS = 20
LARGEST_LEVEL = 4
_HOLDING = {"spark_slots", "spark_application"}
"""Fixtures that keep a Spark application of ours open until the end."""
_SERVICES = {"kafka_broker", "postgres_server", "s3_server", "bucket"}
"""Fixtures that start a server."""

# Test modules are known by their path, so that two folders may use one name; what they share within a folder is
# found beside them, here and in Spark's workers. At the end of the path: no helper may hide a real module.
for _folder in sorted({file.parent for file in Path(__file__).parent.rglob("*.py")}):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))

# A busy machine is no failure. In CI the same examples every time: what fails there must fail here too.
settings.register_profile("headrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("headrace-ci", settings.get_profile("headrace"), derandomize=True)
settings.load_profile("headrace-ci" if os.environ.get("CI") else "headrace")


@pytest.fixture(scope="session", autouse=True)
def _nothing_outside_the_tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Status files and the Java launcher go into temporary places, in this process and in those that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        for name in ("HEADRACE_LOG", "HEADRACE_EVENT_LOG"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def spark_slots() -> Iterator[Any]:
    """A Spark application with slots for any job of the tests, held open: jobs in this process join it at once."""
    from headrace.runtime.spark.session import obtain_session

    handle = obtain_session(None, SHARED_SLOTS, LARGEST_LEVEL, "headrace tests", None)
    yield handle
    handle.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that want Spark to themselves come before those that share one application, which stays to the end."""
    for item in items:
        if _SERVICES & set(getattr(item, "fixturenames", ())):
            item.add_marker("service")
    items.sort(key=lambda item: bool(_HOLDING & set(getattr(item, "fixturenames", ()))))
