"""Environments of libraries whose own interface is another one; each module has a `make` for an entrypoint."""
