"""`map`, `flat_map` and `filter`. On a keyed stream their functions may keep state; the code is the same."""

from __future__ import annotations

from typing import Any

from headrace.operators.base import BackgroundWork, Operator, SubtaskWork, failure_in
from headrace.operators.checkpointed import CheckpointedFunction
from headrace.operators.context import InitializationContext, SnapshotContext, StreamRuntimeContext
from headrace.operators.functions import CheckpointListener, Function, callable_of


class FunctionOperator(Operator):
    """Base of operators that run one user function: opens and closes it."""

    METHOD = ""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function
        self._call = callable_of(function, self.METHOD)

    def open(self) -> None:
        if isinstance(self._function, CheckpointedFunction):
            try:
                self._function.initialize_state(InitializationContext(self))
            except Exception as error:
                raise failure_in(self, "(none: in initialize_state())", error) from error
        if isinstance(self._function, Function):
            try:
                self._function.open(StreamRuntimeContext(self))
            except Exception as error:
                raise failure_in(self, "(none: in open())", error) from error

    def snapshot(self, checkpoint_id: int, *, canonical: bool) -> SubtaskWork:
        if isinstance(self._function, CheckpointedFunction):
            try:
                self._function.snapshot_state(SnapshotContext(checkpoint_id))
            except Exception as error:
                raise failure_in(self, f"(none: in snapshot_state() of checkpoint {checkpoint_id})", error) from error
        return super().snapshot(checkpoint_id, canonical=canonical)

    def complete(self, checkpoint_id: int) -> BackgroundWork | None:
        if isinstance(self._function, CheckpointListener):
            try:
                self._function.notify_checkpoint_complete(checkpoint_id)
            except Exception as error:
                raise failure_in(self, f"(none: told that checkpoint {checkpoint_id} is complete)", error) from error
        return super().complete(checkpoint_id)

    def aborted(self, checkpoint_id: int) -> None:
        if isinstance(self._function, CheckpointListener):
            try:
                self._function.notify_checkpoint_aborted(checkpoint_id)
            except Exception as error:
                raise failure_in(self, f"(none: told that checkpoint {checkpoint_id} was given up)", error) from error

    def close(self) -> None:
        try:
            if isinstance(self._function, Function):
                self._function.close()
        finally:
            super().close()


class MapOperator(FunctionOperator):
    """One record in, one out."""

    METHOD = "map"

    def process(self, value: Any, timestamp: int | None) -> None:
        try:
            result = self._call(value)
        except Exception as error:
            raise failure_in(self, value, error) from error
        self.emit(result, timestamp)


class FlatMapOperator(FunctionOperator):
    """One record in, any number out."""

    METHOD = "flat_map"

    def process(self, value: Any, timestamp: int | None) -> None:
        try:
            results = self._call(value)
            if results is None:
                return
            emit = self.emit
            for result in results:
                emit(result, timestamp)
        except Exception as error:
            raise failure_in(self, value, error) from error


class FilterOperator(FunctionOperator):
    """Lets a record pass or not."""

    METHOD = "filter"

    def process(self, value: Any, timestamp: int | None) -> None:
        try:
            passes = self._call(value)
        except Exception as error:
            raise failure_in(self, value, error) from error
        if passes:
            self.emit(value, timestamp)
