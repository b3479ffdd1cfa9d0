"""Code of sources and sinks that the driver calls itself: enumerators, and committers when an attempt begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.errors import HeadraceError
from headrace.operators.base import failure_in_driver
from headrace.plan.graph import Node


@contextmanager
def in_code_of(node: Node, method: str) -> Iterator[None]:
    """What the block raises becomes a `UserFunctionError` with operator, uid, method and the user's line.

    Typed errors stay as they are: whether one may be tried again is part of its type.
    """
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        raise failure_in_driver(node.name, node.uid, node.declared_at, method, error) from error
