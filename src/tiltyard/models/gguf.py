"""Reads a Llama-family GGUF file into a plain transformers model and tokenizer, weights dequantised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tiltyard._optional import require
from tiltyard.errors import ConfigurationError

_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3
"""GGUF's token type of special tokens."""

_DIGITS_ONE_BY_ONE = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})
"""GGUF pre-tokenizers that are byte-level BPE with every digit on its own."""

_PLAIN_BYTE_LEVEL = frozenset({"gpt-2", "mpt", "olmo", "jais", "phi-2"})
"""GGUF pre-tokenizers that are byte-level BPE and nothing else."""


class GGUFFile:
    """One opened GGUF file of a Llama-family model with byte-level BPE."""

    def __init__(self, path: Path) -> None:
        """Open the file; nothing is dequantised yet.

        Raises:
            ConfigurationError: It is not a GGUF file, or its model is of another family.
        """
        self.path = path
        reader = require("gguf", "train").GGUFReader
        try:
            self._reader = reader(str(path))
        except (ValueError, IndexError) as error:
            raise ConfigurationError(f"{str(path)!r} cannot be read as a GGUF file: {error}") from error
        family = self.field("general.architecture")
        if family != "llama":
            raise ConfigurationError(
                f"{path.name} is a GGUF of architecture {family!r}; only 'llama' is read here: give the original "
                "transformers folder instead"
            )

    def field(self, name: str, default: Any = None) -> Any:
        """The value of a metadata field, or `default` where the file does not have it."""
        found = self._reader.fields.get(name)
        return default if found is None else found.contents()

    def config(self) -> LlamaConfig:
        """The transformers configuration that the metadata describe."""
        heads = self.field("llama.attention.head_count")
        hidden = self.field("llama.embedding_length")
        tokens = self.field("tokenizer.ggml.tokens", [])
        tensors = {tensor.name for tensor in self._reader.tensors}
        return LlamaConfig(
            vocab_size=self.field("llama.vocab_size", len(tokens)),
            hidden_size=hidden,
            intermediate_size=self.field("llama.feed_forward_length"),
            num_hidden_layers=self.field("llama.block_count"),
            num_attention_heads=heads,
            num_key_value_heads=self.field("llama.attention.head_count_kv", heads),
            head_dim=self.field("llama.rope.dimension_count", hidden // heads),
            max_position_embeddings=self.field("llama.context_length"),
            rms_norm_eps=self.field("llama.attention.layer_norm_rms_epsilon"),
            rope_parameters={"rope_type": "default", "rope_theta": self.field("llama.rope.freq_base", 10000.0)},
            bos_token_id=self.field("tokenizer.ggml.bos_token_id"),
            eos_token_id=self.field("tokenizer.ggml.eos_token_id"),
            pad_token_id=self.field("tokenizer.ggml.padding_token_id"),
            tie_word_embeddings="output.weight" not in tensors,
        )

    def model(self) -> LlamaForCausalLM:
        """Dequantise every tensor into an fp32 model in eval mode.

        Raises:
            ConfigurationError: The file has a tensor that a Llama does not, or lacks one.
        """
        config = self.config()
        with torch.device("meta"):
            model = LlamaForCausalLM(config)
        state = {}
        for tensor in self._reader.tensors:
            name = _transformers_name(tensor.name)
            if name is not None:
                state[name] = torch.from_numpy(self._weights(tensor, config))
        model.load_state_dict(state, strict=False, assign=True)
        # Tying and the rotary buffers are not part of a state dict.
        model.tie_weights()
        model.model.rotary_emb = type(model.model.rotary_emb)(config=config)
        missing = [name for name, value in model.named_parameters() if value.is_meta]
        if missing:
            raise ConfigurationError(f"{self.path.name} lacks the tensors of {missing}")
        return model.eval()

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The file's byte-level BPE with its special tokens and chat template.

        Raises:
            ConfigurationError: The tokenizer is of a kind that is not read here.
        """
        kind, pre = self.field("tokenizer.ggml.model"), self.field("tokenizer.ggml.pre", "gpt-2")
        if kind != "gpt2" or pre not in _DIGITS_ONE_BY_ONE | _PLAIN_BYTE_LEVEL:
            raise ConfigurationError(
                f"{self.path.name} has a tokenizer of kind {kind!r} with pre-tokenizer {pre!r}, which is not read "
                f"here (known: 'gpt2' with {sorted(_DIGITS_ONE_BY_ONE | _PLAIN_BYTE_LEVEL)}); give the original "
                "transformers folder instead"
            )
        tokens = self.field("tokenizer.ggml.tokens")
        special = [
            t for t, kind in zip(tokens, self.field("tokenizer.ggml.token_type"), strict=True) if kind == _CONTROL_TOKEN
        ]
        roles = {}
        for role, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
            index = self.field(f"tokenizer.ggml.{name}_token_id")
            if index is not None:
                roles[f"{role}_token"] = tokens[index]
        return PreTrainedTokenizerFast(
            tokenizer_object=_byte_level_bpe(tokens, self.field("tokenizer.ggml.merges"), pre, special),
            chat_template=self.field("tokenizer.chat_template"),
            extra_special_tokens=[token for token in special if token not in roles.values()],
            model_max_length=self.field("llama.context_length"),
            clean_up_tokenization_spaces=False,
            **roles,
        )

    def _weights(self, tensor: Any, config: LlamaConfig) -> np.ndarray:
        quants = require("gguf", "train").quants
        weights = np.array(quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if ".attn_q." in tensor.name:
            return _unpermute(weights, config.num_attention_heads)
        if ".attn_k." in tensor.name:
            return _unpermute(weights, config.num_key_value_heads or config.num_attention_heads)
        return weights


def _transformers_name(name: str) -> str | None:
    """The transformers name of a GGUF tensor; None for those that transformers computes itself."""
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name]
    if name == "rope_freqs.weight":
        return None
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_NAMES and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.weight"
    raise ConfigurationError(f"GGUF tensor {name!r} does not belong to a plain Llama")


def _unpermute(weights: np.ndarray, heads: int) -> np.ndarray:
    """Undo GGUF's interleaving of the two rotary halves of each head."""
    rows, columns = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _byte_level_bpe(tokens: list[str], merges: list[str], pre: str, special: list[str]) -> Any:
    import tokenizers  # noqa: PLC0415 - only a GGUF's tokenizer needs it

    bpe = tokenizers.models.BPE(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ", 1)) for merge in merges],
    )
    tokenizer = tokenizers.Tokenizer(bpe)
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre in _DIGITS_ONE_BY_ONE:
        digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, byte_level])
    else:
        tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer
