"""Client settings: what users set, what every kind of client gets, and which values nobody may read.

Settings travel to the tasks with the source or sink, and nowhere else: not into checkpoints, not into `explain`. Their
text form and every error made here show `***` instead of a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headrace.errors import ConfigurationError

_SECRET = re.compile(r"password|secret|token|jaas|\.key\b|key\.pem|keystore\.|credential|oauthbearer\.config", re.I)
_NOT_FOR_ADMIN = re.compile(r"^(group|auto\.offset|enable\.auto|fetch|queued|partition\.assign|isolation|max\.poll)")
HIDDEN = "***"
QUIET = {"log_level": 2}
"""What matters is raised or logged by us; librdkafka would write a line to stderr for every failed connection."""


class KafkaSettings:
    """Properties of librdkafka by name. `bootstrap.servers` is required."""

    def __init__(self, properties: Mapping[str, Any] | None = None) -> None:
        self._properties = dict(properties or {})

    def with_property(self, name: str, value: Any) -> KafkaSettings:
        return KafkaSettings({**self._properties, str(name): value})

    @property
    def bootstrap_servers(self) -> str:
        return str(self._properties.get("bootstrap.servers", ""))

    def get(self, name: str, default: Any = None) -> Any:
        return self._properties.get(name, default)

    def require_servers(self, who: str, setter: str = "set_bootstrap_servers") -> None:
        if not self.bootstrap_servers:
            raise ConfigurationError(f'{who} does not know its brokers. Call {setter}("host:9092").')

    def merged(self, defaults: Mapping[str, Any], forced: Mapping[str, Any]) -> dict[str, Any]:
        """What a client is made with: the user's settings over our defaults, and what must be so over both."""
        return {**QUIET, **defaults, **self._properties, **forced}

    def for_admin(self) -> dict[str, Any]:
        """Connection settings alone: an admin client warns about every other one."""
        own = {name: value for name, value in self._properties.items() if not _NOT_FOR_ADMIN.match(name)}
        dropped = ("transactional.id", "transaction.timeout.ms", "enable.idempotence", "linger.ms", "batch.size")
        return {**QUIET, **{name: value for name, value in own.items() if name not in dropped}}

    def redact(self, text: str) -> str:
        """`text` without any secret that stands in these settings."""
        for name, value in self._properties.items():
            if _SECRET.search(name) and len(str(value)) > 2:
                text = text.replace(str(value), HIDDEN)
        return text

    def refused(self, who: str, error: BaseException) -> ConfigurationError:
        """The library does not take the settings."""
        return ConfigurationError(
            f"{who} was refused by the Kafka client: {self.redact(str(error))}. See set_property."
        )

    def shown(self) -> dict[str, Any]:
        return {name: HIDDEN if _SECRET.search(name) else value for name, value in self._properties.items()}

    def __repr__(self) -> str:
        return f"KafkaSettings({self.shown()!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KafkaSettings) and self._properties == other._properties

    def __hash__(self) -> int:
        return hash(tuple(sorted((k, str(v)) for k, v in self._properties.items())))
