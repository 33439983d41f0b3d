"""Writes rows.jsonl: two numbers, and a target that one of +, - and * makes of them."""

import json
import random
from pathlib import Path

OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


def rows(count: int, seed: int = 0) -> list[dict]:
    """So many different tasks, a third of them with each operation; one that two operations solve is left out."""
    rng = random.Random(seed)
    found: dict[tuple[int, int, int], dict] = {}
    while len(found) < count:
        a, b = rng.randint(2, 29), rng.randint(2, 29)
        target = OPERATIONS["+-*"[len(found) % 3]](a, b)
        ways = sum(make(a, b) == target for make in OPERATIONS.values())
        if ways == 1 and target > 0:
            found.setdefault((a, b, target), {"nums": [a, b], "target": target})
    return list(found.values())


if __name__ == "__main__":
    path = Path(__file__).with_name("rows.jsonl")
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows(600)))
