"""The rows that the comparisons of supervised training learn from, and what one side of a comparison took."""

import random
import statistics
from dataclasses import dataclass, field
from typing import Any

SYSTEM = "You are a careful clerk. Answer with the items of the order in alphabetical order, one to a line, and stop."
GOODS = (
    *("apples", "bread", "candles", "dates", "eggs", "figs", "grapes", "honey", "ink", "jam", "kale", "lemons"),
    *("milk", "nuts", "olives", "plums", "quinces", "rice", "salt", "tea", "vinegar", "walnuts", "yeast"),
)
PLACES = ("the corner shop by the mill", "the market hall", "the bakery in the old town", "the harbour store")


@dataclass
class Side:
    """What the optimiser steps of one side took, the loss of each, and the tokens of its rows (ours counts them)."""

    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    before: float = 0.0

    @property
    def per_step(self) -> float:
        """CPU-seconds of a step, the first one, which warms up, left out; with a share of what came before them."""
        return statistics.fmean(self.seconds[1:]) + self.before / len(self.seconds)


def order(index: int) -> tuple[list[dict[str, str]], str, str]:
    """The prompt's messages, the right answer and a wrong one; prompts have about 100 tokens, answers 30 to 130."""
    rng = random.Random(index)
    goods = {good: rng.randrange(2, 40) for good in rng.sample(GOODS, rng.randrange(4, 17))}
    wanted = ", ".join(f"{count} {good}" for good, count in goods.items())
    question = f"Order {rng.randrange(1000, 9999)} from {rng.choice(PLACES)}: {wanted}. Please write the list."
    right, wrong = ("\n".join(f"{good}: {goods[good]} pieces" for good in names) for names in (sorted(goods), [*goods]))
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}], right, wrong


def said(text: str) -> list[dict[str, str]]:
    """An answer as messages."""
    return [{"role": "assistant", "content": text}]


def sft_rows(count: int) -> list[dict[str, Any]]:
    """Rows of a conversational prompt and its completion."""
    return [{"prompt": prompt, "completion": said(right)} for prompt, right, _ in map(order, range(count))]


def preference_rows(count: int) -> list[dict[str, Any]]:
    """Rows of a conversational prompt, the chosen and the rejected answer."""
    return [
        {"prompt": prompt, "chosen": said(right), "rejected": said(wrong)}
        for prompt, right, wrong in map(order, range(count))
    ]
