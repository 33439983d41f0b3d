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

    Each part has at least one row, unless the share is 1. Rows with the same content that stand twice in the data are
    two rows.

    Args:
        rows: At least two, where any is held out.
        train_test_split: The share that is trained on, above 0; 1 trains on all rows as they stand and holds out none.
        seed: What the division derives from, and nothing else: keep it, and another run holds out the same rows.

    Raises:
        ConfigurationError: There are fewer than two rows to divide, or the share is not above 0 and at most 1.
    """
    if not 0 < train_test_split <= 1:
        raise ConfigurationError(
            f"train_test_split must be > 0 and <= 1, got {train_test_split!r}: it is the share that is trained on; "
            "1 holds out none"
        )
    if train_test_split == 1:
        return RowSplit(rows, rows.take(()))
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
