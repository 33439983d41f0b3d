"""Environments that the tests of this folder play."""

import threading


class GuessEnv:
    """Guess-the-number: the model proposes a number; the env scores it."""

    def __init__(self, target: int = 7, max_turns: int = 3) -> None:
        self.target, self.max_turns, self._turn = target, max_turns, 0

    def reset(self, seed: int | None = None) -> tuple[str, dict]:
        self._turn = 0
        return "Guess a number between 1 and 10.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        self._turn += 1
        guess = int("".join(c for c in action if c.isdigit()) or 0)
        correct = guess == self.target
        done = correct or self._turn >= self.max_turns
        feedback = "Correct!" if correct else ("Too high." if guess > self.target else "Too low.")
        return feedback, float(correct), done, False, {}


class Recorder:
    """Plays a script of steps, and counts what is asked of it.

    Each line is what `step` returns, an exception that it raises, or a function that is called.
    """

    def __init__(self, *script, opening="Begin.", name="env"):
        self.script, self.opening, self.name = list(script), opening, name
        self.actions, self.resets, self.closes, self.turn = [], 0, 0, 0

    def reset(self, seed=None):
        self.resets += 1
        self.turn = 0
        if isinstance(self.opening, Exception):
            raise self.opening
        return (self.opening() if callable(self.opening) else self.opening), {}

    def step(self, action):
        self.actions.append(action)
        line = self.script[min(self.turn, len(self.script) - 1)]
        self.turn += 1
        if isinstance(line, Exception):
            raise line
        return line() if callable(line) else line

    def close(self):
        self.closes += 1


def going(text="Go on.", reward=0.0):
    return (text, reward, False, False, {})


def over(text="Over.", reward=1.0):
    return (text, reward, True, False, {})


class WordEnv:
    """Case CO-01: the episode's word is written to the instance, and read back after a pause."""

    def __init__(self):
        self.word = None

    def reset(self, seed=None):
        self.word = f"w{seed}"
        return f"The word is {self.word}.", {}

    def step(self, action):
        threading.Event().wait(0.001)
        return f"It was {self.word}.", 1.0, True, False, {}
