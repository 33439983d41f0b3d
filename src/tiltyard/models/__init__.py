"""Models: weights and tokenizers, found, loaded and made trainable."""
