"""Every place of the package that could run code out of bytes or text is listed here, with the reason why it is safe.

A new one fails this test: say where its bytes come from, and if they come from a checkpoint, add a hostile one to
`tests/compat/test_hostile_pickles.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src/headrace"

MODULES = {
    *("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle", "yaml"),
    *("multiprocessing", "xmlrpc", "torch", "hickle", "rocksdict", "runpy", "code", "codeop"),
}
"""Modules with a function that loads objects, or runs text, whatever else they are for."""
CALLS = {"eval", "exec", "compile", "__import__", "import_module", "read_pickle", "CPickleSerializer"}
"""Functions that run what they are given, or load what it names."""
NUMPY = {"np", "numpy"}
KEYWORDS = {"allow_pickle", "raw_mode", "dec_hook", "ext_hook", "object_hook"}
"""Arguments that turn loading on, or hand decoded bytes to a function."""

KNOWN = {
    "__init__.py: import_module": "names of this package, on first use",
    "cep/__init__.py: import_module": "names of this package, on first use",
    "cli/main.py: import_module": "commands of this package, on first use",
    "cli/options.py: allow_pickle": "what the person at the command line says",
    "cli/program.py: runpy": "the program that the person at the command line names",
    "cli/state.py: allow_pickle": "what the person at the command line says",
    "datastream/choices.py: allow_pickle": "what the program and the command line say",
    "datastream/submission.py: import_module": "a module of this package",
    "runtime/spark/daemon.py: import_module": "a fixed list of modules",
    "runtime/spark/preflight.py: import_module": "packages that the job needs, by fixed names",
    "state/codecs.py: ext_hook": "`untag`: a closed list of kinds, none of which runs anything",
    "state/plain_values.py: ext_hook": "the same closed list",
    "state_reader/frames.py: allow_pickle": "hands on what the reader says",
    "state_reader/reader.py: allow_pickle": "hands on what the reader says; False unless it does",
    "testing/sink_contract.py: pickle": "a sink of the test itself, there and back",
    "testing/storage_contract.py: pickle": "a storage of the test itself, there and back",
    "backends/elements.py: eval": "builds a check from the kinds of types; no text of a checkpoint is part of it",
    "backends/rocksdb/database.py: raw_mode": "True, always: bytes in, bytes out",
    "backends/rocksdb/database.py: rocksdict": "the database, in raw mode; one of the other mode cannot be opened",
    "state/codecs.py: exec": "builds a function from the fields of a declared type",
    "state/codecs.py: pickle": "for states that the program types as pickled",
    "state/object_batches.py: pickle": "where the program allows pickled records, see `RecordPickles`",
    "runtime/task/in_flight.py: pickle": "writes only; `admit` refuses what the program does not allow",
    "runtime/task/records.py: marshal": "records between tasks of one attempt; `admit` refuses it in a checkpoint",
    "runtime/task/records.py: pickle": "records between tasks of one attempt; `admit` comes before it for a checkpoint",
}


def uses(tree: ast.AST) -> Iterator[str]:
    """What a module has of the above."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.split(".")[0] for alias in names if alias.name.split(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module), level=0):
                yield from {module.split(".")[0]} & MODULES
                yield from {alias.name for alias in node.names} & CALLS
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), keywords=keywords):
                if name in CALLS and not (name == "compile" and isinstance(node.func, ast.Attribute)):
                    yield name  # `re.compile` is another one
                if name == "load" and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) in NUMPY:
                    yield "numpy.load"
                yield from {keyword.arg for keyword in keywords if keyword.arg is not None} & KEYWORDS


def found() -> set[str]:
    return {
        f"{path.relative_to(SRC).as_posix()}: {use}"
        for path in SRC.rglob("*.py")
        for use in uses(ast.parse(path.read_text()))
    }


def test_every_way_from_bytes_to_running_code_is_known() -> None:
    new = found() - KNOWN.keys()
    assert not new, f"say in KNOWN why these are safe: {sorted(new)}"
    gone = KNOWN.keys() - found()
    assert not gone, f"these are gone, take them out of KNOWN: {sorted(gone)}"


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "import multiprocessing.connection",
        "eval(text)",
        "np.load(file, allow_pickle=True)",
        "frame = pd.read_pickle(path)",
        "builtins.exec(text)",
        "from importlib import import_module",
        "rocksdict.Options(raw_mode=False)",
        "msgspec.msgpack.Decoder(dec_hook=make)",
    ],
)
def test_the_check_sees(text: str) -> None:
    assert list(uses(ast.parse(text)))
