"""Log-probabilities of the trained tokens under the sampling temperature, and how a model may be asked for them."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tiltyard.errors import ConfigurationError
from tiltyard.policies.base import Sampling
from tiltyard.policies.decoding import counts_places
from tiltyard.train.batch import TrainRow
from tiltyard.train.packing import Pack, padded_packs, tree_packs

TOLERANCE_NATS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far the mean log-probability of two ways of computing may be apart before one counts as wrong."""

MASKABLE_ATTENTION = ("eager", "sdpa")


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """How a model is asked for log-probabilities, found out by `check_packing`.

    Attributes:
        packed: Rows may share prefixes in a tree; otherwise they are padded side by side.
        decoder: The vocabulary projection may be done apart, at the places that are needed.
        window: The longest row that may be packed; None when the model's attention has no window.
        reason: Why not, where one of the two is False; "" otherwise.
        logits_at_once: Logits held at once for the backward pass; beyond it they are computed in pieces, and
            again going backward.
    """

    packed: bool = True
    decoder: bool = True
    window: int | None = None
    reason: str = ""
    logits_at_once: int = 2**27

    def packs(self, rows: Sequence[TrainRow], max_tokens: int) -> Iterator[Pack]:
        """Lay rows out for this model."""
        if self.packed and (self.window is None or all(len(row.ids) <= self.window for row in rows)):
            return tree_packs(rows, max_tokens)
        return padded_packs(rows, max_tokens)


@dataclass(frozen=True, slots=True)
class PackOutput:
    """What a forward pass says of the trained tokens, [K], in the pack's order.

    Attributes:
        logp: Log-probabilities in float32, with gradient.
        entropy: Entropy in nats of the distribution that each token was drawn from; without gradient unless asked for.
        hidden: [U, D], the hidden states at the pack's places, with gradient; None unless asked for.
    """

    logp: Tensor
    entropy: Tensor
    hidden: Tensor | None = None


def check_sampling(sampling: Sampling) -> None:
    """Refuse a sampling distribution that the trainer's log-probabilities cannot mirror.

    Top-p and top-k renormalise over a support that moves with the weights: after a step a sampled token may
    lie outside it, and its ratio is 0 by no fault of the policy.

    Raises:
        ConfigurationError: top_p, top_k or a temperature of 0 is in use.
    """
    if sampling.temperature == 0:
        raise ConfigurationError(
            "temperature 0 gives every member of a group the same answer, which teaches nothing; train with > 0"
        )
    if sampling.top_p < 1 or sampling.top_k > 0:
        raise ConfigurationError(
            f"training samples from the whole distribution, got top_p={sampling.top_p!r} and top_k={sampling.top_k!r}; "
            "set top_p to 1 and top_k to 0 (evaluation may use others)"
        )


def pack_logprobs(
    model: nn.Module,
    pack: Pack,
    sampling: Sampling,
    plan: ForwardPlan,
    *,
    entropy_gradient: bool = False,
    with_hidden: bool = False,
) -> PackOutput:
    """The log-probability of every trained token of a pack; logits exist only where one is predicted.

    Args:
        model: The model.
        pack: On the model's device.
        sampling: What the tokens were drawn from.
        plan: How the model is asked.
        entropy_gradient: The entropy can go backward, which costs memory.
        with_hidden: The hidden states are given as well.
    """
    causal = unwrapped(model)
    hidden, states, head = _states_and_head(causal, pack, plan, with_states=with_hidden)
    size = max(1, plan.logits_at_once // vocabulary(causal))
    states = states if with_hidden else None
    if len(hidden) <= size:
        found = _logp_and_entropy(hidden, pack.source, pack.targets, head, sampling.temperature, entropy_gradient)
        return PackOutput(*found, hidden=states)
    logp, entropy = _in_pieces(hidden, pack, head, sampling.temperature, size, entropy_gradient)
    return PackOutput(logp, entropy, states)


def token_logprobs(
    model: nn.Module,
    rows: Sequence[TrainRow],
    sampling: Sampling,
    plan: ForwardPlan,
    *,
    max_tokens: int = 4096,
) -> list[Tensor]:
    """The log-probabilities of each row's trained tokens, in order; an empty tensor for a row that has none."""
    found: dict[int, Tensor] = {}
    for pack in plan.packs(rows, max_tokens):
        pieces = pack_logprobs(model, pack.to(device_of(model)), sampling, plan).logp.split(
            [row.trained for row in pack.rows]
        )
        found.update((id(row), piece) for row, piece in zip(pack.rows, pieces, strict=True))
    return [found[id(row)] if row.trained else torch.zeros(0) for row in rows]


def check_packing(model: nn.Module, *, seed: int = 0) -> ForwardPlan:
    """Find the fastest way that gives this model's own log-probabilities, by comparing on random tokens.

    Plain rows and the model's own logits are the truth. A model whose attention cannot take a mask of our own
    (flash attention), or that carries a state along the sequence, is trained on plain rows.
    """
    causal = unwrapped(model)
    rows = _probe_rows(vocabulary(causal), seed)
    truth = ForwardPlan(packed=False, decoder=False)
    window = _window(causal.config)
    with torch.no_grad():
        expected = torch.cat(token_logprobs(model, rows, Sampling(), truth))
        decoder, why_decoder = _agrees(model, rows, expected, ForwardPlan(packed=False))
        if causal.config._attn_implementation not in MASKABLE_ATTENTION:
            packed, why = False, f"attention {causal.config._attn_implementation!r} takes no mask of our own"
        elif counts_places(causal.config.get_text_config()):
            packed, why = False, "its local attention counts places in the sequence"
        else:
            packed, why = _agrees(model, rows, expected, ForwardPlan(decoder=decoder))
    reasons = (f"packing: {why}" if why else "", f"apart projection: {why_decoder}" if why_decoder else "")
    return ForwardPlan(packed, decoder, window, "; ".join(filter(None, reasons)))


def unwrapped(model: nn.Module) -> Any:
    """The causal language model itself, out of the wrapper that peft puts around it (its layers stay adapted)."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]  # peft's


def device_of(model: nn.Module) -> torch.device:
    """Where the model's inputs belong."""
    return next(model.parameters()).device


def hidden_and_head(causal: Any, pack: Pack, plan: ForwardPlan) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Hidden states, [U, D], at the places that are needed, and what makes logits of them."""
    found = _states_and_head(causal, pack, plan, with_states=False)
    return found.hidden, found.head


class _StatesAndHead(NamedTuple):
    """What the head takes, [U, ·]; the last hidden states, [U, D], or None; and the head."""

    hidden: Tensor
    states: Tensor | None
    head: Callable[[Tensor], Tensor]


def _states_and_head(causal: Any, pack: Pack, plan: ForwardPlan, *, with_states: bool) -> _StatesAndHead:
    inputs = {"input_ids": pack.ids, "attention_mask": pack.attention, "use_cache": False}
    if pack.attention.ndim == 4:
        # Only a tree's positions are not the usual ones, and not every model takes any.
        inputs |= {"attention_mask": _additive(pack.attention, causal.dtype), "position_ids": pack.positions}
    if plan.decoder:
        hidden = causal.get_decoder()(**inputs).last_hidden_state.flatten(0, 1)[pack.places]
        return _StatesAndHead(hidden, hidden, causal.get_output_embeddings())
    if with_states:
        outputs = causal(**inputs, output_hidden_states=True)
        states = outputs.hidden_states[-1].flatten(0, 1)[pack.places]
        return _StatesAndHead(outputs.logits.flatten(0, 1)[pack.places], states, nn.Identity())
    if len(pack.ids) == 1 and "logits_to_keep" in inspect.signature(causal.forward).parameters:
        return _StatesAndHead(causal(**inputs, logits_to_keep=pack.places).logits[0], None, nn.Identity())
    return _StatesAndHead(causal(**inputs).logits.flatten(0, 1)[pack.places], None, nn.Identity())


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)


def _logp_and_entropy(
    hidden: Tensor,
    source: Tensor,
    targets: Tensor,
    head: Callable[[Tensor], Tensor],
    temperature: float,
    entropy_gradient: bool,
) -> tuple[Tensor, Tensor]:
    logits = head(hidden).float()
    if temperature != 1:
        logits = logits / temperature
    total = logits.logsumexp(-1)
    # a logit of -inf has probability 0 and adds nothing to the entropy; 0 * -inf would be NaN
    lowest = torch.finfo(logits.dtype).min
    if entropy_gradient:
        entropy = total - ((logits - total[:, None]).exp() * logits.clamp(min=lowest)).sum(-1)
    else:
        with torch.no_grad():
            entropy = total - (logits - total[:, None]).exp_().mul_(logits.clamp(min=lowest)).sum(-1)
    return logits[source, targets] - total[source], entropy[source]


def _in_pieces(
    hidden: Tensor,
    pack: Pack,
    head: Callable[[Tensor], Tensor],
    temperature: float,
    size: int,
    entropy_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """The same in pieces of `size` places, whose logits are thrown away and computed again going backward."""
    logp = hidden.new_zeros(len(pack.targets), dtype=torch.float32)
    entropy = torch.zeros_like(logp)
    for start in range(0, len(hidden), size):
        inside = ((pack.source >= start) & (pack.source < start + size)).nonzero().squeeze(-1)
        piece = checkpoint(
            _logp_and_entropy,
            hidden[start : start + size],
            pack.source[inside] - start,
            pack.targets[inside],
            head,
            temperature,
            entropy_gradient,
            use_reentrant=False,
        )
        assert piece is not None
        logp = logp.index_put((inside,), piece[0])
        entropy = entropy.index_put((inside,), piece[1])
    return logp, entropy


def _agrees(model: nn.Module, rows: Sequence[TrainRow], expected: Tensor, plan: ForwardPlan) -> tuple[bool, str]:
    try:
        found = torch.cat(token_logprobs(model, rows, Sampling(), plan))
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, NotImplementedError) as error:
        return False, f"{type(error).__name__}: {error}"  # the model's own code says that it cannot do this
    apart = (found - expected).abs().mean().item()
    if not apart <= TOLERANCE_NATS.get(unwrapped(model).dtype, 1e-4):
        return False, f"log-probabilities differ by {apart:.3g} nats from plain rows"
    return True, ""


def _probe_rows(vocabulary: int, seed: int) -> list[TrainRow]:
    """Rows that share a prompt, and two of them a part of the answer as well."""
    generator = torch.Generator().manual_seed(seed)
    prompt, shared, *tails = (
        torch.randint(vocabulary, (length,), generator=generator).tolist() for length in (9, 4, 6, 3, 8)
    )
    rows = []
    for index, tail in enumerate((shared + tails[0], shared + tails[1], tails[2])):
        ids, count = (*prompt, *tail), len(tail)
        mask = (False,) * len(prompt) + (True,) * count
        rows.append(TrainRow(f"probe {index}", ids, mask, (None,) * len(ids), (0.0,) * len(ids), count))
    return rows


def vocabulary(causal: Any) -> int:
    """How many tokens the model predicts."""
    return causal.config.get_text_config().vocab_size


def _window(config: Any) -> int | None:
    """The sliding window, within which every row must fit to be packed: our mask replaces the model's."""
    text = config.get_text_config()
    if getattr(text, "use_sliding_window", True) is False:
        return None
    return getattr(text, "sliding_window", None) or getattr(text, "attention_chunk_size", None)
