"""The environment that the broken manifests name."""


class Guess:
    """Guess a number."""

    max_turns = 3

    def __init__(self, target=7):
        self.target = target

    def reset(self, seed=None):
        return "Guess a number.", {}

    def step(self, action):
        return "", float(action == str(self.target)), True, False, {}


def score(completion, **row):
    return 0.0
