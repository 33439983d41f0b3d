"""Three ways to get next-token logits from a causal language model: fastest, and safest, last."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from tiltyard.errors import ConfigurationError
from tiltyard.policies.cache import Row, Slab, gather


class Decoder(Protocol):
    """A batch of sequences that grow by one token a step."""

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Feed one token to each row in use; returns the logits [rows, V] of what follows."""
        ...

    def drop(self, row: int, last: int) -> None:
        """Take `row` out of use: the last row in use moves to its place."""
        ...


class CausalModel:
    """Calls a transformers causal language model, whatever its version names its arguments."""

    def __init__(self, model: Any) -> None:
        """Look at the model's signature; a peft wrapper is looked through (its layers stay in place).

        Raises:
            ConfigurationError: It is an encoder-decoder, or no model of transformers at all.
        """
        if not (callable(getattr(model, "forward", None)) and hasattr(model, "config")):
            raise ConfigurationError(
                f"the policy needs a causal language model of transformers, got a {type(model).__name__}; "
                "load_model(...).model is one"
            )
        self.model = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.config = self.model.config.get_text_config(decoder=True)
        if self.model.config.is_encoder_decoder:
            raise ConfigurationError(
                f"{type(self.model).__name__} is an encoder-decoder; the policy needs a decoder-only language model"
            )
        names = set(inspect.signature(self.model.forward).parameters)
        self.cache_name = next((name for name in ("cache", "past_key_values") if name in names), None)
        self.takes_positions = "position_ids" in names
        self.takes_logits_to_keep = "logits_to_keep" in names
        self.layers = int(getattr(self.config, "num_hidden_layers", 0))

    @property
    def device(self) -> torch.device:
        """Where its input goes."""
        return self.model.get_input_embeddings().weight.device

    @property
    def vocabulary(self) -> int:
        """How many token ids it can embed."""
        return self.model.get_input_embeddings().weight.shape[0]

    @property
    def context_length(self) -> int | None:
        """The longest sequence that its configuration allows; None when it does not say."""
        length = getattr(self.config, "max_position_embeddings", None)
        return int(length) if length else None

    @property
    def keeps_every_token(self) -> bool:
        """Whether every layer's own cache is the plain one, a key and a value for every token, and may have gaps."""
        if self.cache_name is None or not self.layers or counts_places(self.config):
            return False
        layers = DynamicCache(config=self.config).layers
        return all(type(layer) is DynamicLayer for layer in layers)

    def tensor(self, values: Any, dtype: torch.dtype = torch.long) -> torch.Tensor:
        """A tensor on the model's device."""
        return torch.tensor(values, dtype=dtype, device=self.device)

    def feed(self, slab: Slab, tokens: torch.Tensor, mask: torch.Tensor, *, logits: bool) -> torch.Tensor | None:
        """Feed tokens [rows, T] into a slab; `mask` [rows, columns + T] says which are real.

        Returns the logits [rows, V] behind the last token, or None when they are not wanted.
        """
        options: dict[str, Any] = {str(self.cache_name): slab.cache, "use_cache": True, "attention_mask": mask}
        if self.takes_positions:
            width = tokens.shape[1]
            options["position_ids"] = (mask.cumsum(dim=1)[:, -width:] - 1).clamp_(min=0)
        if not logits:
            # The headless model: the vocabulary's matrix is a good part of a small model's work.
            self.model.base_model(input_ids=tokens, **options)
            return None
        return self.model(input_ids=tokens, **options).logits[:, -1]

    def whole(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """The logits [rows, V] behind the last token of whole sequences, with no cache at all."""
        width = max(len(row) for row in rows)
        tokens = self.tensor([[*row, *[0] * (width - len(row))] for row in rows])
        ends = self.tensor([len(row) - 1 for row in rows])
        options: dict[str, Any] = {"use_cache": False} if self.cache_name else {}
        if int(ends.min()) < width - 1:
            # Padding behind the end cannot be seen from before it by any causal model.
            options["attention_mask"] = torch.arange(width, device=self.device) <= ends[:, None]
        places, inverse = ends.unique(return_inverse=True)
        if self.takes_logits_to_keep:
            options["logits_to_keep"] = places
        logits = self.model(input_ids=tokens, **options).logits
        row = torch.arange(len(rows), device=self.device)
        return logits[row, inverse if self.takes_logits_to_keep else ends]


def counts_places(config: Any) -> bool:
    """Whether a model's local attention (GPT-Neo's) counts places in the sequence, whatever stands there.

    The others go by their cache's layers, and by a mask that we can give.
    """
    return "local" in getattr(config, "attention_layers", ())


@dataclass(slots=True)
class SlabDecoder:
    """The fast one: our own keys and values, kept across turns, finished rows out of the way."""

    model: CausalModel
    slab: Slab

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Feed one token to each row in use; returns the logits [rows, V] of what follows."""
        column = self.model.tensor(tokens)[:, None]
        mask = self.slab.mark(torch.ones_like(column, dtype=torch.bool))
        logits = self.model.feed(self.slab, column, mask, logits=True)
        assert logits is not None
        return logits

    def drop(self, row: int, last: int) -> None:
        """Take `row` out of use: the last row in use moves to its place."""
        self.slab.swap(row, last)


class NativeDecoder:
    """The one that `generate` uses: the model's own cache, left padding, nothing kept after the call."""

    def __init__(self, model: CausalModel, sequences: Sequence[Sequence[int]]) -> None:
        """Feed the sequences, each without its last token."""
        self.model = model
        self.rows = list(range(len(sequences)))
        self.mask = model.tensor([[0]] * len(sequences))[:, :0]
        self.cache: Any = None
        width = max(len(sequence) for sequence in sequences) - 1
        if width:
            pads = [width - len(sequence) + 1 for sequence in sequences]
            tokens = [[0] * pad + list(sequence[:-1]) for pad, sequence in zip(pads, sequences, strict=True)]
            block = [[0] * pad + [1] * (width - pad) for pad in pads]
            self._feed(model.tensor(tokens), model.tensor(block))

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Feed one token to each row in use; returns the logits [rows, V] of what follows."""
        # Rows out of use go on with token 0, which nothing reads.
        column = self.model.tensor([[0]] * len(self.mask))
        column[self.rows, 0] = self.model.tensor(tokens)
        return self._feed(column, torch.ones_like(column))[self.rows]

    def drop(self, row: int, last: int) -> None:
        """Take `row` out of use: the last row in use moves to its place."""
        self.rows[row] = self.rows[last]
        del self.rows[last]

    def _feed(self, tokens: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
        self.mask = torch.cat([self.mask, block], dim=1)
        options: dict[str, Any] = {"attention_mask": self.mask, "use_cache": True}
        if self.model.takes_positions:
            options["position_ids"] = (self.mask.cumsum(dim=1)[:, -tokens.shape[1] :] - 1).clamp_(min=0)
        if self.cache is not None:
            options[str(self.model.cache_name)] = self.cache
        if self.model.takes_logits_to_keep:
            options["logits_to_keep"] = 1
        out = self.model.model(input_ids=tokens, **options)
        self.cache = out[self.model.cache_name]
        return out.logits[:, -1]


class PlainDecoder:
    """The safe one: every sequence whole at every token. Right for any causal model, and slow."""

    def __init__(self, model: CausalModel, sequences: Sequence[Sequence[int]]) -> None:
        """Nothing is fed yet: each sequence without its last token waits for the first step."""
        self.model = model
        self.sequences = [list(sequence[:-1]) for sequence in sequences]

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Feed one token to each row in use; returns the logits [rows, V] of what follows."""
        for sequence, token in zip(self.sequences, tokens, strict=True):
            sequence.append(token)
        return self.model.whole(self.sequences)

    def drop(self, row: int, last: int) -> None:
        """Take `row` out of use: the last row in use moves to its place."""
        self.sequences[row] = self.sequences[last]
        del self.sequences[last]


def prefill(
    model: CausalModel, rows: Sequence[Row | None], pending: Sequence[Sequence[int]], room: int, max_tokens: int
) -> Slab:
    """Put `pending` tokens behind what is kept of each sequence, in one new slab.

    `room` columns are left for what is sampled; at most `max_tokens` tokens go through the model at once.
    """
    width = max(len(tokens) for tokens in pending)
    slab = gather(rows, width + room, model.layers, model.device)
    # Padding goes behind the tokens, so that even a padded place has something to attend to.
    tokens = model.tensor([[*ids, *[0] * (width - len(ids))] for ids in pending])
    real = model.tensor([[True] * len(ids) + [False] * (width - len(ids)) for ids in pending], torch.bool)
    stride = max(1, max_tokens // len(pending))
    for start in range(0, width, stride):
        part = slice(start, start + stride)
        model.feed(slab, tokens[:, part], slab.mark(real[:, part]), logits=False)
    return slab
