"""Failpoints: a closed list of named moments at which tests, and the demo, make a process fail.

Set by the environment, so that a job under test is the job users run:

    HEADRACE_FAILPOINTS="before_ack=kill@3; gc_marked=raise"     name=action[:argument][@nth hit][#only-here]
    HEADRACE_FAULT_LOG=/tmp/faults                               a directory; one file per fault that fired

Actions: `raise` (an `InjectedFault`), `exit` (`os._exit`), `kill` (SIGKILL to itself), `stop` (SIGSTOP to itself, until
somebody sends SIGCONT), `hang`, `delay:SECONDS`. `@n` counts hits in one process. A fault fires once: its file in the
log directory is made by exclusive create, so no later attempt and no other task repeats it. With nothing set, a
failpoint costs one look at an empty dictionary.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.errors import ConfigurationError, HeadraceError, retry

NAMES: Final = frozenset(
    {
        "record",
        "after_snapshot_local",
        "after_upload",
        "before_ack",
        "after_all_acks",
        "before_publish",
        "after_publish",
        "sink_prepared",
        "sink_committed",
        "before_sink_commit",
        "barrier_injected",
        "barrier_aligned",
        "gc_marked",
        "gc_deleted",
        "restore_file",
        "savepoint_written",
        "savepoint_published",
        "task_open",
        "spool_stored",
        "spool_published",
        "before_hand_over",
        "output_handed_over",
        "sink_recovery",
    }
)
ACTIONS: Final = frozenset({"raise", "exit", "kill", "stop", "hang", "delay"})


class InjectedFault(HeadraceError):
    """A failpoint was told to raise."""

    recovery = retry("a fault fires once")


@dataclass(slots=True)
class _Fault:
    name: str
    action: str
    argument: str
    nth: int
    scope: str
    label: str
    hits: int = 0


def _parse(text: str) -> dict[str, list[_Fault]]:
    faults: dict[str, list[_Fault]] = {}
    for i, part in enumerate(p.strip() for p in text.split(";") if p.strip()):
        rest, _, scope = part.partition("#")
        rest, _, nth = rest.partition("@")
        name, _, action = rest.partition("=")
        action, _, argument = action.partition(":")
        if name not in NAMES or action not in ACTIONS or (nth and not nth.isdigit()):
            raise ConfigurationError(
                f"HEADRACE_FAILPOINTS has {part!r}. Wanted name=action[:argument][@n][#scope] with a name of "
                f"{', '.join(sorted(NAMES))} and an action of {', '.join(sorted(ACTIONS))}."
            )
        faults.setdefault(name, []).append(_Fault(name, action, argument, int(nth or 1), scope, f"{i:02d}-{name}"))
    return faults


_faults = _parse(os.environ.get("HEADRACE_FAILPOINTS", ""))
_log = Path(os.environ["HEADRACE_FAULT_LOG"]) if os.environ.get("HEADRACE_FAULT_LOG") else None
_lock = threading.Lock()


def configure(text: str, log: Path | None) -> None:
    """Replace what the environment said; tasks get their driver's setting this way."""
    global _faults, _log
    _faults = _parse(text)
    _log = log


def configured() -> tuple[str, str]:
    """The setting as text, to be handed to tasks."""
    return os.environ.get("HEADRACE_FAILPOINTS", ""), os.environ.get("HEADRACE_FAULT_LOG", "")


def hit(name: str, scope: str = "") -> None:
    """This moment is reached; `scope` tells where (`level.slot`, an index). Usually nothing happens."""
    if not _faults:
        return
    here = [fault for fault in _faults.get(name, ()) if not fault.scope or fault.scope == scope]
    with _lock:
        # All are counted before one fires: a fault that raises must not hide this hit from the others.
        for fault in here:
            fault.hits += 1
        due = [fault for fault in here if fault.hits == fault.nth]
    for fault in due:
        if _claim(fault, scope):
            _fire(fault, scope)


def _claim(fault: _Fault, scope: str) -> bool:
    if _log is None:
        return True
    _log.mkdir(parents=True, exist_ok=True)
    try:
        with open(_log / fault.label, "x") as file:
            file.write(f"{fault.action} pid={os.getpid()} scope={scope} at={time.time():.3f}\n")
    except FileExistsError:
        return False
    return True


def _fire(fault: _Fault, scope: str) -> None:
    match fault.action:
        case "raise":
            raise InjectedFault(f"Failpoint {fault.name} at {scope or 'here'} was told to raise.")
        case "exit":
            os._exit(41)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang":
            threading.Event().wait()
        case "delay":
            time.sleep(float(fault.argument or "1"))
