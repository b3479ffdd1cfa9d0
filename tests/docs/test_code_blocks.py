"""Every Python block of every page runs, page by page, in the order in which a reader meets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pages import DOCS, blocks_of, name_of, pages

SERVERS = {"guides/kafka.md": "kafka_for_a_page", "guides/postgres.md": "postgres_for_a_page"}
"""Fixtures that give a page the server it talks to."""
PAGES_WITH_CODE = [page for page in pages() if blocks_of(page, "python")]


def test_there_are_pages_with_code() -> None:
    assert {"getting-started.md", "state.md", "checkpoints-and-recovery.md"} <= set(map(name_of, PAGES_WITH_CODE))


def test_a_block_that_is_not_run_says_why() -> None:
    for page in PAGES_WITH_CODE:
        for block in blocks_of(page, "python"):
            assert block.reason_not_to_run != "", f"{block.page}:{block.line} is not run and does not say why"


@pytest.mark.spark
@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=name_of)
def test_code_of_the_page_runs(
    page: Path, request: pytest.FixtureRequest, spark_slots: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if name_of(page) in SERVERS:
        request.getfixturevalue(SERVERS[name_of(page)])
    # As in a script: what the page defines cannot be imported by workers and travels to them by value.
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(page, "python"):
        if block.reason_not_to_run is None:
            # Lines of an error are those of the page.
            source = "\n" * (block.line - 1) + block.text
            exec(compile(source, str(DOCS / block.page), "exec", dont_inherit=True), namespace)
