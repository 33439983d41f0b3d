"""Sandboxes: real operating systems for agents, on this machine without KVM or anywhere behind E2B's API."""

from tiltyard.sandbox.box_model import BoxLimits, Template

__all__ = ["BoxLimits", "Template"]
