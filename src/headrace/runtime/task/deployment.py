"""What a task is told by the closure it arrives in. Restored state follows over the control plane."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from headrace.checkpoint.storage.base import CheckpointStorage
from headrace.operators.base import Operator
from headrace.operators.factory import OperatorFactory
from headrace.plan.graph import JobPlan, StreamGraph
from headrace.plan.settings import BackendOptions, CheckpointSettings
from headrace.runtime.control.heartbeats import Heartbeats
from headrace.state.object_batches import UNTYPED_PICKLES, RecordPickles


@dataclass(frozen=True, slots=True)
class LevelDeployment:
    """Everything the tasks of one level need to begin."""

    level: int
    plan: JobPlan
    job_id: str
    attempt: int
    host: str
    port: int
    secret: bytes
    checkpointing: CheckpointSettings
    backend: BackendOptions
    home: str
    """Directory of the run in checkpoint storage."""
    object_reuse: bool
    buffer_timeout_ms: int
    job_parameters: dict[str, str]
    announce_positions: bool
    """Without checkpoints: tell the driver positions before records leave, so that a restart never goes back."""
    restore_storage: CheckpointStorage | None = None
    """Where the restored checkpoint lies, if not in this job's own storage."""
    failpoints: tuple[str, str] = ("", "")
    history: str = ""
    """Names the job directory whose attempts are counted here."""
    heartbeats: Heartbeats = field(default_factory=Heartbeats)
    pickles: RecordPickles = UNTYPED_PICKLES
    """What pickle may do in checkpoints for records of untyped streams."""

    @property
    def storage(self) -> CheckpointStorage:
        return self.checkpointing.storage


class _ElsewhereFactory(OperatorFactory):
    """Stands for an operator of another level, whose function this level's tasks need not carry."""

    def create(self) -> Operator:
        raise AssertionError("an operator of another level was asked for")


def without_other_levels(plan: JobPlan, level: int) -> JobPlan:
    """The plan with the functions of this level only: a collection source, say, travels to its own tasks alone."""
    own = {node for chain in plan.chains if chain.level == level for node in chain.nodes}
    elsewhere = _ElsewhereFactory()
    nodes = tuple(node if node.id in own else replace(node, factory=elsewhere) for node in plan.graph.nodes)
    return replace(plan, graph=StreamGraph(plan.graph.name, nodes, plan.graph.edges))
