"""The payments of the Kafka demo, and the alerts they must give. Both follow from a number alone."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

ACCOUNTS = 500

Alert = tuple[str, int, int]
"""Account, number of the payment, balance after it."""


@dataclass(frozen=True, slots=True)
class Payment:
    """`number` counts all payments; those of one account stand in one partition, in order."""

    number: int
    account: str
    partition: int
    amount: int

    def encode(self) -> str:
        return json.dumps({"account": self.account, "number": self.number, "amount": self.amount})


def payments(count: int, partitions: int, seed: int) -> Iterator[Payment]:
    """As many for each partition, in turn."""
    chance = random.Random(seed)
    for number in range(count):
        partition = number % partitions
        account = chance.randrange(ACCOUNTS // partitions) * partitions + partition
        yield Payment(number, f"account-{account:04d}", partition, chance.randint(-100, 100))


def expected_alerts(all_payments: Iterable[Payment]) -> list[Alert]:
    """What a run without any failure gives: no job, no state, no Kafka."""
    balances: defaultdict[str, int] = defaultdict(int)
    alerts = []
    for payment in all_payments:
        before = balances[payment.account]
        after = balances[payment.account] = before + payment.amount
        if after < 0 <= before:
            alerts.append((payment.account, payment.number, after))
    return alerts


@dataclass(frozen=True, slots=True)
class KafkaVerdict:
    """What a reader of committed records finds in the topic, against what must be there."""

    expected: int
    received: int
    lost: int
    duplicated: int
    out_of_order: int
    """Accounts whose alerts came in another order than their payments."""

    @property
    def exactly_once(self) -> bool:
        return self.expected == self.received and not (self.lost or self.duplicated or self.out_of_order)


def judge(expected: Iterable[Alert], received: list[Alert]) -> KafkaVerdict:
    """Compare one by one, and the order within each account."""
    wanted, found = Counter(expected), Counter(received)
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for account, number, _ in received:
        numbers[account].append(number)
    return KafkaVerdict(
        expected=wanted.total(),
        received=found.total(),
        lost=(wanted - found).total(),
        duplicated=(found - wanted).total(),
        out_of_order=sum(order != sorted(order) for order in numbers.values()),
    )
