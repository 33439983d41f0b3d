"""Values that an environment should not return, by what is odd about them."""

import math
from collections.abc import Mapping

import numpy as np
import torch


class NoText:
    def __repr__(self):
        raise RuntimeError("no text")


class NoTruth:
    def __bool__(self):
        raise RuntimeError("neither true nor false")


class BrokenMapping(Mapping):
    def __getitem__(self, key):
        raise RuntimeError("no item")

    def __iter__(self):
        raise RuntimeError("no keys")

    def __len__(self):
        return 1


def nested(depth):
    top = inner = {}
    for _ in range(depth):
        inner["a"] = inner = {}
    return top


def cycle():
    ring = {}
    ring["a"] = ring
    return ring


ODD = {
    "a huge integer": 10**400,
    "a nested huge integer": {"a": 10**6000},
    "nan": math.nan,
    "minus infinity": -math.inf,
    "a complex number": 1j,
    "an array": np.array([True, False]),
    "a tensor without a value": torch.zeros((), device="meta"),
    "no text": NoText(),
    "no text inside": [NoText()],
    "no text as a key": {NoText(): 1},
    "neither true nor false": NoTruth(),
    "a broken mapping": BrokenMapping(),
    "a cycle": cycle(),
    "a deep nest": nested(100_000),
    "bytes": b"\xff",
    "half a surrogate pair": "\udc80",
    "None": None,
    "a class": NoText,
    "an object": object(),
}
