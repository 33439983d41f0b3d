"""Environments: the two protocols, and the turn that both become."""
