"""The demo: a small model learns a game of several turns on a CPU."""
