"""Policies: what answers a prompt."""
