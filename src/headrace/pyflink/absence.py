"""Names of PyFlink that Headrace does not have: asked for, they say what is nearest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn

NAMES: dict[str, Mapping[str, str]] = {}
"""By module, below `headrace.pyflink`: each absent name and what to use instead."""


def absent(module: str, names: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """The `__getattr__` of a module, which Python calls for names that the module does not have.

    For an absent name it raises ImportError, not AttributeError: that one `from … import …` would replace by a message
    of its own.
    """
    NAMES[module] = names

    def look_up(name: str) -> NoReturn:
        instead = names.get(name)
        if instead is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise ImportError(f"{module} has no {name}: {instead}", name=module)

    return look_up


def absent_module(module: str, instead: str) -> ModuleNotFoundError:
    """What a module raises that stands only for the message."""
    return ModuleNotFoundError(f"There is no {module}: {instead}", name=module)
