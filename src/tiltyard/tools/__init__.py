"""Tools: what a model can call, and how calls are read, checked and run."""
