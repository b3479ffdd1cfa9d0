"""Factories: what a plan node holds. They are light, travel to the tasks and make one operator per subtask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.operators.base import Operator


class OperatorFactory(ABC):
    """Makes the operators of a node."""

    keyed: bool = False
    """Whether the operator's input must come from a `key_by`."""

    def needs_key(self, input: int) -> bool:
        """Whether the records of that input must have a key. Broadcast records have none, whatever they meet."""
        return self.keyed

    @abstractmethod
    def create(self) -> Operator:
        """A new operator for one subtask and attempt."""

    @property
    def user_function(self) -> Any | None:
        """The user's own function or connector, for error messages and `explain`."""
        return None
