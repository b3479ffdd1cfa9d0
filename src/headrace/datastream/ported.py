"""Methods of PyFlink's streams that shape a Flink cluster rather than the job, and the few that stand for others.

A mixin of `DataStream`, which makes new streams in many places: a subclass would be lost after the first operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.datastream.ignored import ignored
from headrace.errors import JobDefinitionError
from headrace.plan.fields import resolve_field
from headrace.types.information import RowType, TupleType, Types

if TYPE_CHECKING:
    from headrace.datastream.config import ExecutionConfig
    from headrace.datastream.streams import DataStream

Self = TypeVar("Self")

_ABSENT = {
    "cache": "Headrace keeps no results between jobs. Write them with sink_to() and read them in the next job.",
}
"""Methods of Flink's streams without a counterpart, and what to do instead."""


class OperatorHints:
    """What a Flink program may say of an operator that Headrace decides by itself."""

    def set_uid_hash(self: Self, uid_hash: str) -> Self:
        """Flink's way to claim state of an operator by its hash. State is found by `uid()` alone here."""
        ignored("set_uid_hash()", "state is found by uid(). Give the operator the uid that its state was saved with.")
        return self

    def set_description(self: Self, description: str) -> Self:
        """Flink's long text for its web page."""
        ignored("set_description()", "operators are shown by their name(). Use that.")
        return self

    def slot_sharing_group(self: Self, slot_sharing_group: Any) -> Self:
        """Flink's way to keep operators out of one another's slots."""
        ignored(
            "slot_sharing_group()",
            "operators share slots by chaining alone. See start_new_chain(), disable_chaining().",
        )
        return self


class PortedMethods(OperatorHints):
    """The part of PyFlink's `DataStream` that needs no operator of its own."""

    def set_buffer_timeout(self: Self, timeout_millis: int) -> Self:
        """Flink has one for each operator, Headrace one for the job."""
        ignored("DataStream.set_buffer_timeout()", "there is one for the whole job: env.set_buffer_timeout().")
        return self

    def force_non_parallel(self: DataStream) -> DataStream:  # type: ignore[misc]  # mixed into DataStream alone
        """One subtask, now and for ever."""
        return self.set_parallelism(1).set_max_parallelism(1)

    def get_execution_config(self: DataStream) -> ExecutionConfig:  # type: ignore[misc]
        return self.get_execution_environment().get_config()

    def project(self: DataStream, *field_indexes: int) -> DataStream:  # type: ignore[misc]
        """These fields of each tuple or row, as a tuple, in the order given."""
        if not field_indexes:
            raise JobDefinitionError("project() got no fields. Give the positions of those to keep, such as 0, 2.")
        kept = self.get_type()
        for index in field_indexes:
            if isinstance(index, bool) or not isinstance(index, int) or index < 0:
                raise JobDefinitionError(f"project() got {index!r}; wanted positions of fields, counted from 0.")
            resolve_field(kept, index, "project()")
        made = Types.TUPLE([kept.types[i] for i in field_indexes]) if isinstance(kept, RowType | TupleType) else None
        return self.map(_projection(field_indexes), made).name("project")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Python asks here for what the stream does not have, so what it has costs nothing.
            what = _ABSENT.get(name)
            plain = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(plain if what is None else f"{plain}. {what}")


def _projection(indexes: tuple[int, ...]) -> Callable[[Any], tuple[Any, ...]]:
    def project(value: Any) -> tuple[Any, ...]:
        return tuple(value[i] for i in indexes)

    return project
