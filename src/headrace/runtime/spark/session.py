"""Make the Spark application a job runs in, or take the user's own after checking it.

An application that Headrace made lives while any handle on it is open and is shared by them: a second job in the same
process starts in it at once, if it is large enough.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import site
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from headrace.errors import ConfigurationError, SparkLostError
from headrace.runtime.spark.errors import SparkDiedError, SparkSettingsError, UnsupportedSparkError
from headrace.runtime.spark.java import find_java, launcher_home
from headrace.runtime.spark.jvm import EXIT_ON_OUT_OF_MEMORY, SparkJvm, within
from headrace.runtime.spark.leftovers import release
from headrace.runtime.spark.machine import open_files, require, require_pyspark
from headrace.runtime.spark.pipelined import JavaObject, probe
from headrace.runtime.spark.settings import (
    LOCAL_JVM_OPTIONS,
    LOCAL_SETTINGS,
    SESSION_SETTINGS,
    spark_conf,
    wrong_settings,
)

_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_CONNECT_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")


Start: TypeAlias = Callable[[], SparkSession]
"""Starts an application of ours, always with the same settings."""


@dataclass
class _OwnApplication:
    """The application Headrace made in this process, and how many handles are open on it."""

    session: SparkSession
    start: Start
    handles: int

    @property
    def context(self) -> SparkContext:
        return self.session.sparkContext

    def handle(self) -> SparkHandle:
        self.handles += 1
        return SparkHandle(self.session, self.start)


_lock = threading.RLock()
_own: _OwnApplication | None = None


class SparkHandle:
    """A Spark application that a job may use. Made by `obtain_session`; `stop` it when the job is over."""

    def __init__(self, user_session: SparkSession, start: Start | None = None) -> None:
        """`start`: how Headrace started the application; None for a user's own."""
        self.user_session = user_session
        """The session the user brought, or the plain one of our own application."""
        self.owns_session = start is not None
        """Whether Headrace made the application, and so may stop it."""
        self._start = start
        self._jvm = SparkJvm(SparkContext._gateway)
        self.session = user_session.newSession()
        """A private session for jobs: the settings in it touch no query of the user's."""
        for name, value in SESSION_SETTINGS.items():
            self.session.conf.set(name, value)
        self._stopped = False

    @property
    def context(self) -> SparkContext:
        return self.user_session.sparkContext

    @property
    def is_local(self) -> bool:
        """Whether driver and tasks share one process and machine (`local[N]`; not `local-cluster`)."""
        return is_local_master(self.context.master)

    def total_slots(self) -> int:
        """How many tasks the application can run at once, with the executors it has at this moment."""
        context: JavaObject = self.context._jsc.sc()
        return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))

    def free_slots(self) -> int:
        """How many slots no running task holds at this moment. A reading, not a reservation."""
        # The scheduler's own count: Spark's status tracker is refreshed by events, and a steady job causes none.
        running: JavaObject = self.context._jsc.sc().taskScheduler().runningTasksByExecutors().values().iterator()
        busy = 0
        while running.hasNext():
            busy += int(running.next())
        return max(0, self.total_slots() - busy)

    def ship(self, python_files: Sequence[str]) -> None:
        """Have workers that start from now on find these modules, zips and folders of the driver."""
        for path in python_files:
            if not os.path.isdir(path):
                self.context.addPyFile(path)
                continue
            # Spark takes files alone, and executors fetch them from here when they need them: until this process ends.
            folder = tempfile.mkdtemp(prefix="headrace-files-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            name = f"{Path(path).name}-{Path(folder).name}"
            self.context.addPyFile(shutil.make_archive(os.path.join(folder, name), "zip", path))

    def stop(self) -> None:
        """Give the application back. One that Headrace made ends with its last handle; a user's own goes on.

        May be called more than once.
        """
        global _own
        with _lock:
            if self._stopped:
                return
            self._stopped = True
            if not self.owns_session or _own is None or _own.context is not self.context:
                return
            _own.handles -= 1
            if _own.handles == 0:
                _own = None
                self._end_application()

    def loss(self) -> str | None:
        """Why the application is gone: its JVM died, or it was stopped. None while it is there.

        Called after failures, from any thread. May take some seconds if the JVM does not answer.
        """
        death = self._jvm.death()
        if death is not None:
            return death
        context = self.context._jsc
        if context is None or within(lambda: bool(context.sc().isStopped()), otherwise=False):
            return "The Spark application was stopped from outside the job."
        return None

    def replaceable(self) -> bool:
        """Whether Headrace can start a new application in place of this one once it is lost."""
        return self.owns_session and self._jvm.is_ours

    def replaced(self) -> SparkHandle:
        """Start an application like this one, which is lost, and return a handle on it. This handle is stopped.

        Jobs that shared the lost application share the new one: the first that calls this starts it. Raises
        `SparkDiedError` if it does not come up; then it may be called again.
        """
        global _own
        assert self._start is not None
        with _lock:
            self._stopped = True
            if _own is None or _own.context is self.context:
                _own = None
                self._end_application()
                _own = _started(self._start)
            return _own.handle()

    def _end_application(self) -> None:
        if self._jvm.death() is None:
            accumulator = self.context._javaAccumulator
            # The JVM may be going down by itself: SIGTERM goes to all processes of a service that is stopped.
            with contextlib.suppress(Py4JNetworkError, OSError):
                self.user_session.stop()
                release(SparkContext._jvm, accumulator)
                return
        self._jvm.forget(self.context)


def obtain_session(
    existing: SparkSession | None, total_slots: int, largest_level_slots: int, app_name: str, master: str | None
) -> SparkHandle:
    """Return a Spark application fit for a job of this shape.

    `existing`, or else the application that is active in this process, is taken if its settings fit, and refused with
    one `SparkSettingsError` that names all that do not. With none active, Headrace starts its own, on `master` or else
    `local[total_slots]`. Whether it has enough slots is for `preflight` to say. A PySpark, or a Spark behind the
    session, of another version than those that are known to work is refused (`UnsupportedSparkError`).
    """
    global _own
    require_pyspark()
    refuse_connect(existing)
    wanted = spark_conf(total_slots, largest_level_slots)
    with _lock:
        if _own is not None and _own.context._jsc is None:
            _own = None  # Somebody stopped it through Spark.
        _replace_dead(existing)
        active = existing if existing is not None else _active_session()
        if active is not None and _own is not None and active.sparkContext is _own.context:
            _refuse_unless_it_serves(_own.context, wanted, total_slots, master)
            return _own.handle()
        if active is not None:
            mismatches = wrong_settings(settings_of(active.sparkContext), wanted)
            if mismatches:
                raise SparkSettingsError(mismatches)
            probe(active)
            return SparkHandle(active)
        require([open_files(total_slots)])
        start = partial(_start, wanted, app_name, master or f"local[{total_slots}]")
        _own = _started(start)
        return _own.handle()


def _started(start: Start) -> _OwnApplication:
    session = start()
    try:
        probe(session)
    except BaseException:
        session.stop()
        raise
    return _OwnApplication(session, start, handles=0)


def _replace_dead(existing: SparkSession | None) -> None:
    """Forget a JVM that died since it was last used; start the application anew that other jobs of ours had in it."""
    global _own
    if SparkContext._gateway is None:
        return
    jvm = SparkJvm(SparkContext._gateway)
    death = jvm.death()
    if death is None:
        return
    context = SparkContext._active_spark_context
    ours = context is None or (_own is not None and context is _own.context)
    if existing is not None or not ours or not jvm.is_ours:
        raise SparkLostError(f"{death} Start the program again: it needs a new SparkSession.")
    jvm.forget(context)
    if _own is not None:
        start, _own = _own.start, None
        _own = _started(start)


def settings_of(context: SparkContext) -> dict[str, str]:
    """The settings a running application was started with."""
    return dict(context.getConf().getAll())


def is_local_master(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def refuse_connect(existing: object) -> None:
    """Raise `UnsupportedSparkError` for a Spark Connect session, or where one is all that would be made."""
    if type(existing).__module__.startswith("pyspark.sql.connect"):
        raise UnsupportedSparkError(
            "This is a Spark Connect session: it has no access to Spark's scheduler, where a job's stages are joined. "
            "Build a classic one: SparkSession.builder.master(...), without .remote(...) and SPARK_REMOTE."
        )
    variables = [name for name in _CONNECT_VARIABLES if name in os.environ]
    if os.environ.get("SPARK_API_MODE", "").lower() == "connect":
        variables.append("SPARK_API_MODE")
    if existing is None and variables:
        raise UnsupportedSparkError(
            f"{' and '.join(variables)} in the environment makes PySpark use Spark Connect, which has no access to "
            "Spark's scheduler, where a job's stages are joined. Unset it, or pass a classic SparkSession."
        )


def _active_session() -> SparkSession | None:
    session = SparkSession.getActiveSession()
    if session is not None:
        return session
    context = SparkContext._active_spark_context
    if context is not None and context._jsc is not None:
        return SparkSession(context)
    return None


def _refuse_unless_it_serves(
    context: SparkContext, wanted: Mapping[str, str], total_slots: int, master: str | None
) -> None:
    """Our own application cannot be replaced by a larger one: another job holds it, if only between two attempts."""
    way_out = (
        f"Stop the job that holds it, or give both a SparkSession of your own, with {total_slots} slots for this one "
        "besides those of the other and the settings of headrace.spark_conf()."
    )
    if master is not None and context.master != master:
        raise ConfigurationError(f"Spark runs on {context.master} in this process, wanted {master}. {way_out}")
    if is_local_master(context.master) and context.defaultParallelism < total_slots:
        raise ConfigurationError(
            f"The Spark application of this process, {context.master}, is too small for a job of {total_slots} slots. "
            f"{way_out}"
        )
    if mismatches := wrong_settings(settings_of(context), wanted):
        raise SparkSettingsError(mismatches)


def _start(wanted: Mapping[str, str], app_name: str, master: str) -> SparkSession:
    local = is_local_master(master)
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in wanted.items():
        builder = builder.config(name, value)
    if local:
        for name, value in LOCAL_SETTINGS.items():
            builder = builder.config(name, value)
    else:
        # On a cluster, begin only when all executors asked for have come.
        builder = builder.config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.pyspark.python", sys.executable).config(
        "spark.pyspark.driver.python", sys.executable
    )
    options = [
        f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
        EXIT_ON_OUT_OF_MEMORY,
        *(LOCAL_JVM_OPTIONS if local else ()),
    ]
    builder = builder.config("spark.driver.extraJavaOptions", " ".join(options))
    if local or master.startswith("local-cluster["):
        builder = builder.config("spark.executorEnv.PYTHONPATH", os.pathsep.join(_extra_module_paths()))
    try:
        with _environment(local):
            return builder.getOrCreate()
    except Exception as error:
        _explain_failed_start(error)
        raise


def _explain_failed_start(error: Exception) -> None:
    """Raise `SparkDiedError` if the JVM is why Spark did not start."""
    gateway = SparkContext._gateway
    if gateway is None:
        if isinstance(error, PySparkRuntimeError) and error.getCondition() == "JAVA_GATEWAY_EXITED":
            raise SparkDiedError("Spark's JVM ended while it was starting. Its own output says why.") from error
        return
    jvm = SparkJvm(gateway)
    if (death := jvm.death()) is not None:
        jvm.forget(SparkContext._active_spark_context)
        raise SparkDiedError(death) from error


@contextmanager
def _environment(local: bool) -> Iterator[None]:
    """The environment for the start of Spark's JVM; put back afterwards, for it is the user's."""
    changes = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if SparkContext._gateway is None:
        changes["JAVA_HOME"] = str(launcher_home(find_java()))
    if local:
        # Or Spark looks for an outside address, and warns about the one it takes.
        changes["SPARK_LOCAL_IP"] = "127.0.0.1"
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _extra_module_paths() -> list[str]:
    """Where the driver finds modules beyond its interpreter's own: the script's directory, a source tree.

    Workers on this machine get them too, so that a function in a module beside the script can be loaded there.
    """
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    own.update(site.getsitepackages())
    own.add(site.getusersitepackages())
    roots = {os.path.realpath(path) for path in own}
    extra = []
    for entry in sys.path:
        path = os.path.realpath(entry or os.getcwd())
        beneath = any(path == root or path.startswith(root + os.sep) for root in roots)
        if os.path.isdir(path) and not beneath and path not in extra:
            extra.append(path)
    return extra
