"""What training costs, each figure measured by a module of its own; `__main__` puts them together."""
