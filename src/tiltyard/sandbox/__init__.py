"""Sandboxes: real operating systems for agents, on this machine without KVM or anywhere behind E2B's API."""
