"""Data rows: from a file, a folder, a hub or a list to one lazy sequence, its columns named as asked, split in two."""

from tiltyard.rows.loading import load_rows
from tiltyard.rows.split import RowSplit, split_rows
from tiltyard.rows.table import Rows

__all__ = ["RowSplit", "Rows", "load_rows", "split_rows"]
