"""Rollouts: the loop, its drivers, and what happened."""
