"""Many environments over worker processes of this machine, or over a Ray cluster."""
