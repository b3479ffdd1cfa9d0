"""Word count as PyFlink's users write it: of the program only the first word of its imports is new.

python examples/word_count_pyflink.py
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.pyflink.common import Types
from headrace.pyflink.datastream import RuntimeExecutionMode, StreamExecutionEnvironment

LINES = [
    "water is led to the wheel by the race",
    "the head race brings it to the wheel",
    "the tail race takes it away",
]


def split(line: str) -> Iterator[str]:
    yield from line.split()


def main(env: StreamExecutionEnvironment | None = None) -> list[tuple[str, int]]:
    """Run the job and give how often each word came, most frequent first."""
    env = env or StreamExecutionEnvironment.get_execution_environment()
    # The input has an end, and only final counts are wanted; in streaming mode each word would give a new count.
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    env.set_parallelism(2)
    counts = (
        env.from_collection(LINES, type_info=Types.STRING())
        .flat_map(split, output_type=Types.STRING())
        .map(lambda word: (word, 1), output_type=Types.TUPLE([Types.STRING(), Types.INT()]))
        .key_by(lambda pair: pair[0], key_type=Types.STRING())
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
    )
    with counts.execute_and_collect("word count") as results:
        return sorted(results, key=lambda pair: (-pair[1], pair[0]))


if __name__ == "__main__":
    for word, count in main():
        print(f"{word}: {count}")
