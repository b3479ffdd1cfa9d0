"""A list of Python values as bytes that may lie in a checkpoint. The program, never the bytes, allows pickle.

    tag u8 (0 plain, 1 pickle, 2 typed) | body

    plain    the values, by `state.plain_values`
    typed    msgpack [[each value by the codec of its type], [further values, plain]]
    pickle   the values; written only if neither of the others holds them, and if the program allows it

The program allows pickle on a stream that it types as pickled, and on one that it leaves untyped, as far as
`RecordPickles` says. A typed stream never needs it.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headrace.errors import RestoreError, TypeMismatchError
from headrace.state.codecs import codec_for
from headrace.state.plain_values import DECODE_FAILURES, damaged, decode_plain, encode_plain
from headrace.types.kinds import TypeInformation

_PLAIN = b"\x00"
_PICKLE = b"\x01"
_TYPED = b"\x02"
_TYPED_BODY = msgspec.msgpack.Decoder(tuple[list[bytes], bytes])


@dataclass(frozen=True, slots=True)
class RecordPickles:
    """What pickle may do for records of streams that the program leaves untyped."""

    written: bool = True
    """Keep records in a checkpoint that have no other form."""
    restored: bool = True
    """Load them again: this runs code from the checkpoint."""

    def reads(self, record_type: TypeInformation | None) -> bool:
        """Whether pickled records are loaded on a stream of this type."""
        return self.restored if record_type is None else record_type.codec_name == "pickle"

    def writes(self, record_type: TypeInformation | None) -> bool:
        return self.written if record_type is None else record_type.codec_name == "pickle"


UNTYPED_PICKLES: Final = RecordPickles()
"""The default: records of untyped streams are written and read."""


def pickle_refusal(*types: TypeInformation | None) -> str:
    """Why pickled records of streams with these types are not loaded, and the way out."""
    # --allow-pickle is about untyped streams: a typed one never needs pickle.
    option = "restore it with --allow-pickle; or " if None in types else ""
    return (
        f"Unpickling runs code from the checkpoint. If you trust its origin, {option}type the stream as "
        "Types.PICKLED_BYTE_ARRAY()."
    )


class BatchCodec:
    """Encodes records of the streams that lead into one operator. Stateless after it is made."""

    __slots__ = ("_codec", "_reads", "_types", "_writes")

    def __init__(
        self,
        types: Sequence[TypeInformation | None] = (None,),
        pickles: RecordPickles = UNTYPED_PICKLES,
    ) -> None:
        """`types`: of each input; None for one that the program leaves untyped."""
        self._types = tuple(dict.fromkeys(types))
        self._codec = codec_for(self._types[0]) if len(self._types) == 1 and self._types[0] is not None else None
        self._reads = any(map(pickles.reads, self._types))
        self._writes = any(map(pickles.writes, self._types))

    def encode(self, values: Sequence[Any], more: Sequence[Any] = ()) -> bytes:
        """`values` are records, `more` are plain values. `TypeMismatchError` if only pickle could hold a record."""
        if self._codec is not None:
            try:
                typed = [self._codec.encode(value) for value in values]
                return _TYPED + msgspec.msgpack.encode((typed, encode_plain(list(more))))
            except TypeMismatchError:
                pass  # operators of one task hand records on without a check of their type
        try:
            return _PLAIN + encode_plain([*values, *more])
        except TypeMismatchError as error:
            if not self._writes:
                raise TypeMismatchError(
                    f"{error} Only pickle could keep this record in a checkpoint, which the program does not allow "
                    f"here ({self._shown()})."
                ) from error
        return _PICKLE + pickle.dumps([*values, *more], protocol=pickle.HIGHEST_PROTOCOL)

    def decode(self, data: bytes, where: str) -> list[Any]:
        """The values, then the further ones. `RestoreError` if the bytes ask for pickle and the program does not."""
        match data[:1]:
            case b"\x01" if not self._reads:
                raise RestoreError(
                    f"The checkpoint holds pickled records in {where}, which the program does not allow "
                    f"({self._shown()}): they are not loaded. {pickle_refusal(*self._types)}"
                )
            case b"\x01":
                return list(pickle.loads(data[1:]))
            case b"\x02" if self._codec is not None:
                typed, more = _decoded(data, lambda: _TYPED_BODY.decode(data[1:]))
                return [*map(self._codec.decode, typed), *decode_plain(more)]
            case b"\x00":
                return list(_decoded(data, lambda: list(decode_plain(data[1:]))))
        raise damaged(data, f"records in {where} ({self._shown()})", ValueError("no encoding of the program"))

    def _shown(self) -> str:
        return f"type {' and '.join('none' if t is None else str(t) for t in self._types)}"


def _decoded(data: bytes, act: Any) -> Any:
    try:
        return act()
    except DECODE_FAILURES as error:
        raise damaged(data, "a batch of records", error) from error
