"""Options are declared once, have one meaning, and refuse what they cannot read."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from headrace import options
from headrace.backends.heap.options import HeapOptions
from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.datastream import choices
from headrace.errors import ConfigurationError
from headrace.options import Configuration, Option, all_options
from headrace.plan.settings import CheckpointSettings


def test_every_option_has_one_key_one_variable_and_a_sentence() -> None:
    keys = [key for option in all_options() for key in (option.key, *option.former)]
    assert len(keys) == len(set(keys))
    variables = [option.variable for option in all_options()]
    assert len(variables) == len(set(variables))
    assert all(option.doc.endswith(".") for option in all_options())
    assert [o.key for o in all_options()] == sorted(o.key for o in all_options())


def test_every_default_is_what_the_settings_have() -> None:
    found = CheckpointSettings()
    for option, name in choices._CHECKPOINT:
        assert option.default == getattr(found, name), option.key
    for table, defaults in ((choices._HEAP, HeapOptions()), (choices._ROCKSDB, RocksDBOptions())):
        for option, name, unit in table:
            expected = getattr(defaults, name)
            assert option.default == (expected if unit == 1 else expected * unit), option.key


def test_every_setting_of_a_backend_is_an_option() -> None:
    for table, defaults in ((choices._HEAP, HeapOptions), (choices._ROCKSDB, RocksDBOptions)):
        assert {name for _, name, _ in table} == {f.name for f in fields(defaults)}


@pytest.mark.parametrize(
    ("text", "millis"),
    [("500", 500), ("500 ms", 500), ("10s", 10_000), ("5 min", 300_000), ("2 H", 7_200_000), ("1d", 86_400_000)],
)
def test_durations_are_read_as_flink_writes_them(text: str, millis: int) -> None:
    assert options.CHECKPOINT_INTERVAL.parse(text) == millis


@pytest.mark.parametrize(("text", "size"), [("100", 100), ("64 mb", 64 * 2**20), ("8KiB", 8_192), ("1g", 2**30)])
def test_sizes_are_read_as_flink_writes_them(text: str, size: int) -> None:
    assert options.CHECKPOINT_ALIGNMENT_MAX.parse(text) == size


@pytest.mark.parametrize(
    ("option", "text", "wanted"),
    [
        (options.PARALLELISM, "two", "a whole number"),
        (options.CHECKPOINT_INTERVAL, "10 parsecs", "a duration"),
        (options.CHECKPOINT_INTERVAL, "-5 s", "a duration"),
        (options.CHECKPOINT_ALIGNMENT_MAX, "big", "a size"),
        (options.OBJECT_REUSE, "yes", "true or false"),
        (options.CHECKPOINT_MODE, "twice", "one of exactly-once, at-least-once"),
        (options.JOB_PARAMETERS, "a,b", "pairs such as"),
        (options.EXPONENTIAL_JITTER, "some", "a number"),
    ],
)
def test_a_value_that_cannot_be_read_names_the_key_and_what_is_wanted(
    option: Option[Any], text: str, wanted: str
) -> None:
    for attempt in (lambda: option.parse(text), lambda: Configuration({option.key: text})):
        with pytest.raises(ConfigurationError) as caught:
            attempt()
        assert option.key in str(caught.value)
        assert wanted in str(caught.value)


def test_former_keys_are_read_and_the_present_one_wins() -> None:
    configuration = Configuration({"state.checkpoints.num-retained": "2"})
    assert configuration.get(options.CHECKPOINT_RETAINED) == 2
    configuration.set("execution.checkpointing.num-retained", 5)
    assert configuration.get(options.CHECKPOINT_RETAINED) == 5


def test_the_environment_is_read_by_variable_name() -> None:
    found = Configuration.from_environment(
        {"HEADRACE_STATE_BACKEND_TYPE": "rocksdb", "HEADRACE_SOMETHING_ELSE": "x", "PATH": "/bin"}
    )
    assert found.to_dict() == {"state.backend.type": "rocksdb"}


def test_a_secret_is_never_shown() -> None:
    secret = Option("password", options.INTEGER, None, "A number.", secret=True)
    with pytest.raises(ConfigurationError) as caught:
        secret.parse("hunter2")
    assert "hunter2" not in str(caught.value)


def test_a_configuration_has_pyflinks_accessors() -> None:
    configuration = Configuration().set_string("a", "x").set_integer("b", 2).set_boolean("c", True).set_float("d", 0.5)
    assert configuration.get_string("a") == "x"
    assert configuration.get_integer("b") == 2
    assert configuration.get_boolean("c") is True
    assert configuration.get_float("d") == 0.5
    assert configuration.get_string("e", "none") == "none"
    assert configuration.contains_key("a")
    assert configuration.remove_config("a")
    assert not configuration.remove_config("a")
    other = Configuration({"b": 3})
    configuration.add_all(other)
    assert configuration.get_integer("b") == 3
    assert set(configuration.key_set()) == {"b", "c", "d"}
    with pytest.raises(ConfigurationError, match="c is 'true'; wanted a whole number"):
        configuration.get_integer("c")


def test_typed_values_are_written_as_text() -> None:
    configuration = Configuration().set(options.CHECKPOINT_INTERVAL, timedelta(seconds=2))
    configuration.set(options.JOB_PARAMETERS, {"a": 1})
    assert configuration.get(options.CHECKPOINT_INTERVAL) == 2_000
    assert configuration.get(options.JOB_PARAMETERS) == {"a": "1"}
    assert Configuration(configuration.to_dict()) == configuration
