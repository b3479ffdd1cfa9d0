"""The state of any checkpoint or savepoint without its job: read it as Python values, Arrow batches or a Spark
DataFrame; write it back as a new savepoint.

    reader = StateReader("checkpoints/alerts/run-000001/chk-000007")
    for entry in reader.keyed("jumps", "last"):
        print(entry.key, entry.value)

*Evolving*: names may still change.
"""

from headrace.state_reader.entries import KeyedEntry, OperatorElement, StateInfo, TimerEntry
from headrace.state_reader.reader import StateReader
from headrace.state_reader.writer import OperatorWriter, SavepointWriter

__all__ = [
    "KeyedEntry",
    "OperatorElement",
    "OperatorWriter",
    "SavepointWriter",
    "StateInfo",
    "StateReader",
    "TimerEntry",
]
