"""What a Flink program says about slots and their memory, under the names of `pyflink.datastream.slot_sharing_group`.

Spark gives a task one slot with its share of an executor's memory, so none of it has an effect: it is taken, may be
asked for again, and says so once where it meets the environment or a stream.
"""

from __future__ import annotations

from headrace.options import SIZE

__all__ = [
    "MemorySize",
    "SlotSharingGroup",
]

_MB = 1024 * 1024


class MemorySize:
    """A number of bytes."""

    def __init__(self, bytes_size: int) -> None:
        self._bytes = int(bytes_size)

    @staticmethod
    def of_mebi_bytes(mebi_bytes: int) -> MemorySize:
        return MemorySize(mebi_bytes * _MB)

    @staticmethod
    def parse(text: str) -> MemorySize:
        """`"64 mb"` and the like."""
        return MemorySize(SIZE.parse(text))

    def get_bytes(self) -> int:
        return self._bytes

    def get_kibi_bytes(self) -> int:
        return self._bytes // 1024

    def get_mebi_bytes(self) -> int:
        return self._bytes // _MB

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemorySize) and self._bytes == other._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __lt__(self, other: MemorySize) -> bool:
        return self._bytes < other._bytes

    def __str__(self) -> str:
        return f"{self._bytes} bytes"


class SlotSharingGroup:
    """A name with resources, made by `SlotSharingGroup.builder(name)`."""

    class Builder:
        """Collects the resources of a group."""

        def __init__(self, name: str) -> None:
            self._name = name
            self._cpu: float | None = None
            self._memory: dict[str, MemorySize] = {}
            self._external: dict[str, float] = {}

        def set_cpu_cores(self, cpu_cores: float) -> SlotSharingGroup.Builder:
            self._cpu = float(cpu_cores)
            return self

        def set_task_heap_memory(self, memory: MemorySize) -> SlotSharingGroup.Builder:
            return self._set("heap", memory)

        def set_task_heap_memory_mb(self, memory_mb: int) -> SlotSharingGroup.Builder:
            return self._set("heap", MemorySize.of_mebi_bytes(memory_mb))

        def set_task_off_heap_memory(self, memory: MemorySize) -> SlotSharingGroup.Builder:
            return self._set("off-heap", memory)

        def set_task_off_heap_memory_mb(self, memory_mb: int) -> SlotSharingGroup.Builder:
            return self._set("off-heap", MemorySize.of_mebi_bytes(memory_mb))

        def set_managed_memory(self, memory: MemorySize) -> SlotSharingGroup.Builder:
            return self._set("managed", memory)

        def set_managed_memory_mb(self, memory_mb: int) -> SlotSharingGroup.Builder:
            return self._set("managed", MemorySize.of_mebi_bytes(memory_mb))

        def set_external_resource(self, name: str, value: float) -> SlotSharingGroup.Builder:
            self._external[name] = float(value)
            return self

        def _set(self, kind: str, memory: MemorySize) -> SlotSharingGroup.Builder:
            self._memory[kind] = memory
            return self

        def build(self) -> SlotSharingGroup:
            return SlotSharingGroup(self._name, self._cpu, dict(self._memory), dict(self._external))

    def __init__(
        self, name: str, cpu_cores: float | None, memory: dict[str, MemorySize], external: dict[str, float]
    ) -> None:
        self._name = name
        self._cpu = cpu_cores
        self._memory = memory
        self._external = external

    @staticmethod
    def builder(name: str) -> SlotSharingGroup.Builder:
        return SlotSharingGroup.Builder(name)

    def get_name(self) -> str:
        return self._name

    def get_cpu_cores(self) -> float | None:
        return self._cpu

    def get_task_heap_memory(self) -> MemorySize | None:
        return self._memory.get("heap")

    def get_task_off_heap_memory(self) -> MemorySize | None:
        return self._memory.get("off-heap")

    def get_managed_memory(self) -> MemorySize | None:
        return self._memory.get("managed")

    def get_external_resources(self) -> dict[str, float]:
        return dict(self._external)
