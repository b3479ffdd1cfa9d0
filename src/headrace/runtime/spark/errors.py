"""What can go wrong between Headrace and Spark.

HeadraceError
├── ConfigurationError
│   ├── JavaNotFoundError       no Java that Spark can run on
│   ├── SparkSettingsError      a user's session lacks settings a job cannot do without
│   ├── PreflightError          start-up checks failed: the text `headrace doctor` prints
│   └── UnsupportedSparkError   this PySpark, or Spark Connect, has no pipelined shuffle for us
├── InsufficientSlotsError      Spark had too few free task slots for the whole wait
└── SparkJobError               the Spark job of an attempt failed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import ConfigurationError, HeadraceError, permanent, retry


class JavaNotFoundError(ConfigurationError):
    """No Java 17 or newer was found. Install one; the message names both ways."""

    recovery = permanent("nobody installs Java between two attempts")


@dataclass(frozen=True, slots=True)
class SettingMismatch:
    """One Spark setting of a session that a job cannot run with."""

    name: str
    found: str | None
    """None: not set, and Spark's default is not what is wanted."""
    wanted: str

    def __str__(self) -> str:
        state = "is not set" if self.found is None else f"is {self.found!r}"
        return f"{self.name} {state}, wanted {self.wanted!r}"


class SparkSettingsError(ConfigurationError):
    """A session brought by the user lacks settings. Add them where that session is built, then start again."""

    recovery = permanent("the settings of a Spark session do not change")

    def __init__(self, mismatches: Sequence[SettingMismatch]) -> None:
        self.mismatches = tuple(mismatches)
        lines = "\n".join(f"  {mismatch}" for mismatch in self.mismatches)
        super().__init__(
            f"This Spark session cannot run a Headrace job; {len(self.mismatches)} of its settings stand against it:\n"
            f"{lines}\n"
            "They can only be set before Spark starts: build the session with headrace.spark_conf(), "
            "or stop it and let Headrace make its own."
        )


class PreflightError(ConfigurationError):
    """Start-up checks failed and nothing was started. The same text comes from `headrace doctor`."""

    recovery = permanent("each attempt has the same settings and the same Spark application")


class UnsupportedSparkError(ConfigurationError):
    """This kind or version of Spark cannot run pipelined stages. The message names those that can."""

    recovery = permanent("the Spark application stays of that kind and version")


class InsufficientSlotsError(HeadraceError):
    """Spark did not have enough free task slots within the wait. Nothing ran: it may be tried again freely."""

    recovery = retry("slots may become free")

    def __init__(self, message: str, *, needed: int, total: int) -> None:
        super().__init__(message)
        self.needed = needed
        self.total = total


class SparkJobError(HeadraceError):
    """The Spark job of an attempt failed: a task raised, a worker or an executor died.

    When one task fails its neighbours report closed connections, and Spark shows whichever came first; so a cause
    that came over the control plane is always the better one.
    """

    recovery = retry("the next attempt is another Spark job")

    def __init__(self, message: str, detail: str) -> None:
        super().__init__(message)
        self.detail = detail
        """All that Spark said, with the stack traces of both sides."""


class SparkDiedError(HeadraceError):
    """Spark's JVM died, or its application was stopped from outside. Headrace had started it and starts a new one: the
    job restarts in it, as its restart strategy allows. `SparkLostError` is for a session of the program's own."""

    recovery = retry("a new JVM is started for the next attempt")
