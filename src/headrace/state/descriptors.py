"""Descriptors: how a program names a state and says of what type it is.

A descriptor is made in the user's `open()` and handed to the `RuntimeContext`. It is a value: two
descriptors with the same name, kind and type are the same state of that operator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from headrace.checkpoint.handles import StateShape
from headrace.errors import JobDefinitionError
from headrace.state.ttl import StateTtlConfig
from headrace.types.information import TypeInformation, TypeLike, type_of


@dataclass(frozen=True, slots=True)
class StateDescriptor:
    """Base of all descriptors. `type` accepts a TypeInformation or a Python type such as `float`."""

    KIND: ClassVar[str] = ""

    name: str
    ttl_config: StateTtlConfig | None = field(default=None, init=False, compare=False)
    """Set by `enable_time_to_live`."""

    def get_name(self) -> str:
        return self.name

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        """Have entries expire. Call it before the state is asked for; it is kept with a time stamp from then on."""
        if not isinstance(ttl_config, StateTtlConfig):
            raise JobDefinitionError(
                f'State "{self.name}": enable_time_to_live() got {ttl_config!r}; wanted a StateTtlConfig, made by '
                "StateTtlConfig.new_builder(ttl).build()."
            )
        object.__setattr__(self, "ttl_config", ttl_config)

    @property
    def active_ttl(self) -> StateTtlConfig | None:
        """The time-to-live, unless there is none or it is switched off."""
        config = self.ttl_config
        return config if config is not None and config.is_enabled() else None

    @property
    def element_type(self) -> TypeInformation:
        """Type of what one entry holds: the value, a list element, a map value or an accumulator."""
        raise NotImplementedError

    @property
    def shape(self) -> StateShape:
        """What `_metadata` keeps of this descriptor. `TTL<…>`: every entry begins with a time stamp."""
        return StateShape(self.name, self.KIND, self._with_ttl(str(self.element_type)), self.element_type.codec_name)

    def _with_ttl(self, type_text: str) -> str:
        return type_text if self.active_ttl is None else f"TTL<{type_text}>"


@dataclass(frozen=True, slots=True)
class ValueStateDescriptor(StateDescriptor):
    """One value per key."""

    KIND: ClassVar[str] = "value"

    value_type_info: TypeLike

    @property
    def element_type(self) -> TypeInformation:
        return type_of(self.value_type_info)


@dataclass(frozen=True, slots=True)
class ListStateDescriptor(StateDescriptor):
    """An ordered list per key, kept element by element."""

    KIND: ClassVar[str] = "list"

    elem_type_info: TypeLike

    @property
    def element_type(self) -> TypeInformation:
        return type_of(self.elem_type_info)


@dataclass(frozen=True, slots=True)
class MapStateDescriptor(StateDescriptor):
    """A map per key, kept entry by entry."""

    KIND: ClassVar[str] = "map"

    key_type_info: TypeLike
    value_type_info: TypeLike

    @property
    def key_type(self) -> TypeInformation:
        return type_of(self.key_type_info)

    @property
    def element_type(self) -> TypeInformation:
        return type_of(self.value_type_info)

    @property
    def shape(self) -> StateShape:
        text = self._with_ttl(f"MAP<{self.key_type}, {self.element_type}>")
        return StateShape(self.name, self.KIND, text, self.element_type.codec_name)


@dataclass(frozen=True, slots=True)
class ReducingStateDescriptor(StateDescriptor):
    """One value per key, folded by a reduce function `(a, b) -> a`."""

    KIND: ClassVar[str] = "reducing"

    reduce_function: Any = field(compare=False)
    """A `ReduceFunction` or a plain callable of two values."""
    type_info: TypeLike

    @property
    def element_type(self) -> TypeInformation:
        return type_of(self.type_info)


@dataclass(frozen=True, slots=True)
class AggregatingStateDescriptor(StateDescriptor):
    """One accumulator per key, fed by an `AggregateFunction`."""

    KIND: ClassVar[str] = "aggregating"

    agg_function: Any = field(compare=False)
    state_type_info: TypeLike

    @property
    def element_type(self) -> TypeInformation:
        return type_of(self.state_type_info)
