"""A program beside the host process that starts every sandbox and clears it away; standard library only."""
