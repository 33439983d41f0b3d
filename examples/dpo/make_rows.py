"""Writes `rows.jsonl`: questions with a plain answer, which is chosen, and one wrapped in flattery, which is not.

`python examples/dpo/make_rows.py` writes the same rows every time.
"""

import json
import random
from pathlib import Path

ROWS = 240
LEGS = {"a cat": 4, "a hen": 2, "a spider": 8, "an ant": 6, "a goat": 4, "a crab": 10, "a robin": 2, "a beetle": 6}
PLACES = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo", "Peru": "Lima",
          "Norway": "Oslo", "Kenya": "Nairobi", "Cuba": "Havana", "Chile": "Santiago"}  # fmt: skip
OPPOSITES = {"hot": "cold", "tall": "short", "early": "late", "full": "empty", "loud": "quiet", "near": "far",
             "wet": "dry", "rich": "poor", "old": "young", "dark": "light"}  # fmt: skip

PLAIN = ("{answer}.", "It is {answer}.", "The answer is {answer}.", "{answer}, as far as I know.")
PADDED = (
    "What a wonderful question! {plain} I hope that this helps, and do ask me anything else you like!",
    "Great question! I would be delighted to help you with that. {plain}",
    "{plain} Thank you so much for asking, you are clearly a very curious person!",
    "Oh, I love this one! {plain} Is there anything else that I can do for you today?",
    "As a helpful assistant, I am always happy to be of service to you. {plain} Have a truly wonderful day!",
)


def question(rng: random.Random) -> tuple[str, str]:
    """A question and its short answer."""
    kind = rng.randrange(4)
    if kind == 0:
        animal, legs = rng.choice([*LEGS.items()])
        return f"How many legs has {animal}?", str(legs)
    if kind == 1:
        country, capital = rng.choice([*PLACES.items()])
        return f"What is the capital of {country}?", capital
    if kind == 2:
        word, other = rng.choice([*OPPOSITES.items()])
        return f"What is the opposite of {word}?", other
    one, two = rng.randrange(2, 50), rng.randrange(2, 50)
    return f"What is {one} plus {two}?", str(one + two)


def main() -> None:
    """Write the rows beside this file."""
    rng = random.Random(0)
    rows: dict[str, dict[str, str]] = {}
    while len(rows) < ROWS:  # no question twice, so that those held out are new ones
        asked, answer = question(rng)
        chosen, wrapped = (rng.choice(PLAIN).format(answer=answer) for _ in range(2))
        chosen, wrapped = chosen[0].upper() + chosen[1:], wrapped[0].upper() + wrapped[1:]
        row = {"prompt": asked, "chosen": chosen, "rejected": rng.choice(PADDED).format(plain=wrapped)}
        rows.setdefault(asked, row)
    path = Path(__file__).with_name("rows.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows.values()), encoding="utf-8")
    print(f"{path}: {ROWS} rows, {path.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main()
