"""The readings that both temperature alerts look at, and what an alert is."""

from __future__ import annotations

from headrace import Types

READING = Types.ROW_NAMED(["id", "temperature"], [str, float])
ALERT = Types.TUPLE([str, float, float])
"""Sensor, temperature, how far it lies from the sensor's last one."""

READINGS = [
    ("sensor_1", 20.0),
    ("sensor_2", 35.0),
    ("sensor_1", 21.0),
    ("sensor_1", 25.5),
    ("sensor_2", 35.5),
    ("sensor_3", 99.0),
    ("sensor_2", 31.0),
    ("sensor_1", 25.0),
]
EXPECTED = [("sensor_1", 25.5, 4.5), ("sensor_2", 31.0, 4.5)]
"""The first reading of a sensor raises no alert, however high it is: there is nothing to compare it with."""
