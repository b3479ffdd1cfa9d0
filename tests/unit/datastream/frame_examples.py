"""A DataFrame as far as a program that is built, not run, looks at it."""

from __future__ import annotations

from typing import Any


class FrameStandIn:
    """What `from_dataframe` asks a DataFrame before anything runs."""

    sparkSession = None
    isStreaming = True

    @property
    def schema(self) -> FrameStandIn:
        return self

    def jsonValue(self) -> dict[str, Any]:
        fields = [("id", "long"), ("user", "string")]
        return {
            "type": "struct",
            "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in fields],
        }

    def __reduce__(self) -> Any:
        raise TypeError("a DataFrame stays in the driver")
