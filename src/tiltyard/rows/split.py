"""Rows in two parts: one to train on, one that is held out."""

import random
from dataclasses import dataclass

from tiltyard.errors import ConfigurationError
from tiltyard.rows.table import Rows


@dataclass(frozen=True, slots=True)
class RowSplit:
    """Two parts of the same rows, which have no row in common."""

    train: Rows
    held_out: Rows


def split_rows(rows: Rows, train_test_split: float, *, seed: int = 0) -> RowSplit:
    """Divide rows at random, the same way every time.

    Each part has at least one row. Rows with the same content that stand twice in the data are two rows.

    Args:
        rows: At least two.
        train_test_split: The share that is trained on, between 0 and 1.
        seed: What the division derives from, and nothing else: keep it, and another run holds out the same rows.

    Raises:
        ConfigurationError: There are fewer than two rows, or the share is not between 0 and 1.
    """
    if not 0 < train_test_split < 1:
        raise ConfigurationError(
            f"train_test_split must be between 0 and 1, got {train_test_split!r}: it is the share that is trained on"
        )
    if len(rows) < 2:
        raise ConfigurationError(
            f"{rows.name} has {len(rows)} row{'' if len(rows) == 1 else 's'}; at least 2 are needed, one to train on "
            "and one to hold out"
        )
    order = list(range(len(rows)))
    # A text seeds the generator the same on every machine; the order is no secret.
    random.Random(f"split:{seed}").shuffle(order)  # noqa: S311
    count = min(max(round(len(rows) * train_test_split), 1), len(rows) - 1)
    return RowSplit(rows.take(order[:count]), rows.take(order[count:]))
