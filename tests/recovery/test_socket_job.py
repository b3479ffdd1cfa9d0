"""A job on a socket: it runs as long as the sender talks, and what was under way at a crash is lost, not repeated."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from saboteurs import Saboteur, kill_the_worker

from headrace.testing import run_until_done

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


class Speaker:
    """Says one line to everybody who connects, and the rest to those who come after the first."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.heard = 0
        threading.Thread(target=self._speak, daemon=True).start()

    def _speak(self) -> None:
        first, _ = self._listener.accept()
        first.sendall(b"lost\n")
        # The worker that heard it dies, and another connects: nobody can ask for the first line again.
        second, _ = self._listener.accept()
        self.heard = 2
        second.sendall(b"mill\nrace\n")
        second.close()
        first.close()
        self._listener.close()


def test_after_a_crash_a_socket_goes_on_with_what_comes_then(bench: Any, tmp_path: Path) -> None:
    speaker = Speaker()
    env = bench.env(parallelism=1)
    words = env.socket_text_stream("127.0.0.1", speaker.port)
    killed = words.map(Saboteur(kill_the_worker, lambda word: word == "lost", [str(tmp_path / "killed")]))

    outcome = run_until_done(killed.map(str.upper), "socket", restarts=1)

    assert outcome.committed == ["MILL", "RACE"]
    assert speaker.heard == 2
