"""`CheckpointedFunction`: functions that keep state of their subtask as a whole, beside what they keep per key."""

from __future__ import annotations

from abc import ABC, abstractmethod

from headrace.operators.functions import KeyedStateStore
from headrace.state.operator_state import OperatorStateStore


class FunctionInitializationContext(ABC):
    """What `initialize_state` gets."""

    @abstractmethod
    def is_restored(self) -> bool:
        """Whether the job goes on from a checkpoint or savepoint."""

    @abstractmethod
    def get_operator_state_store(self) -> OperatorStateStore:
        """Where the function gets list, union list and broadcast state."""

    @abstractmethod
    def get_keyed_state_store(self) -> KeyedStateStore:
        """Where the function gets keyed state, if its stream has keys."""


class FunctionSnapshotContext(ABC):
    """What `snapshot_state` gets."""

    @abstractmethod
    def get_checkpoint_id(self) -> int:
        """The checkpoint or savepoint that the snapshot belongs to. Ids grow."""


class CheckpointedFunction(ABC):
    """Mix into a function that wants operator state. The function may be of any kind."""

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Called once per subtask and attempt, before `open`. Ask for states here, and take back what they hold."""

    @abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Called between two records for every checkpoint, which may still fail: bring the states up to date."""
