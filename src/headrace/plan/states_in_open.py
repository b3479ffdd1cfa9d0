"""Which keyed states a function's `open()` asks for, read from its source: the function is never called.

Understood is what programs usually write, at the top level of `open()`:

    self.count = ctx.get_state(ValueStateDescriptor("count", Types.LONG()))
    descriptor = MapStateDescriptor("seen", Types.STRING(), Reading)      # then ctx.get_map_state(descriptor)
    self.total = ctx.get_state(TOTAL)                                     # a descriptor of the module, or self.TOTAL

Whatever else decides about a state (a branch, a loop, a name that is computed, a time-to-live that is set in `open()`)
leaves it unknown: a state is reported only if it is certain to be asked for, and with that type.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import textwrap
from types import ModuleType
from typing import Any

from headrace.errors import HeadraceError
from headrace.operators.functions import Function
from headrace.state.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor, StateDescriptor
from headrace.types.information import TypeInformation, Types

_ASKS = {"get_state", "get_list_state", "get_map_state", "get_reducing_state", "get_aggregating_state"}
_DESCRIPTORS = StateDescriptor.__module__
_FOLDS: dict[type, str] = {ReducingStateDescriptor: "reduce_function", AggregatingStateDescriptor: "agg_function"}


class _Unknown(Exception):
    """The source does not tell."""


def states_in_open(function: Any) -> list[StateDescriptor]:
    """The states that are certain to be asked for. Empty if the source is not to be had or says nothing certain."""
    opening = getattr(type(function), "open", None)
    if not isinstance(function, Function) or not inspect.isfunction(opening) or opening is Function.open:
        return []
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(opening)))
    except (OSError, TypeError, SyntaxError):
        return []
    (method,) = tree.body
    if not isinstance(method, ast.FunctionDef) or not method.args.args or method.decorator_list:
        return []
    names = {**vars(builtins), **opening.__globals__, **inspect.getclosurevars(opening).nonlocals}
    for argument in (*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs):
        names.pop(argument.arg, None)
    return _Reader(names, method.args.args[0].arg, function).read(method.body)


class _Reader:
    """Follows the statements of `open()` in order, as far as they are plain."""

    def __init__(self, names: dict[str, Any], self_name: str, function: Function) -> None:
        self._names = names
        self._self = self_name
        self._function = function
        self._reassigned: set[str] = set()

    def read(self, body: list[ast.stmt]) -> list[StateDescriptor]:
        found: dict[str, StateDescriptor] = {}
        if any(isinstance(n, ast.Attribute) and n.attr == "enable_time_to_live" for s in body for n in ast.walk(s)):
            return []  # it changes how entries are stored, and the configuration may be anything
        for statement in body:
            if isinstance(statement, ast.Return | ast.Raise):
                break
            if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr):
                # A branch or a loop may end open() early, or give a name another meaning.
                if not isinstance(statement, ast.Pass | ast.Import | ast.ImportFrom | ast.Assert):
                    break
                continue
            for call in ast.walk(statement):
                descriptor = self._asked(call)
                if descriptor is not None:
                    found[descriptor.name] = descriptor
            self._assign(statement)
        return list(found.values())

    def _asked(self, node: ast.AST) -> StateDescriptor | None:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ASKS):
            return None
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        try:
            value = self._value(given[0]) if len(given) == 1 else None
            return value if isinstance(value, StateDescriptor) and value.shape else None
        except (_Unknown, HeadraceError, TypeError):
            return None  # a type that cannot be is found out by the task that opens, with the user's line

    def _assign(self, statement: ast.stmt) -> None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        for target in targets:
            for name in ast.walk(target) if target is not None else ():
                if isinstance(name, ast.Attribute):
                    self._reassigned.add(name.attr)
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                    self._names.pop(name.id, None)
                    # Of several names at once none is followed.
                    if name is target and isinstance(value := getattr(statement, "value", None), ast.expr):
                        with contextlib.suppress(_Unknown):
                            self._names[name.id] = self._value(value)

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name != self._self and name in self._names:
                return self._names[name]
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name == self._self:
                return self._own(attribute)
            case ast.Attribute(value=base, attr=attribute):
                owner = self._value(base)
                if isinstance(owner, ModuleType) or owner is Types:
                    return inspect.getattr_static(owner, attribute, None)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [self._value(part) for part in parts]
            case ast.Call():
                return self._called(node)
        raise _Unknown

    def _own(self, attribute: str) -> Any:
        """An attribute of the function that its constructor, or its class, has set. No property is run."""
        found = inspect.getattr_static(self._function, attribute, None)
        if attribute not in self._reassigned and isinstance(found, str | type | TypeInformation | StateDescriptor):
            return found
        raise _Unknown

    def _called(self, node: ast.Call) -> Any:
        """Only constructors of descriptors and the makers of `Types`: Headrace's own code."""
        maker = self._value(node.func)
        if isinstance(maker, staticmethod) and any(maker is member for member in vars(Types).values()):
            made, fold = maker.__func__, ""
        elif (
            isinstance(maker, type) and issubclass(maker, StateDescriptor) and maker.__module__.startswith("headrace.")
        ):
            made, fold = maker, _FOLDS.get(maker, "")
        else:
            raise _Unknown
        # How values are folded is not part of the shape, and is usually a lambda.
        given = [None if fold and i == 1 else self._value(part) for i, part in enumerate(node.args)]
        named = {k.arg: None if k.arg == fold else self._value(k.value) for k in node.keywords if k.arg is not None}
        try:
            return made(*given, **named)
        except Exception as error:
            raise _Unknown from error
