"""What can be known to be wrong with a graph before anything starts. Each error names the operator and the way out."""

from __future__ import annotations

from headrace.errors import DuplicateUidError, JobDefinitionError, KeyedStateError
from headrace.operators.factories import SourceFactory
from headrace.plan.graph import Forward, Hash, Node, StreamGraph
from headrace.plan.settings import LARGEST_MAX_PARALLELISM


def validate(graph: StreamGraph) -> None:
    """Raise the first thing that is wrong. A stream that no sink reads is fine: it runs and its output is dropped."""
    if not graph.nodes:
        raise JobDefinitionError(
            f'Job "{graph.name}" has no operators. Begin with from_source() or from_collection() before execute().'
        )
    _check_uids(graph)
    for node in graph.nodes:
        _check_width(node)
    _check_inputs(graph)


def describe_node(node: Node) -> str:
    """An operator as messages name it."""
    where = f", declared at {node.declared_at}" if node.declared_at else ""
    return f'operator "{node.name}" (uid "{node.uid}"{where})'


def _check_uids(graph: StreamGraph) -> None:
    owners: dict[str, Node] = {}
    for node in graph.nodes:
        other = owners.setdefault(node.uid, node)
        if other is not node:
            raise DuplicateUidError(
                f'Uid "{node.uid}" is given to operator "{other.name}" (declared at {other.declared_at}) and to '
                f'operator "{node.name}" (declared at {node.declared_at}), so their state could not be told apart. '
                "Rename one."
            )


def _check_width(node: Node) -> None:
    if not 1 <= node.max_parallelism <= LARGEST_MAX_PARALLELISM:
        raise JobDefinitionError(
            f"The max parallelism of {describe_node(node)} is {node.max_parallelism}; "
            f"wanted 1 to {LARGEST_MAX_PARALLELISM}."
        )
    if node.parallelism < 1:
        raise JobDefinitionError(f"The parallelism of {describe_node(node)} is {node.parallelism}; wanted 1 or more.")
    if node.parallelism > node.max_parallelism:
        raise JobDefinitionError(
            f"The parallelism of {describe_node(node)} is {node.parallelism}, above its max parallelism of "
            f"{node.max_parallelism}. Lower the one, or raise the other with set_max_parallelism() "
            "(which state saved before does not follow)."
        )


def _check_inputs(graph: StreamGraph) -> None:
    nodes = {node.id: node for node in graph.nodes}
    fed = {edge.target for edge in graph.edges}
    for node in graph.nodes:
        if node.id not in fed and not isinstance(node.factory, SourceFactory):
            raise JobDefinitionError(
                f"Nothing feeds {describe_node(node)}, and it is no source. "
                "Begin with from_source() or from_collection()."
            )
    for edge in graph.edges:
        source, target = nodes[edge.source], nodes[edge.target]
        if isinstance(edge.partitioning, Forward) and source.parallelism != target.parallelism:
            raise JobDefinitionError(
                f"forward() joins {describe_node(source)} of parallelism {source.parallelism} with "
                f"{describe_node(target)} of parallelism {target.parallelism}, which must be equal. "
                "Set one parallelism for both, or use rebalance() or rescale()."
            )
        if target.factory.needs_key(edge.input) and not isinstance(edge.partitioning, Hash):
            raise KeyedStateError(
                f"The {describe_node(target)} works per key, but its input has none. Call key_by() first."
            )
