"""What an equation is worth: a quarter for its form, a quarter for its numbers, half for its value."""

import re

from tiltyard import Sequential

EQUATION = re.compile(r"\d+ ?[-+*] ?\d+( ?= ?\d+)?")


def form(completion):
    return EQUATION.fullmatch(completion.strip()) is not None


def numbers(completion, nums):
    first, _, second = left_side(completion)
    return sorted([int(first), int(second)]) == sorted(nums)


def value(completion, target):
    first, operation, second = left_side(completion)
    a, b = int(first), int(second)
    return {"+": a + b, "-": a - b, "*": a * b}[operation] == target


def left_side(completion):
    return re.findall(r"\d+|[-+*]", completion.partition("=")[0])


# Each part is asked only when the one before it has passed, so that `numbers` never sees what is no equation.
RUBRIC = Sequential(
    {"form": form, "numbers": numbers, "value": value}, weights={"form": 0.25, "numbers": 0.25, "value": 0.5}
)
