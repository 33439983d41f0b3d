"""A tiny random causal language model, for tests that need a real forward pass and nothing more."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def tiny_model(
    vocab_size: int = 320,
    *,
    seed: int = 0,
    hidden: int = 32,
    layers: int = 2,
    heads: int = 2,
    context_length: int = 1024,
    tied: bool = True,
) -> LlamaForCausalLM:
    """Build a random Llama in fp32 and eval mode; equal arguments give equal weights.

    The weights are drawn wider than usual, so that the next-token distribution is far from uniform and
    depends on the context. The global random state is left as it was.
    """
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        max_position_embeddings=context_length,
        tie_word_embeddings=tied,
        initializer_range=0.25,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model.eval()
