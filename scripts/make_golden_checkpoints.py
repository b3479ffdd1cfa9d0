"""Write the golden checkpoints of this version, once for each release, into `tests/compat/v<major>.<minor>/`.

    python scripts/make_golden_checkpoints.py [--force]

Every later version must restore them. What is there is left alone without `--force`, which is only for a version that
is not released yet.
"""

from __future__ import annotations

import shutil
import sys
from importlib import metadata
from pathlib import Path

from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage

COMPAT = Path(__file__).parents[1] / "tests" / "compat"
sys.path.insert(0, str(COMPAT))

from golden_in_flight import taken  # noqa: E402
from golden_jobs import Publisher, Shape, job, save_savepoint  # noqa: E402


def storage(path: Path) -> FileSystemCheckpointStorage:
    # Every state in a file of its own, so that each format lies open.
    return FileSystemCheckpointStorage(str(path), file_state_size_threshold=0)


def make(target: Path) -> None:
    """One savepoint and two checkpoints of the same job."""
    with job(Shape(backend="heap")) as made:
        Publisher(storage(target / "heap-checkpoint")).publish(made, 3)
    with job(Shape(backend="heap", kind="savepoint")) as made:
        save_savepoint(storage(target / "savepoint"), made)
    with job(Shape(backend="rocksdb")) as made:
        publisher = Publisher(storage(target / "rocksdb-checkpoint"))
        made.set_count("user-1", -1)
        publisher.publish(made, 2)
        # The second names files of the first, which is dropped.
        made.set_count("user-1", 1)
        publisher.publish(made, 3)
        publisher.directory.drop([2])
    anonymise(target)


def anonymise(target: Path) -> None:
    for path in target.rglob("attempt-*"):
        if path.is_file():
            # Who made it, and on which machine, is nobody's business.
            path.write_text('{"host": "golden", "pid": 1, "started_ms": 0}')
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def make_second(target: Path) -> None:
    """What the second format of metadata and tables brought: packs and compression."""
    with job(Shape(backend="rocksdb", extra_keys=5_000, extra_totals=True)) as made:
        publisher = Publisher(FileSystemCheckpointStorage(str(target / "packed-checkpoint")))
        publisher.publish(made, 3)
    with job(Shape(backend="heap", kind="savepoint", compression=True)) as made:
        save_savepoint(storage(target / "compressed-savepoint"), made)
    anonymise(target)


def main() -> int:
    version = ".".join(metadata.version("headrace").split(".")[:2])
    target = COMPAT / f"v{version}"
    if target.exists():
        if "--force" not in sys.argv[1:]:
            print(f"{target} is there already: golden checkpoints of a release never change.")
            return 1
        shutil.rmtree(target)
    make(target)
    second = COMPAT / "format-2"
    if not second.exists():
        make_second(second)
    in_flight = COMPAT / "unaligned" / "with-edge-records" / "_metadata"
    if not in_flight.exists():
        in_flight.parent.mkdir(parents=True)
        in_flight.write_bytes(taken())
    print(f"{target}: {sum(path.stat().st_size for path in target.rglob('*') if path.is_file()):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
