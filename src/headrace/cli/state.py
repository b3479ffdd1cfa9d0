"""`headrace state`: the state of a checkpoint or savepoint, read without its job."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import click
import msgspec
from rich.markup import escape

from headrace.cli.looking import console, echo_json, refusals, table
from headrace.errors import ConfigurationError
from headrace.state_reader import StateReader
from headrace.state_reader.entries import window_of
from headrace.state_reader.reader import OPERATOR_KINDS
from headrace.types.rows import Row

_PATH = click.argument("path")
_PICKLE = click.option(
    "--allow-pickle",
    is_flag=True,
    help="Read states that hold pickled objects too: this runs code from the checkpoint, so only if it is your own.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def state() -> None:
    """Read the state of a checkpoint or savepoint.

    PATH is a checkpoint (chk-000007), a savepoint, or the directory of a job, which stands for its newest checkpoint.
    Neither Spark nor the program is needed.
    """


@state.command("list")
@_PATH
@click.option("--json", "as_json", is_flag=True, help="The same as JSON, for programs.")
def list_(path: str, as_json: bool) -> None:
    """List the states of all operators, with their types."""
    with refusals():
        found = StateReader(path).states()
    if as_json:
        echo_json({"states": found})
        return
    rows = table("uid", "state", "kind", "type", "codec")
    for info in found:
        rows.add_row(escape(info.uid), escape(info.name), info.kind, escape(info.type), info.codec)
    console().print(rows)


@state.command()
@_PATH
@click.option("--uid", required=True, help="The operator.")
@click.option("--state", "name", required=True, help="The state; for timers: event or processing.")
@click.option("--where", metavar="key=KEY", help="Only this key: a text, or a Python literal such as 17 or ('a', 1).")
@click.option("--limit", type=click.IntRange(min=0), default=None, help="At most so many entries.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on each line, for programs.")
@_PICKLE
def read(
    path: str, uid: str, name: str, where: str | None, limit: int | None, as_json: bool, allow_pickle: bool
) -> None:
    """Show the entries of one state: keyed state, operator state or timers."""
    with refusals():
        entries = islice(_entries(StateReader(path, allow_pickle=allow_pickle), uid, name, where), limit)
        if as_json:
            for entry in entries:
                click.echo(_json(entry))
            return
        _show(list(entries))


def _entries(reader: StateReader, uid: str, name: str, where: str | None) -> Iterator[dict[str, Any]]:
    """Entries as dicts whose keys are the columns that this state has."""
    keys = None if where is None else _keys(where)
    kind = reader.kind_of(uid, name)
    if kind == "timers":
        for timer in reader.timers(uid, name):
            if keys is None or any(_same(timer.key, key) for key in keys):
                yield {"key": timer.key, **_namespace(timer.namespace), "time_ms": timer.time_ms}
    elif kind in OPERATOR_KINDS:
        if keys is not None:
            raise ConfigurationError(f'"{name}" of operator {uid} is operator state, which has no keys: leave --where.')
        for element in reader.operator_state(uid, name):
            own = {"map_key": element.key} if kind == "broadcast" else {"subtask": element.subtask}
            yield {**own, "value": element.value}
    else:
        places = {"list": "position", "map": "map_key"}
        for key in [None] if keys is None else keys:
            for entry in reader.keyed(uid, name, key=key):
                own = {} if kind not in places else {places[kind]: entry.entry}
                stamp = {} if entry.last_used_ms is None else {"last_used_ms": entry.last_used_ms}
                yield {"key": entry.key, **_namespace(entry.namespace), **own, "value": entry.value, **stamp}


def _keys(where: str) -> list[Any]:
    """What a person may mean by the text: the text itself, and the literal it spells if it spells one."""
    name, equals, text = where.partition("=")
    if name.strip() != "key" or not equals:
        raise ConfigurationError(f"--where {where}: the only condition is key=KEY, such as key=user-17.")
    keys: list[Any] = [text]
    try:
        literal = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return keys
    if isinstance(literal, str | int | float | bytes | bool | tuple):
        keys.append(literal)
    return keys


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _namespace(namespace: bytes) -> dict[str, Any]:
    window = window_of(namespace)
    if window is not None:
        return {"window_start": window[0], "window_end": window[1]}
    return {"namespace": namespace.hex()} if namespace else {}


def _show(entries: list[dict[str, Any]]) -> None:
    if not entries:
        click.echo("No entries.")
        return
    names = list(dict.fromkeys(name for entry in entries for name in entry))
    rows = table(*names)
    for entry in entries:
        rows.add_row(*(escape(_text(entry[name])) if name in entry else "" for name in names))
    console().print(rows)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _json(entry: dict[str, Any]) -> str:
    return msgspec.json.encode({name: _plain(value) for name, value in entry.items()}, enc_hook=repr).decode()


def _plain(value: Any) -> Any:
    """In terms of JSON: rows as objects, what has no form of its own as its text."""
    if isinstance(value, Row):
        return {name: _plain(part) for name, part in Row.as_dict(value).items()}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _plain(part) for key, part in value.items()}
        return [{"key": _plain(key), "value": _plain(part)} for key, part in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return _plain_all(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value


def _plain_all(values: Iterable[Any]) -> list[Any]:
    return [_plain(value) for value in values]
