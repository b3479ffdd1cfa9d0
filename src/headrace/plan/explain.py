"""What a job will do, for people (`explain`), for programs (`explain_json`) and for Flink's plan viewers."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from headrace.backends.heap.options import HeapOptions
from headrace.operators.checkpointed import CheckpointedFunction
from headrace.operators.connected_factories import (
    BroadcastFactory,
    CoProcessFactory,
    IntervalJoinFactory,
    TemporalJoinFactory,
)
from headrace.operators.factories import (
    CollectFactory,
    ProcessFactory,
    ReduceFactory,
    SinkFactory,
    SourceFactory,
    WithStateFactory,
)
from headrace.operators.functions import Function
from headrace.plan.buffers import bytes_in_flight
from headrace.plan.graph import Chain, Custom, Edge, Hash, JobPlan, Node, Partitioning, StreamGraph
from headrace.plan.guarantees import JobGuarantee, Promise, guarantees
from headrace.plan.memory import need_of_job
from headrace.plan.settings import BackendOptions, CheckpointingMode, CheckpointSettings, JobSettings

_LABEL_WIDTH = 12


def explain(plan: JobPlan, settings: JobSettings) -> str:
    """The plan on one page: levels, chains, exchanges, slots, states, storage, restarts and the guarantee."""
    facts = explain_json(plan, settings)
    lines = [f"Job {facts['name']} (id {facts['job_id']})", ""]
    for level in facts["levels"]:
        lines.append(f"Level {level['index']}, {_count(level['slots'], 'slot')}")
        for chain in level["chains"]:
            lines += _chain_lines(chain)
        if level["bytes_in_flight"]:
            lines.append(f"  ⇒ at most {_size(level['bytes_in_flight'])} on the way to level {level['index'] + 1}")
        lines.append("")
    checkpointing, guarantee = facts["checkpointing"], facts["guarantee"]
    spark = facts["spark"]
    lines += [
        _line("Spark", _slots_text(spark)),
        _line("", f"at most {_size(spark['bytes_in_flight'])} on the way between tasks"),
        _line("Memory", _memory_text(spark["memory"])),
        _line("Checkpoints", checkpointing["summary"]),
        _line("Storage", f"{checkpointing['storage']}, survives {checkpointing['survives']}"),
        _line("Backend", facts["backend"]),
        _line("Restart", facts["restart"]),
        _line("Guarantee", guarantee["end_to_end"] + " end to end"),
    ]
    lines += [_line("", text) for text in guarantee["limits"]]
    if len(guarantee["paths"]) > 1 or not guarantee["limits"]:
        for path in guarantee["paths"]:
            because = f": {path['note']}" if path["note"] else ""
            lines.append(_line("", f"{path['source']} → {path['sink']}: {path['guarantee']}{because}"))
    return "\n".join(lines) + "\n"


def explain_json(plan: JobPlan, settings: JobSettings) -> dict[str, Any]:
    """The same as plain data, ready for `json.dumps`."""
    in_flight = bytes_in_flight([level.slots for level in plan.levels])
    return {
        "name": settings.name,
        "job_id": settings.job_id,
        "levels": [
            {
                "index": level.index,
                "slots": level.slots,
                "bytes_in_flight": in_flight[level.index] if level.index < len(in_flight) else 0,
                "chains": [_chain(plan, plan.chains[c]) for c in level.chains],
            }
            for level in plan.levels
        ],
        "spark": {
            "slots": plan.needed_slots,
            "slots_per_level": [level.slots for level in plan.levels],
            "beside_queries": [node.name for node in plan.beside_queries],
            "bytes_in_flight": sum(in_flight),
            "memory": asdict(need_of_job(plan, settings.backend)),
        },
        "checkpointing": {
            "enabled": settings.checkpointing.enabled,
            "summary": describe_checkpointing(settings.checkpointing),
            "storage": settings.checkpointing.storage.location,
            "survives": settings.checkpointing.storage.survives,
        },
        "backend": describe_backend(settings.backend),
        "restart": settings.restart.describe(),
        "guarantee": _guarantee(guarantees(plan, settings.checkpointing)),
    }


def execution_plan(graph: StreamGraph) -> str:
    """The graph as JSON in the form of Flink's `get_execution_plan`."""
    nodes = []
    for node in graph.nodes:
        entry: dict[str, Any] = {
            "id": node.id,
            "type": node.name,
            "pact": _pact(node),
            "contents": node.name,
            "parallelism": node.parallelism,
        }
        predecessors = [
            {
                "id": e.source,
                "ship_strategy": type(e.partitioning).__name__.upper(),
                "side": "first" if e.input == 0 and any(other.input for other in graph.inputs(node.id)) else "second",
            }
            for e in graph.inputs(node.id)
        ]
        nodes.append(entry | ({"predecessors": predecessors} if predecessors else {}))
    return json.dumps({"nodes": nodes}, indent=2)


def describe_checkpointing(checkpointing: CheckpointSettings) -> str:
    """One line about when and how checkpoints are taken."""
    if checkpointing.only_final:
        return "one at the end of all input (batch mode)"
    if checkpointing.interval_ms is None:
        return "off"
    exact = checkpointing.mode is CheckpointingMode.EXACTLY_ONCE
    if not exact:
        manner = "at-least-once"
    elif not checkpointing.unaligned:
        manner = "exactly-once, aligned"
    elif checkpointing.aligned_timeout_ms:
        manner = f"exactly-once, unaligned after {checkpointing.aligned_timeout_ms} ms"
    else:
        manner = "exactly-once, unaligned"
    return (
        f"every {checkpointing.interval_ms} ms, {manner}; the last {checkpointing.retain} kept, "
        f"{checkpointing.retention.value}; {_count(checkpointing.tolerable_failures, 'failure')} in a row tolerated"
    )


def describe_backend(backend: BackendOptions) -> str:
    """One line about where state lives."""
    if isinstance(backend, HeapOptions):
        return f"heap, {'asynchronous' if backend.asynchronous_snapshots else 'synchronous'} snapshots"
    return f"RocksDB, {'incremental' if backend.incremental else 'full'} checkpoints"


def describe_partitioning(partitioning: Partitioning) -> str:
    """How records find their subtask, as the rest of "records go …"."""
    match partitioning:
        case Hash(key):
            named = f"{', '.join(key.fields)}" if key.fields else "a function"
            return f"by key ({named})"
        case Custom():
            return "by the program's own partitioner"
        case _:
            return type(partitioning).__name__.lower()


def _chain(plan: JobPlan, chain: Chain) -> dict[str, Any]:
    inputs = [e for e in plan.graph.inputs(chain.nodes[0]) if e.id in plan.exchanged]
    return {
        "parallelism": chain.parallelism,
        "slots": list(chain.slots),
        "inputs": [_exchange(plan, chain, e) for e in inputs],
        "operators": [_operator(plan.graph.node(n)) for n in chain.nodes],
    }


def _exchange(plan: JobPlan, chain: Chain, edge: Edge) -> dict[str, Any]:
    producer = plan.chain_of(edge.source)
    has_two = len({e.input for e in plan.graph.inputs(edge.target)}) > 1
    return {
        "from": plan.graph.node(edge.source).name,
        "input": edge.input + 1 if has_two else None,
        "side_output": edge.tag,
        "routing": describe_partitioning(edge.partitioning),
        "relays": chain.level - producer.level - 1,
        "type": "any object" if edge.type is None else str(edge.type),
    }


def _operator(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "uid": node.uid,
        "uid_is_generated": node.uid_is_generated,
        "declared_at": node.declared_at,
        "parallelism": node.parallelism,
        "max_parallelism": node.max_parallelism,
        "does": _does(node),
        "states": _states(node),
        "output_type": None if node.output_type is None else str(node.output_type),
    }


def _does(node: Node) -> str:
    factory = node.factory
    match factory:
        case SourceFactory():
            return factory.source.describe()
        case SinkFactory():
            return factory.sink.describe()
        case CollectFactory():
            return "collects for the program"
    function = factory.user_function
    if function is None:
        return ""
    return type(function).__name__ if isinstance(function, Function) else getattr(function, "__qualname__", "")


def _states(node: Node) -> list[str]:
    """States as far as the program shows them before it runs: those made in `open()` are known by place only."""
    factory = node.factory
    match factory:
        case ReduceFactory():
            return [f"value {factory.value_type}"]
        case WithStateFactory():
            return [f"value {factory.state_type}"]
        case SourceFactory():
            return ["positions of its splits"]
        case SinkFactory() if factory.sink.create_committer() is not None:
            return ["output that waits for its checkpoint"]
        case CollectFactory():
            return ["output that waits for its checkpoint"]
        case IntervalJoinFactory():
            return [f"left list {factory.left_type}", f"right list {factory.right_type}", "timers"]
        case TemporalJoinFactory():
            return [f"waiting list {factory.record_type}", f"map of rows {factory.row_type}", "timers"]
    states = []
    function = factory.user_function
    if isinstance(factory, BroadcastFactory):
        states += [f"broadcast {d.name}: {d.shape.type}" for d in factory.descriptors]
    if isinstance(function, CheckpointedFunction):
        states.append(f"what {type(function).__name__}.initialize_state() registers")
    if factory.keyed and isinstance(function, Function) and type(function).open is not Function.open:
        states.append(f"what {type(function).__name__}.open() registers")
    if factory.keyed and isinstance(factory, ProcessFactory | CoProcessFactory | BroadcastFactory):
        states.append("timers")
    return states


def _guarantee(guarantee: JobGuarantee) -> dict[str, Any]:
    return {
        "end_to_end": str(guarantee.guarantee),
        "state": str(guarantee.state),
        "limits": [_limit(limit) for limit in guarantee.limits],
        "paths": [
            {
                "source": path.source.name,
                "sink": path.sink.name,
                "guarantee": str(path.guarantee),
                "limits": [_limit(limit) for limit in path.limits],
                "note": path.note,
            }
            for path in guarantee.paths
        ],
    }


def _limit(limit: Promise) -> str:
    remedy = f"; {limit.remedy}" if limit.remedy else ""
    return f"limited by the {limit.part.value}: {limit.reason}{remedy}"


def _chain_lines(chain: dict[str, Any]) -> list[str]:
    lines = []
    for edge in chain["inputs"]:
        side = f" (side output {edge['side_output']})" if edge["side_output"] else ""
        relay = f", relayed by {_count(edge['relays'], 'level')}" if edge["relays"] else ""
        number = f"input {edge['input']}: " if edge["input"] else ""
        lines.append(f"  ⇐ {number}{edge['from']}{side}, {edge['routing']}{relay}: {edge['type']}")
    slots = f"slots {', '.join(map(str, chain['slots']))}" if len(chain["slots"]) > 1 else f"slot {chain['slots'][0]}"
    lines.append(f"  chain of parallelism {chain['parallelism']} on {slots}")
    for operator in chain["operators"]:
        does = f": {operator['does']}" if operator["does"] else ""
        lines.append(f"    {operator['name']} [{operator['uid']}]{does}")
        lines += [f"      state: {state}" for state in operator["states"]]
    return lines


def _slots_text(spark: dict[str, Any]) -> str:
    beside = spark["beside_queries"]
    queries = f" + 1 for the Spark {'query' if len(beside) == 1 else 'queries'} beside {', '.join(beside)}"
    levels = " + ".join(map(str, spark["slots_per_level"]))
    return f"{_count(spark['slots'], 'slot')} at once: {levels}{queries if beside else ''}"


def _memory_text(memory: dict[str, Any]) -> str:
    more = ", and the state itself" if memory["state_on_top"] else ""
    return f"up to {_size(memory['largest_worker'])} for a worker, {_size(memory['workers'])} for all{more}"


def _pact(node: Node) -> str:
    if isinstance(node.factory, SourceFactory):
        return "Data Source"
    return "Data Sink" if isinstance(node.factory, SinkFactory | CollectFactory) else "Operator"


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL_WIDTH}} {text}".rstrip()


def _count(n: int, thing: str) -> str:
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def _size(n: int) -> str:
    return f"{n / 1024 / 1024:.1f} MiB"
