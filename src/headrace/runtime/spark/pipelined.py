"""Join the stages of a plan by Spark's pipelined shuffle, so that all of them run at once.

This is the one place that touches Spark's internals. PySpark has no call for a pipelined exchange outside Spark's own
real-time mode, so the physical plan is rewritten through Py4J: each `ShuffleExchangeExec` is copied with
`pipelined = true`, everything else is rebuilt around the copies. `probe` finds out by reflection whether this Spark
has what the rewrite uses, before any job is built.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from headrace.runtime.spark.errors import UnsupportedSparkError
from headrace.runtime.spark.machine import is_working_version
from headrace.runtime.spark.settings import WORKING_VERSIONS

JavaObject: TypeAlias = Any
"""An object inside the JVM. Py4J has no types."""

_EXCHANGE = "org.apache.spark.sql.execution.exchange.ShuffleExchangeExec"
# partitioning, child, origin, advisory size, pipelined
_COPY_ARGUMENTS = 5


def has_pipelined_exchange(session: SparkSession) -> bool:
    """Whether this Spark's shuffle exchange can be made pipelined in the way `pipelined_rdd` does it."""
    jvm: JavaObject = session._jvm
    try:
        methods = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_EXCHANGE).getMethods()
    except Exception:  # Py4J wraps ClassNotFoundException; whatever the reason, it is not there.
        return False
    names = {method.getName(): method.getParameterCount() for method in methods}
    return "pipelined" in names and names.get("copy") == _COPY_ARGUMENTS


def probe(session: SparkSession) -> None:
    """Raise `UnsupportedSparkError` unless `pipelined_rdd` can work. Called once for each session, at start.

    The version counts beside the shape: SPARK_HOME may name another Spark than the PySpark that talks to it, and one
    of the same shape need not do the same.
    """
    if not is_working_version(session.version):
        raise UnsupportedSparkError(
            f"Spark {session.version} is behind this session: wanted {WORKING_VERSIONS}.x, the version whose pipelined "
            f"shuffle Headrace is made for. Let SPARK_HOME and the cluster have Spark {WORKING_VERSIONS}, or unset "
            f'SPARK_HOME and install it with: pip install "pyspark=={WORKING_VERSIONS}.*"'
        )
    if not has_pipelined_exchange(session):
        raise UnsupportedSparkError(
            f"Spark {session.version} has no pipelined shuffle that Headrace can use: "
            f'wanted PySpark {WORKING_VERSIONS}. Install it with: pip install "pyspark=={WORKING_VERSIONS}.*"'
        )


def pipelined_rdd(df: DataFrame) -> JavaObject:
    """Return the RDD of `df` with every exchange pipelined; `collect()` on it runs all stages at once.

    Adaptive execution must be off in the session of `df`, and each exchange must have one consumer. Use `collect()`
    only: `count()` adds an ordinary exchange, and a job may not mix both kinds. Keep `df` alive until it returns.
    """
    session = df.sparkSession
    jvm: JavaObject = session._jvm
    # Nodes of a plan take the session of the JVM thread that makes them, and a new thread has none.
    sessions: JavaObject = jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        plan: JavaObject = df._jdf.queryExecution().executedPlan()
        return _rewrite(jvm, plan).execute()
    finally:
        sessions.setActiveSession(before.get()) if before.isDefined() else sessions.clearActiveSession()


def _rewrite(jvm: JavaObject, plan: JavaObject) -> JavaObject:
    children = plan.children()
    rewritten = [_rewrite(jvm, children.apply(i)) for i in range(children.size())]
    kind = plan.getClass().getName()
    if kind == _EXCHANGE:
        return plan.copy(
            plan.outputPartitioning(), rewritten[0], plan.shuffleOrigin(), plan.advisoryPartitionSize(), True
        )
    if kind.endswith("AdaptiveSparkPlanExec"):
        raise UnsupportedSparkError("spark.sql.adaptive.enabled is true in the session of this plan: wanted false.")
    if not rewritten:
        return plan
    return plan.withNewChildren(jvm.PythonUtils.toSeq(rewritten).toIndexedSeq())
