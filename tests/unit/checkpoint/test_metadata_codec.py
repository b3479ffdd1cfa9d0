"""`_metadata` reads back as it was written, and never as anything else."""

from __future__ import annotations

import hashlib
import random
import struct

import msgspec
import pytest
from checkpoint_examples import metadata, snapshot, state_file

from headrace.checkpoint.handles import StateFile
from headrace.checkpoint.metadata.codec import MAGIC, decode_metadata, encode_metadata, files_of
from headrace.checkpoint.metadata.model import channels_of, operators_of, shared_files_of
from headrace.errors import DamagedCheckpointError, RestoreError, UnsupportedFormatError

SHARED = state_file("job/run-000001/shared/ab/x.sst", shared=True)
OWN = state_file("job/run-000001/chk-000007/attempt-000001/state-1")
INLINE = StateFile(size=1, sha256="00", inline=b"x")
EXAMPLE = metadata(7, 1, "job", OWN, SHARED, INLINE)


def sealed(body: bytes, version: int = 1) -> bytes:
    """A body under a header that matches it, as a forger would make it."""
    header = struct.pack(">4sHQ", MAGIC, version, len(body))
    return header + hashlib.sha256(header + body).digest() + body


def test_metadata_reads_back_equal() -> None:
    data = encode_metadata(EXAMPLE)
    assert data[:6] == b"HRCP\x00\x02"
    assert decode_metadata(data) == EXAMPLE
    assert encode_metadata(decode_metadata(data)) == data


def test_metadata_of_the_first_format_is_read_as_it_is() -> None:
    assert decode_metadata(sealed(msgspec.msgpack.encode(EXAMPLE, order="deterministic"))) == EXAMPLE


def test_the_files_of_a_checkpoint_are_its_paths_without_the_inline_ones() -> None:
    assert files_of(EXAMPLE) == {OWN.path, SHARED.path}
    assert shared_files_of(EXAMPLE) == {SHARED.path}


def test_two_thousand_mutations_give_typed_errors_only() -> None:
    rng = random.Random(20240229)
    good = encode_metadata(EXAMPLE)
    for _ in range(2_000):
        data = bytearray(good)
        match rng.randrange(5):
            case 0:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            case 1:
                del data[rng.randrange(len(data)) :]
            case 2:
                at = rng.randrange(len(data))
                data[at:at] = rng.randbytes(rng.randrange(1, 20))
            case 3:
                at = rng.randrange(len(data))
                data[at : at + 8] = rng.randbytes(8)
            case 4:
                data = bytearray(rng.randbytes(rng.randrange(200)))
        if data == good:
            continue
        with pytest.raises((DamagedCheckpointError, UnsupportedFormatError)):
            decode_metadata(bytes(data), "there/_metadata")


def test_two_thousand_bodies_with_a_matching_hash_give_typed_errors_or_well_formed_metadata() -> None:
    rng = random.Random(7)
    body = msgspec.msgpack.encode(EXAMPLE)
    accepted = 0
    for _ in range(2_000):
        data = bytearray(body)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            decoded = decode_metadata(sealed(bytes(data)))
        except RestoreError:
            continue
        accepted += 1
        for path in files_of(decoded):
            assert not path.startswith("/")
            assert ".." not in path.split("/")
    assert 0 < accepted < 2_000


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**63, 2**64 - 1])
def test_an_announced_length_is_never_trusted(length: int) -> None:
    good = encode_metadata(EXAMPLE)
    with pytest.raises(DamagedCheckpointError, match="announced"):
        decode_metadata(good[:6] + struct.pack(">Q", length) + good[14:])


def test_lengths_inside_the_body_are_never_trusted() -> None:
    for body in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 100_000, b""):
        with pytest.raises(DamagedCheckpointError):
            decode_metadata(sealed(body))


def test_a_newer_format_is_refused_by_its_number_and_file() -> None:
    with pytest.raises(UnsupportedFormatError, match=r"chk-000007/_metadata.*format 3") as caught:
        decode_metadata(sealed(b"anything", version=3), "chk-000007/_metadata")
    assert "reads up to 2" in str(caught.value)


@pytest.mark.parametrize("path", ["/etc/passwd", "a/../../b", ""])
def test_metadata_that_points_outside_the_storage_is_damaged(path: str) -> None:
    evil = metadata(7, 1, "job", StateFile(size=1, sha256="00", path=path))
    with pytest.raises(DamagedCheckpointError, match="no path inside"):
        decode_metadata(sealed(msgspec.msgpack.encode(evil)))


def test_a_field_that_a_later_version_adds_does_not_disturb() -> None:
    body = msgspec.msgpack.decode(msgspec.msgpack.encode(EXAMPLE))
    body["added_later"] = 1
    assert decode_metadata(sealed(msgspec.msgpack.encode(body))) == EXAMPLE


def test_acknowledgements_are_gathered_by_operator_in_order_of_subtasks() -> None:
    tasks = [snapshot(1, 1), snapshot(0, 0), snapshot(1, 0)]
    records = operators_of(tasks, {"op-1": "windows"})
    assert [(r.uid, r.name, [s.subtask for s in r.subtasks]) for r in records] == [
        ("op-0", "op-0", [0]),
        ("op-1", "windows", [0, 1]),
    ]
    assert channels_of(tasks) == ()
