"""Ports for servers of tests: free, different, and none that the system might hand to somebody else meanwhile."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from headrace.testing import ports


def test_they_are_different_free_and_below_those_that_the_system_hands_out() -> None:
    found = ports.free_ports(20)
    assert len(set(found)) == 20
    assert all(ports.LOWEST <= port < ports._first_of_the_system() for port in found)


def test_a_port_on_which_somebody_listens_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    (taken, free) = ports.free_ports(2)
    monkeypatch.setattr("random.SystemRandom.sample", lambda *args: [taken, free])
    with socket.create_server(("127.0.0.1", taken)):
        assert ports.free_ports(1) == [free]
        with pytest.raises(OSError, match="not even 2 could be had"):
            ports.free_ports(2)


@pytest.mark.parametrize(("said", "first"), [("40000\t50000\n", 40_000), ("1024 65535", 32_768), ("", 32_768)])
def test_a_machine_that_hands_out_almost_all_ports_leaves_the_usual_ones_below(
    said: str, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text(said)
    monkeypatch.setattr(ports, "_RANGE", tmp_path / "range")
    assert ports._first_of_the_system() == first
