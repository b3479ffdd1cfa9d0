"""Sends a prepared transaction again from the log, because the one that held it is lost."""

from __future__ import annotations

from itertools import chain

from headrace.connectors.kafka.client import kafka
from headrace.connectors.kafka.prepared import CommitPoint, records_of
from headrace.connectors.kafka.records import OutRecord
from headrace.connectors.kafka.refusals import is_refusal, refusal
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.connectors.kafka.transactions import SERVE_EVERY, TransactionalProducer, TransactionLost, send


def send_again(
    producer: TransactionalProducer,
    payload: bytes,
    prefix: str,
    subtask: int,
    point: CommitPoint,
    settings: KafkaSettings,
) -> None:
    """Send the records of a prepared item with its marker in one transaction, on an initialised producer.

    `TransactionLost`: it may be tried again. `KafkaRefusedError`: brokers do not take one of the records, and the
    checkpoint that holds it is complete.
    """
    marker: OutRecord = (producer.marker_topic, None, b"", None, None, None)
    try:
        producer.begin()
        for number, record in enumerate(records_of(payload)):
            send(producer.producer, record)
            if number % SERVE_EVERY == 0 and (broken := producer.serve()) is not None:
                raise kafka("KafkaSink").KafkaException(broken)
        producer.mark(prefix, subtask, point)
        producer.commit()
        return
    except TransactionLost as lost:
        failure = lost.failure
    except kafka("KafkaSink").KafkaException as error:
        failure = producer.failure(error)
    if is_refusal(failure):
        # Or readers would wait for the timeout of a transaction that nobody ends.
        producer.discard()
        producer.abort()
        suspects = producer.undelivered.records or chain(records_of(payload), [marker])
        raise refusal(failure, suspects, settings, point.checkpoint_id)
    raise TransactionLost(settings.redact(str(failure)), failure)
