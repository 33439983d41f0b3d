"""Tiltyard: language models train in environments. See `docs/` and the README."""

__version__ = "0.1.0"
