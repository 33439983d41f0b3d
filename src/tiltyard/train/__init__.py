"""Training: credit, batches, losses, checkpoints."""
