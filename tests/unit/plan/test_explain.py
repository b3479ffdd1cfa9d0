"""What `explain` prints, word by word."""

from __future__ import annotations

import json
from dataclasses import replace

from plan_examples import Program

from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.connectors.sink import SinkGuarantee
from headrace.operators.factories import ReduceFactory, WithStateFactory
from headrace.plan.buffers import bytes_in_flight
from headrace.plan.explain import describe_checkpointing, execution_plan, explain, explain_json
from headrace.plan.graph import Broadcast, Hash, KeySpec, Rebalance
from headrace.plan.memory import need_of_job
from headrace.plan.restart import FixedDelayRestart
from headrace.plan.settings import CheckpointingMode, CheckpointSettings, JobSettings
from headrace.types.information import Types

SETTINGS = JobSettings("Bead counts", "bead-counts")


def beads() -> Program:
    p = Program(parallelism=3)
    source = p.source("beads", parallelism=1, uid="beads")
    counting = WithStateFactory(print, Types.LONG(), flat=False)
    by_colour = Hash(KeySpec(str, ("colour",)))
    p.sink("out", p.add("count", counting, (source, by_colour), uid="count"), uid="out")
    return p


def test_a_job_on_one_page() -> None:
    settings = replace(
        SETTINGS,
        checkpointing=CheckpointSettings(interval_ms=1_000, storage=FileSystemCheckpointStorage("/checkpoints")),
        backend=RocksDBOptions(),
        restart=FixedDelayRestart(60, 10_000),
    )
    (in_flight,) = bytes_in_flight([1, 3])
    flight = f"{in_flight / 2**20:.1f} MiB"
    need = need_of_job(beads().plan(), settings.backend)
    assert explain(beads().plan(), settings) == (
        f"""\
Job Bead counts (id bead-counts)

Level 0, 1 slot
  chain of parallelism 1 on slot 0
    beads [beads]: collection of 1 values
      state: positions of its splits
  ⇒ at most {flight} on the way to level 1

Level 1, 3 slots
  ⇐ beads, by key (colour): any object
  chain of parallelism 3 on slots 0, 1, 2
    count [count]: print
      state: value LONG
    out [out]: PromisingSink

Spark        4 slots at once: 1 + 3
             at most {flight} on the way between tasks
Memory       up to {need.largest_worker / 2**20:.1f} MiB for a worker, {need.workers / 2**20:.1f} MiB for all
Checkpoints  every 1000 ms, exactly-once, aligned; the last 1 kept, deleted when the job is cancelled or finished; \
3 failures in a row tolerated
Storage      file:///checkpoints, survives the loss of a task and of this process; of this machine only if \
/checkpoints is on a file system that outlives it
Backend      RocksDB, incremental checkpoints
Restart      fixed delay: 60 restarts, each after 10 s; none after 3 attempts in a row that fail on the same record
Guarantee    exactly-once end to end
             beads → out: exactly-once: sink "out" commits in two phases with the checkpoint
"""
    )


def test_without_checkpoints_the_page_says_what_is_missing() -> None:
    page = explain(beads().plan(), SETTINGS)
    for line in (
        "Checkpoints  off",
        "Storage      memory:, survives the loss of a task, not of this process",
        "for all, and the state itself",
        "Backend      heap, asynchronous snapshots",
        "Restart      none: the first failure ends the job",
        "Guarantee    at-most-once end to end",
        "limited by the processing: checkpointing is off: after a failure sources do not go back and state is gone; "
        "call env.enable_checkpointing(interval)",
    ):
        assert line in page


def test_a_relayed_edge_and_a_side_output_are_shown() -> None:
    p = Program()
    source = p.source()
    counted = p.keyed("count", source)
    p.sink("out", (counted, Rebalance(), "late"), (source, Broadcast()))
    page = explain(p.plan(), SETTINGS)
    assert "  ⇐ count (side output late), rebalance: any object\n" in page
    assert "  ⇐ source, broadcast, relayed by 1 level: any object\n" in page


def test_states_are_shown_as_far_as_they_are_known() -> None:
    p = Program()
    source = p.source()
    p.add("sum", ReduceFactory(max, Types.DOUBLE()), (source, Hash(KeySpec(str))))
    p.keyed("remember", source)
    states = {
        operator["name"]: operator["states"]
        for level in explain_json(p.plan(), SETTINGS)["levels"]
        for chain in level["chains"]
        for operator in chain["operators"]
    }
    assert states == {"source": ["positions of its splits"], "sum": ["value DOUBLE"], "remember": ["timers"]}


def test_the_weakest_of_several_paths_is_named() -> None:
    p = Program()
    source = p.source()
    p.sink("good", source)
    p.sink("weak", source, guarantee=SinkGuarantee.AT_LEAST_ONCE)
    page = explain(p.plan(), replace(SETTINGS, checkpointing=CheckpointSettings(interval_ms=1_000)))
    assert 'Guarantee    at-least-once end to end\n             limited by the sink: sink "weak"' in page
    assert "source → good: exactly-once" in page
    assert "source → weak: at-least-once" in page


def test_the_manner_of_checkpoints_is_one_line() -> None:
    on = CheckpointSettings(interval_ms=500)
    assert "exactly-once, unaligned;" in describe_checkpointing(replace(on, unaligned=True))
    timed = replace(on, unaligned=True, aligned_timeout_ms=200)
    assert "exactly-once, unaligned after 200 ms;" in describe_checkpointing(timed)
    assert "at-least-once;" in describe_checkpointing(replace(on, mode=CheckpointingMode.AT_LEAST_ONCE))


def test_the_json_form_is_plain_data() -> None:
    facts = explain_json(beads().plan(), SETTINGS)
    assert json.loads(json.dumps(facts)) == facts
    assert facts["spark"]["slots"] == 4


def test_the_execution_plan_has_the_form_of_flinks() -> None:
    nodes = json.loads(execution_plan(beads().graph()))["nodes"]
    assert [(n["type"], n["pact"], n["parallelism"]) for n in nodes] == [
        ("beads", "Data Source", 1),
        ("count", "Operator", 3),
        ("out", "Data Sink", 3),
    ]
    assert nodes[1]["predecessors"] == [{"id": 0, "ship_strategy": "HASH", "side": "second"}]
