"""Release what a stopped Spark application leaves in its JVM, which outlives it for as long as the program runs.

Spark 4.3 keeps, for each application that ran Python:

    a thread    "Idle Worker Monitor for …", which looks every 10 s for idle workers of a factory that is gone
    a socket    of the Python accumulator, to a server that is closed

A program that runs one job after the other would gain both with each.
"""

from __future__ import annotations

import contextlib
from typing import Any

_MONITOR = "Idle Worker Monitor for "
_HANDLER = "java.lang.Thread$UncaughtExceptionHandler"


def release(jvm: Any, accumulator: Any) -> None:
    """Called once after the application has stopped, and while there is no other. Never raises.

    `accumulator`: the `_javaAccumulator` of its SparkContext.
    """
    with contextlib.suppress(Exception):
        field = accumulator.getClass().getDeclaredField("socket")
        field.setAccessible(True)
        socket = field.get(accumulator)
        if socket is not None:
            socket.close()
    with contextlib.suppress(Exception):
        _end_monitors(jvm)


def _end_monitors(jvm: Any) -> None:
    threads = jvm.java.lang.Thread.getAllStackTraces().keySet().iterator()
    silent = None
    while threads.hasNext():
        thread = threads.next()
        if str(thread.getName()).startswith(_MONITOR):
            # It sleeps most of the time and has no other end than an exception, which nobody needs to read.
            silent = silent or _silent_handler(jvm)
            thread.setUncaughtExceptionHandler(silent)
            thread.interrupt()


def _silent_handler(jvm: Any) -> Any:
    """An `UncaughtExceptionHandler` that does nothing."""
    java = jvm.java.lang
    lookup = java.Class.forName
    parameters = jvm.java.util.ArrayList()
    for name in ("java.lang.Thread", "java.lang.Throwable"):
        parameters.add(lookup(name))
    nothing = java.invoke.MethodHandles.empty(java.invoke.MethodType.methodType(java.Void.TYPE, parameters))
    return java.invoke.MethodHandleProxies.asInterfaceInstance(lookup(_HANDLER), nothing)
