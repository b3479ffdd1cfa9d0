"""Running sums with `map_with_state`: the state of a key is its sum so far.

python examples/running_sums.py
"""

from __future__ import annotations

from headrace import StreamExecutionEnvironment, Types

PAIRS = [("a", 1), ("b", 10), ("a", 2), ("b", 20), ("a", 3)]
PAIR = Types.TUPLE([str, int])


def add(pair: tuple[str, int], total: int | None) -> tuple[tuple[str, int], int]:
    """The result, and the new state."""
    key, number = pair
    total = (total or 0) + number
    return (key, total), total


def main(env: StreamExecutionEnvironment | None = None) -> list[tuple[str, int]]:
    """Run the job and give every running sum, by key and in order."""
    env = env or StreamExecutionEnvironment.get_execution_environment()
    sums = env.from_collection(PAIRS, PAIR).key_by(0).map_with_state(add, state_type=int, output_type=PAIR)
    with sums.execute_and_collect("running-sums") as results:
        # Keys may come in any order; the sums of one key come in the order of its records.
        return sorted(results, key=lambda pair: pair[0])


if __name__ == "__main__":
    for key, total in main():
        print(f"{key}: {total}")
