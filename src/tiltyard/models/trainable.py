"""Says which parameters of a model train: all, the last layers, or an adapter beside them."""

from __future__ import annotations

import math
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiltyard._optional import require
from tiltyard.errors import CheckpointError, ConfigurationError


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """A LoRA adapter.

    Attributes:
        rank: Rank of each pair of matrices.
        alpha: What is added to the output is alpha / rank times the pair's product.
        dropout: On the adapter's input, in train mode only.
        targets: Names of the modules that get an adapter, or "all-linear" for every linear layer but the head.
    """

    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    targets: str | Sequence[str] = "all-linear"

    def __post_init__(self) -> None:
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 1:
            raise ConfigurationError(f"rank must be an integer >= 1, got {self.rank!r}")
        if not 0 < self.alpha < math.inf:
            raise ConfigurationError(f"alpha must be > 0 and finite, got {self.alpha!r}")
        if not 0 <= self.dropout < 1:
            raise ConfigurationError(f"dropout must be in [0, 1), got {self.dropout!r}")
        if not isinstance(self.targets, str | Sequence):
            raise ConfigurationError(f"targets must be 'all-linear' or names of modules, got {self.targets!r}")


class TrainableModel:
    """A model whose trained parameters are in the model itself: all of them, or its last layers."""

    def __init__(self, model: nn.Module, *, keep_reference: bool = True) -> None:
        """Take the parameters that require a gradient as the trained ones."""
        self.model = model
        self._keep_reference = keep_reference
        self._reference: dict[str, Tensor] | None = None
        self._probes = {name: _probe(value) for name, value in self._named()} if keep_reference else {}

    def parameters(self) -> list[nn.Parameter]:
        """The parameters that train."""
        return [value for _, value in self._named()]

    @contextmanager
    def sampling_weights(self) -> Iterator[None]:
        """A context in which the weights are those to sample with: here always."""
        yield

    @contextmanager
    def reference(self) -> Iterator[None]:
        """A context in which the model is what it was before training.

        The first use copies the trained parameters, so it has to come before the first optimiser step.

        Raises:
            ConfigurationError: The parameters have changed already, or no reference was to be kept.
        """
        values = self._remember()
        self._swap(values)
        try:
            yield
        finally:
            self._swap(values)

    def state_dict(self) -> dict[str, Tensor]:
        """The trained parameters by name; the tensors are the model's own, not copies."""
        return {name: value.detach() for name, value in self._named()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Put trained parameters in; `reference()` stays the model as it was before.

        Raises:
            CheckpointError: The names or shapes are not those of this model's trained parameters. Nothing
                is changed then.
        """
        current = dict(self._named())
        wrong = sorted(current.keys() ^ state.keys())
        wrong += [name for name, value in current.items() if name in state and state[name].shape != value.shape]
        if wrong:
            raise CheckpointError(
                f"the saved weights do not fit this model's trained parameters: {len(wrong)} differ, such as "
                f"{wrong[0]!r}; resume with the model and the `train` setting of the run that saved them"
            )
        if self._keep_reference:
            self._remember()
        with torch.no_grad():
            for name, value in current.items():
                value.copy_(state[name])

    def export(self, folder: Path) -> None:
        """Write a plain transformers folder (the tokenizer is the caller's to add)."""
        self.model.save_pretrained(folder)  # pyright: ignore[reportCallIssue] - a transformers model

    def _named(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, value) for name, value in self.model.named_parameters() if value.requires_grad)

    def _remember(self) -> dict[str, Tensor]:
        if self._reference is None:
            if not self._keep_reference:
                raise ConfigurationError("no reference was kept; make the model with keep_reference=True")
            changed = [name for name, value in self._named() if not torch.equal(_probe(value), self._probes[name])]
            if changed:
                raise ConfigurationError(
                    f"the reference was asked for after {len(changed)} parameters had changed, such as {changed[0]!r}; "
                    "enter reference() once before the first optimiser step"
                )
            self._reference = {name: value.detach().clone() for name, value in self._named()}
        return self._reference

    def _swap(self, values: dict[str, Tensor]) -> None:
        for name, parameter in self._named():
            # Exchanges the storage, not the numbers: free, and exact both ways.
            values[name], parameter.data = parameter.data, values[name]


def _probe(value: Tensor) -> Tensor:
    """A few of a parameter's numbers: fused optimisers change them without counting up its version."""
    flat = value.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // 64)].clone()


class AdapterModel(TrainableModel):
    """A peft model: the adapter trains, the base does not change."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, keep_reference=False)
        self._originals: list[_Merged] = []

    @contextmanager
    def sampling_weights(self) -> Iterator[None]:
        """A context in which the adapter is merged into the base, which makes sampling faster.

        The base's own tensors are put back afterwards: exactly what they were, where subtracting the
        adapter again would leave rounding behind. May be entered again inside itself.
        """
        if self._originals:
            yield
            return
        try:
            self._merge()
            yield
        finally:
            self._restore()

    @contextmanager
    def reference(self) -> Iterator[None]:
        """A context in which the adapter is off."""
        merged = bool(self._originals)
        self._restore()
        try:
            with self.model.disable_adapter():  # pyright: ignore[reportCallIssue] - a peft model
                yield
        finally:
            if merged:
                self._merge()

    def export(self, folder: Path) -> None:
        """Write the adapter as a peft folder."""
        self.model.save_pretrained(folder, save_embedding_layers=False)  # pyright: ignore[reportCallIssue] - a peft model

    def _merge(self) -> None:
        lora_layer = require("peft.tuners.lora", "train").LoraLayer
        uses = Counter(id(value) for _, value in self.model.named_parameters(remove_duplicate=False))
        with torch.no_grad():
            for layer in self.model.modules():
                if not isinstance(layer, lora_layer):
                    continue
                weight = layer.get_base_layer().weight  # pyright: ignore[reportCallIssue] - typed as a tensor by nn.Module
                if uses[id(weight)] > 1 or not weight.is_floating_point():
                    # A head tied to the embeddings would change those too, and a quantised weight cannot hold the
                    # sum: such a layer goes on with the adapter beside it.
                    continue
                self._originals.append(_Merged(layer, weight, weight.data))
                # The safe way sums into a new tensor and leaves the original alone.
                layer.merge(safe_merge=True)  # pyright: ignore[reportCallIssue] - typed as a tensor by nn.Module

    def _restore(self) -> None:
        while self._originals:
            merged = self._originals.pop()
            merged.weight.data = merged.original
            merged.layer.merged_adapters.clear()


@dataclass(frozen=True, slots=True, eq=False)
class _Merged:
    layer: Any
    weight: nn.Parameter
    original: Tensor


def make_trainable(
    model: Any,
    what: str = "full",
    *,
    lora: LoraSettings = LoraSettings(),
    keep_reference: bool = True,
) -> TrainableModel:
    """Decide what of a causal language model trains; sets `requires_grad` of its parameters.

    An adapter that an earlier call put into the model is taken out first: the model is what it was before.
    "full" trains everything. "last:K" trains the last K layers and the norm behind them; the embeddings and
    the head stay as they are, also where the two are tied. "lora" adds an adapter and trains only that.
    `keep_reference` False says that `reference()` will not be used, so that resuming keeps no copy for it
    (an adapter never needs one).

    Raises:
        ConfigurationError: `what` is none of these, the model does not have K layers, or it has an adapter already.
        MissingExtraError: "lora" without peft installed.
    """
    _without_adapter(model)
    if what == "full":
        model.requires_grad_(True)
        return TrainableModel(model, keep_reference=keep_reference)
    if what == "lora":
        return _with_adapter(model, lora)
    kind, _, count = what.partition(":")
    if kind != "last" or not count.isdecimal() or int(count) < 1:
        raise ConfigurationError(f"what trains must be 'full', 'lora' or 'last:K' with K >= 1, got {what!r}")
    model.requires_grad_(False)
    for module in _last_layers(model, int(count)):
        module.requires_grad_(True)
    return TrainableModel(model, keep_reference=keep_reference)


def decoder_layers(model: Any) -> nn.ModuleList | None:
    """The list of a causal language model's layers; None where the model has them in no list."""
    total = model.config.get_text_config(decoder=True).num_hidden_layers
    lists = (child for child in model.get_decoder().children() if isinstance(child, nn.ModuleList))
    return next((layers for layers in lists if len(layers) == total), None)


def _last_layers(model: Any, count: int) -> list[nn.Module]:
    layers, children = decoder_layers(model), list(model.get_decoder().children())
    if layers is None:
        raise ConfigurationError(
            f"{type(model).__name__} has no list of layers to take the last {count} of; use 'full' or 'lora'"
        )
    total = len(layers)
    if count > total:
        raise ConfigurationError(f"'last:{count}' asks for {count} layers, but the model has {total}")
    place = next(index for index, child in enumerate(children) if child is layers)
    behind = [child for child in children[place + 1 :] if not isinstance(child, nn.Embedding | nn.Linear)]
    return [*layers[total - count :], *behind]


def _without_adapter(model: nn.Module) -> None:
    """Take out what an earlier `make_trainable` put in; an adapter that somebody else gave the model is not ours to.

    Raises:
        ConfigurationError: It has such an adapter.
    """
    peft: Any = sys.modules.get("peft")
    if peft is None:
        return  # nobody has put one in
    if isinstance(model, peft.PeftModel) or getattr(model, "_hf_peft_config_loaded", False):
        raise ConfigurationError(
            f"the {type(model).__name__} has an adapter already, and what trains would not be that; put it into the "
            "weights first (peft's merge_and_unload), or give the model without it"
        )
    layer = peft.tuners.tuners_utils.BaseTunerLayer
    for name, module in [*model.named_modules()]:
        if isinstance(module, layer):
            model.set_submodule(name, module.get_base_layer())  # pyright: ignore[reportCallIssue] - typed as a tensor
    if hasattr(model, "peft_config"):
        del model.peft_config


def _with_adapter(model: Any, lora: LoraSettings) -> AdapterModel:
    peft = require("peft", "train")
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    try:
        with warnings.catch_warnings():
            # peft reads an attribute that newer versions of transformers have renamed; nothing a user can act on.
            warnings.filterwarnings(
                "ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning
            )
            return AdapterModel(peft.get_peft_model(model, config))
    except ValueError as error:
        raise ConfigurationError(f"no adapter can be put on targets {lora.targets!r}: {error}") from error
