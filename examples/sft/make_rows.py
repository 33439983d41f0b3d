"""Writes `rows.jsonl`: short conversations in which a shop's assistant calls the right tool and reads its result.

`python examples/sft/make_rows.py` writes the same rows every time.
"""

import json
import random
from pathlib import Path
from typing import Any

ROWS = 160
GOODS = ("apples", "bread", "candles", "dates", "eggs", "figs", "honey", "jam", "lemons", "milk", "nuts", "olives")
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "June")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")

STOCK_QUESTIONS = (
    "Do you have any {good} left?",
    "How much of the {good} is left?",
    "I would like to know whether {good} can be had.",
    "Any {good} today?",
)
ORDER_QUESTIONS = (
    "Put {count} {good} aside for {name}, please. {day} will do.",
    "{name} here. I need {count} {good} by {day}.",
    "Can you keep {count} {good} for me until {day}? The name is {name}.",
    "Order {count} {good} for {name}, to be fetched on {day}.",
)


def schema(tool: str, description: str, **properties: str) -> dict[str, Any]:
    """A function schema whose arguments are all required."""
    fields = {key: {"type": kind} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": fields, "required": [*fields]}
    return {"type": "function", "function": {"name": tool, "description": description, "parameters": parameters}}


TOOLS = [
    schema("stock", "How many of a good are there.", good="string"),
    schema("order", "Put goods aside.", good="string", count="integer", name="string", day="string"),
]


def conversation(rng: random.Random) -> list[dict[str, Any]]:
    """A question, the call, its result, and the answer."""
    good = rng.choice(GOODS)
    if rng.random() < 0.5:
        left = rng.choice((0, rng.randrange(1, 60)))
        question, tool, arguments = rng.choice(STOCK_QUESTIONS).format(good=good), "stock", {"good": good}
        result = str(left)
        answer = f"Yes, we have {left} {good}." if left else f"I am sorry, we are out of {good}."
    else:
        count, name, day = rng.randrange(2, 30), rng.choice(NAMES), rng.choice(DAYS)
        question = rng.choice(ORDER_QUESTIONS).format(good=good, count=count, name=name, day=day)
        tool, arguments = "order", {"good": good, "count": count, "name": name, "day": day}
        number = rng.randrange(100, 1000)
        result = f"order {number}"
        answer = f"Done, {name}: {count} {good} on {day}. Your number is {number}."
    call = {"id": "call_0", "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
    return [
        {"role": "system", "content": "You help in a shop."},
        {"role": "user", "content": question},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": tool, "tool_call_id": "call_0", "content": result},
        {"role": "assistant", "content": answer},
    ]


def main() -> None:
    """Write the rows beside this file."""
    rng = random.Random(0)
    path = Path(__file__).with_name("rows.jsonl")
    by_question: dict[str, list[dict[str, Any]]] = {}
    while len(by_question) < ROWS:  # no question twice, so that those held out are new ones
        messages = conversation(rng)
        by_question.setdefault(messages[1]["content"], messages)
    rows = [{"messages": messages, "tools": TOOLS} for messages in by_question.values()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{path}: {ROWS} rows, {path.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main()
