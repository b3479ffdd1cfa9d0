"""A logistic regression that learns while it predicts: the parameters of each model are state.

    python examples/online_regression.py

Every click or no-click is predicted first and learned from afterwards, by one step of gradient descent. The parameters
belong to the campaign, which is the key, so each campaign has a model of its own. They are part of every checkpoint:
after a crash learning goes on with the parameters that fit the records read so far, and no record counts twice.
"""

from __future__ import annotations

import math
import random
from typing import Any

from headrace import MapFunction, RuntimeContext, StreamExecutionEnvironment, Types, ValueState, ValueStateDescriptor

VIEW = Types.ROW_NAMED(["campaign", "features", "clicked"], [str, list[float], int])
PREDICTION = Types.TUPLE([str, float, int])
"""Campaign, predicted probability of a click, what happened."""

TRUTH = {"shoes": [2.0, -1.0, 0.5], "books": [-1.5, 2.5, 0.0]}
"""What the models should find out: they never see it."""
VIEWS_PER_CAMPAIGN = 1_000
STEP = 0.3


def views(seed: int = 7) -> list[tuple[str, list[float], int]]:
    """Made-up views, the same in every run."""
    chance = random.Random(seed)
    made = []
    for _ in range(VIEWS_PER_CAMPAIGN):
        for campaign, weights in TRUTH.items():
            features = [chance.uniform(-2, 2), chance.uniform(-2, 2), 1.0]
            made.append((campaign, features, int(chance.random() < probability(weights, features))))
    return made


def probability(weights: list[float], features: list[float]) -> float:
    return 1 / (1 + math.exp(-sum(w * x for w, x in zip(weights, features, strict=True))))


class Learner(MapFunction):
    """Predicts, then learns."""

    weights: ValueState[list[float]]

    def open(self, runtime_context: RuntimeContext) -> None:
        self.weights = runtime_context.get_state(ValueStateDescriptor("weights", list[float]))

    def map(self, view: Any) -> tuple[str, float, int]:
        weights = self.weights.value() or [0.0] * len(view.features)
        predicted = probability(weights, view.features)
        error = view.clicked - predicted
        self.weights.update([w + STEP * error * x for w, x in zip(weights, view.features, strict=True)])
        return view.campaign, predicted, view.clicked


def main(env: StreamExecutionEnvironment | None = None) -> dict[str, tuple[float, float]]:
    """Run the job; for each campaign, how often the first and the last hundred predictions were right."""
    env = env or StreamExecutionEnvironment.get_execution_environment()
    learned = env.from_collection(views(), VIEW).key_by("campaign").map(Learner(), output_type=PREDICTION)
    hits: dict[str, list[bool]] = {}
    with learned.execute_and_collect("online-regression") as results:
        for campaign, predicted, clicked in results:
            hits.setdefault(campaign, []).append((predicted > 0.5) == bool(clicked))
    return {campaign: (sum(right[:100]) / 100, sum(right[-100:]) / 100) for campaign, right in sorted(hits.items())}


if __name__ == "__main__":
    for campaign, (early, late) in main().items():
        print(f"{campaign}: {early:.0%} right at first, {late:.0%} at the end")
