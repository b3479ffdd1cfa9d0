"""The job whose unaligned checkpoints are golden: records in flight before both of its keyed operators."""

from __future__ import annotations

from collections import Counter

from headrace import DataStream, StreamExecutionEnvironment, WatermarkStrategy
from headrace.checkpoint.metadata.codec import decode_metadata, encode_metadata
from headrace.testing import JobHarness, JobSnapshot, ManualSource

WORDS = [f"word-{n * n % 7}" for n in range(40)]
EXPECTED = Counter((word, n + 1) for word, times in Counter(WORDS).items() for n in range(times))
TURNS = (1, 1, 2, 1, 3, 1, 1, 4)


def program(source: ManualSource, width: int) -> DataStream:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(width)
    env.enable_checkpointing(1_000)
    env.get_checkpoint_config().enable_unaligned_checkpoints()
    words = env.from_source(source, WatermarkStrategy.no_watermarks(), "words").uid("words").set_parallelism(1)
    counts = words.key_by(lambda word: word).map_with_state(
        lambda word, n: ((word, (n or 0) + 1), (n or 0) + 1), state_type=int
    )
    return counts.uid("counts").key_by(lambda count: count[0]).map(lambda count: count).uid("totals")


def taken() -> bytes:
    """The `_metadata` of a checkpoint, with all state inside it."""
    source = ManualSource(str)
    with JobHarness(program(source, 2)) as job:
        for number, word in enumerate(WORDS):
            source.emit(word)
            job.run(turns=TURNS[number % len(TURNS)])
        return encode_metadata(job.checkpoint(in_flight=True, complete=False).metadata)


def results_after(metadata: bytes, width: int) -> Counter[tuple[str, int]]:
    """What a job gives that begins with the checkpoint."""
    source = ManualSource(str)
    source.emit(*WORDS)
    source.end()
    with JobHarness(program(source, width), restored=JobSnapshot(decode_metadata(metadata))) as job:
        return Counter(job.run_to_end())
