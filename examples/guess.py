"""The README's environment: guess a number, as a text environment."""

import random


class Guess:
    """Guess a number from 1 to 9 in three turns."""

    max_turns = 3
    system_prompt = "Guess the number. Answer with a number and nothing else."

    def reset(self, seed=None):
        self.number = random.Random(seed).randint(1, 9)
        self.turn = 0
        return "I think of a number from 1 to 9.", {}

    def step(self, action):
        self.turn += 1
        text = action.strip()
        if not (text.isdecimal() and 1 <= int(text) <= 9):
            return "That was no number from 1 to 9.", -1.0, True, False, {"success": False, "valid": False}
        if int(text) == self.number:
            return "Right!", 1.0, True, False, {"success": True, "valid": True}
        hint = "Too high." if int(text) > self.number else "Too low."
        return hint, 0.0, self.turn == 3, False, {"success": False, "valid": True}
