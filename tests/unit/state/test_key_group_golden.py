"""The groups of keys are part of the checkpoint format: these numbers must never change.

If a number here differs, state written by an earlier version would be looked for in another subtask.
"""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from decimal import Decimal
from uuid import UUID

import numpy as np
import pytest

from headrace.state.key_groups import key_group, key_groups_of_ints, key_groups_of_strings, key_hash
from headrace.state.keys import stored_form

GOLDEN = [
    # key, hash, group of 128, group of 32768
    ("", 0x013329A3, 35, 10659),
    ("a", 0x706B9884, 4, 6276),
    ("b", 0xF4BD06B5, 53, 1717),
    ("1", 0xE61C5BE4, 100, 23524),
    ("sensor-0", 0x19255050, 80, 20560),
    ("sensor-1", 0x936B3D4E, 78, 15694),
    ("sensor-9999", 0x4710DE81, 1, 24193),
    ("\u00e9", 0xE3D03B1D, 29, 15133),
    ("e\u0301", 0x3557F484, 4, 29828),
    ("日本", 0x7E07176C, 108, 5996),
    ("12345678", 0xB740999E, 30, 6558),
    ("123456789", 0xF8ABB63A, 58, 13882),
    ("x" * 256, 0xFD15DD33, 51, 23859),
    ("x" * 257, 0x7F5A1FF4, 116, 8180),
    ("x" * 65_536, 0x4B98FE88, 8, 32392),
    ("\ud800", 0xFD15B094, 20, 12436),
    (0, 0xE220A839, 57, 10297),
    (1, 0x910A2DEC, 108, 11756),
    (-1, 0xE4D97177, 119, 29047),
    (2, 0x975835DE, 94, 13790),
    (42, 0xBDD73226, 38, 12838),
    (127, 0x3FADB6BD, 61, 14013),
    (128, 0xABF42ACC, 76, 10956),
    (1_000_000, 0x680D1CCE, 78, 7374),
    (2**31, 0x25493CC6, 70, 15558),
    (2**63 - 1, 0x2A67D755, 85, 22357),
    (-(2**63), 0x481EC0A2, 34, 16546),
    (2**63, 0x71AD3D1C, 28, 15644),
    (2**64, 0x8ED8071C, 28, 1820),
    (-(2**100), 0xE26D0318, 24, 792),
    (b"", 0x6796FFCD, 77, 32717),
    (b"a", 0x4E47F354, 84, 29524),
    (b"1", 0x084BD7C8, 72, 22472),
    (b"\x00\xff", 0x602F06C7, 71, 1735),
    (0.0, 0xC3B752B1, 49, 21169),
    (-0.0, 0x8BAFF3BA, 58, 29626),
    (1.0, 0x4F96B269, 105, 12905),
    (-1.5, 0xD8F99F52, 82, 8018),
    (float("nan"), 0xF282A13B, 59, 8507),
    (float("inf"), 0x6B1C652C, 44, 25900),
    (True, 0x00A33EBA, 58, 16058),
    (False, 0xE7C898A5, 37, 6309),
    ((), 0xCD356C21, 33, 27681),
    (("a", 1), 0x2292FDBB, 59, 32187),
    (("a", ("b", 2.0)), 0x53C6EC5C, 92, 27740),
    ((1, 2, 3), 0xBA44B8E4, 100, 14564),
    (dt.date(2024, 2, 29), 0xD0769186, 6, 4486),
    (dt.datetime(2024, 2, 29, 12, 30), 0x1079EC48, 72, 27720),
    (dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC), 0x839BCCE5, 101, 19685),
    (Decimal("1.50"), 0x63F8A131, 49, 8497),
    (UUID(int=1), 0xD01C56EF, 111, 22255),
]


@pytest.mark.parametrize(("key", "hashed", "of_128", "of_32768"), GOLDEN, ids=lambda v: ascii(v)[:40])
def test_a_key_keeps_its_group_for_ever(key, hashed, of_128, of_32768):
    stored = stored_form(key)
    assert key_hash(stored) == hashed
    assert (key_group(stored, 128), key_group(stored, 32_768)) == (of_128, of_32768)


def test_columns_keep_their_groups_for_ever():
    ints = [g for g in GOLDEN if type(g[0]) is int and -(2**63) <= g[0] < 2**63]
    texts = [g for g in GOLDEN if type(g[0]) is str]
    assert key_groups_of_ints(np.array([g[0] for g in ints], np.int64), 128).tolist() == [g[2] for g in ints]
    assert key_groups_of_strings([g[0] for g in texts], 128).tolist() == [g[2] for g in texts]


def test_groups_do_not_depend_on_the_process_or_its_hash_seed():
    keys = ["a", "sensor-1", 7, -7, 2**70, b"x", 1.5, True, ("a", (1, 2.0)), "é"]
    program = (
        "from headrace.state.key_groups import key_group\n"
        "from headrace.state.keys import stored_form\n"
        f"print([key_group(stored_form(k), 32768) for k in {keys!r}])"
    )
    expected = str([key_group(stored_form(k), 32_768) for k in keys])
    for seed in ("0", "1", "4294967295", "random"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == expected
