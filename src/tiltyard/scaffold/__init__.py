"""A first environment: the folder that `tiltyard init` writes."""

from tiltyard.scaffold.writing import Scaffold, manifest_in, write_scaffold

__all__ = ["Scaffold", "manifest_in", "write_scaffold"]
