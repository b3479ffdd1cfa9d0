"""Where the driver listens: never on all interfaces unless somebody asked for it."""

from __future__ import annotations

import socket

import pytest
from control_examples import SECRET

from headrace import options
from headrace.errors import ConfigurationError
from headrace.runtime.control.address import BIND_OPTION, PORT_OPTION, ControlAddress, control_address
from headrace.runtime.control.server import ControlServer

DEFAULT = (None, 0)


@pytest.mark.parametrize(
    ("settings", "is_local", "driver_host", "driver_bind", "wanted"),
    [
        (DEFAULT, True, "10.0.0.7", "0.0.0.0", ControlAddress("127.0.0.1", "127.0.0.1", 0)),
        (DEFAULT, False, "driver.example", None, ControlAddress("driver.example", "driver.example", 0)),
        (DEFAULT, False, "driver.example", "10.0.0.7", ControlAddress("10.0.0.7", "driver.example", 0)),
        (("0.0.0.0", 7077), False, "h", "10.0.0.7", ControlAddress("0.0.0.0", "h", 7077)),
        (("0.0.0.0", 0), True, "h", None, ControlAddress("0.0.0.0", "127.0.0.1", 0)),
        (("10.0.0.8", 0), True, "h", None, ControlAddress("10.0.0.8", "10.0.0.8", 0)),
        (DEFAULT, False, "[2001:db8::7]", None, ControlAddress("2001:db8::7", "2001:db8::7", 0)),
    ],
    ids=["local", "driver.host", "driver.bindAddress", "options", "local everywhere", "local address", "IPv6"],
)
def test_the_address_follows_spark_unless_an_option_says_otherwise(
    settings: tuple[str | None, int], is_local: bool, driver_host: str, driver_bind: str | None, wanted: ControlAddress
) -> None:
    found = control_address(*settings, is_local=is_local, driver_host=driver_host, driver_bind_address=driver_bind)
    assert found == wanted


def test_a_port_that_is_taken_is_named_with_its_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"port {port}: the port is taken.*{PORT_OPTION}"):
            ControlServer("127.0.0.1", port, SECRET, 1, lambda event: None)


def test_an_address_that_is_not_of_this_machine_is_named_with_its_option() -> None:
    with pytest.raises(ConfigurationError, match=rf"192\.0\.2\.1, port 0: .*{BIND_OPTION}"):
        ControlServer("192.0.2.1", 0, SECRET, 1, lambda event: None)


def test_a_fixed_port_can_be_used_again_by_the_next_attempt() -> None:
    first = ControlServer("127.0.0.1", 0, SECRET, 1, lambda event: None)
    first.close()
    second = ControlServer("127.0.0.1", first.port, SECRET, 2, lambda event: None)
    assert second.port == first.port
    second.close()


def test_errors_name_the_options_as_they_are_declared() -> None:
    assert options.CONTROL_BIND_ADDRESS.key == BIND_OPTION
    assert options.CONTROL_PORT.key == PORT_OPTION
