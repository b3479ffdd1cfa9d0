"""Things that come between tasks, driver and storage: acknowledgements gone astray, storage of doubtful word.

They live in a module of their own so that workers load them by name.
"""

from __future__ import annotations

import errno
import gc
import threading
from pathlib import Path
from typing import Any

import msgspec

from headrace import FileSystemCheckpointStorage, MapFunction
from headrace.errors import StorageError
from headrace.runtime.control.client import ControlClient
from headrace.runtime.control.messages import Acknowledge

UNKNOWN = 1_000
"""So far above its own is the id of a checkpoint that nobody asked for."""


class AcknowledgesTooMuch(MapFunction):
    """Passes records on, and makes its task acknowledge what it should not.

    Every acknowledgement is sent twice, word for word; then once more for a checkpoint that was never triggered, with
    the files of the live one; then that of the checkpoint before, complete since. The third is held back until a later
    one was sent, so that its checkpoint is given up first. `marks` is a directory with a file for each kind that was
    sent.
    """

    def __init__(self, marks: str) -> None:
        self._marks = marks

    def open(self, runtime_context: Any) -> None:
        for client in [o for o in gc.get_objects() if isinstance(o, ControlClient)]:
            _Meddled(client, Path(self._marks))

    def map(self, value: Any) -> Any:
        return value


class _Meddled:
    def __init__(self, client: ControlClient, marks: Path) -> None:
        self._really = client.send
        self._marks = marks
        self._lock = threading.Lock()
        self._sent: list[Acknowledge] = []
        self._held: Acknowledge | None = None
        client.send = self.send  # type: ignore[method-assign]

    def send(self, message: Any) -> None:
        if not isinstance(message, Acknowledge):
            self._really(message)
            return
        with self._lock:
            if len(self._sent) == 2 and self._held is None and not (self._marks / "late").exists():
                self._held = message
                return
            self._really(message)
            self._again("duplicate", message)
            self._again("unknown", msgspec.structs.replace(message, checkpoint_id=message.checkpoint_id + UNKNOWN))
            if self._sent:
                self._again("complete since", self._sent[-1])
            if self._held is not None and message.checkpoint_id > self._held.checkpoint_id:
                late, self._held = self._held, None
                self._again("late", late)
            self._sent.append(message)

    def _again(self, kind: str, message: Acknowledge) -> None:
        self._really(message)
        self._marks.mkdir(parents=True, exist_ok=True)
        (self._marks / kind).write_text(str(message.checkpoint_id))


class DoubtfulStorage(FileSystemCheckpointStorage):
    """Answers the `nth` publication with an error, whether it was `written` or not.

    Not `readable`: looking whether it is there, right after, gives an error too. What was published so is in `mark`.
    """

    def __init__(self, uri: str, mark: Path, *, nth: int, written: bool, readable: bool) -> None:
        super().__init__(uri)
        self._mark = mark
        self._nth = nth
        self._written = written
        self._readable = readable
        self._published = 0
        self._blind = ""

    def create_exclusive(self, path: str, data: bytes) -> None:
        if path.endswith("/_metadata"):
            self._published += 1
            if self._published == self._nth:
                if self._written:
                    super().create_exclusive(path, data)
                if not self._readable:
                    self._blind = path
                self._mark.write_text(Path(path).parent.name.removeprefix("chk-"))
                raise StorageError(errno.EIO, f"the answer was lost: {path}")
        super().create_exclusive(path, data)

    def read(self, path: str) -> bytes:
        if path == self._blind:
            self._blind = ""
            raise StorageError(errno.EIO, f"and so was the next one: {path}")
        return super().read(path)
