"""Samples from a local transformers model: exact ids, exact log-probabilities, and no work done twice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any, Literal

import torch

from tiltyard.errors import ConfigurationError, PolicyError
from tiltyard.policies.base import Sampled, Sampling, TokenRequest
from tiltyard.policies.cache import Kept, Shelf
from tiltyard.policies.decoding import CausalModel, Decoder, NativeDecoder, PlainDecoder, SlabDecoder
from tiltyard.policies.opening import Job, Opener, SamplerStats
from tiltyard.policies.picking import pick, uniforms

Path = Literal["kept", "native", "plain"]
"""How the model is run: our cache kept across turns, the model's own cache within a call, or no cache."""


class HFPolicy:
    """A `TokenPolicy` over a causal language model of transformers. Not to be called from two threads at once.

    Equal new prompts are prefilled once and their keys and values copied to every member of the group; what
    all new prompts begin with is prefilled once; an episode's cache is kept, so that its next turn feeds only
    what is new; finished rows leave the batch. Whether the model's cache can be handled so is checked at
    construction, on a few tokens; where it cannot, a slower way with the same logits is taken (`path`). The
    model's `generation_config` is never read: what is sampled is what `sampling` says.

    Attributes:
        sampling: The distribution to sample from.
        version: How many training steps the model's weights have learned from, for whoever samples to know; None
            where nobody says.
        path: How the model is run.
        stats: What the sampler did.
    """

    def __init__(
        self,
        model: Any,
        *,
        stop_ids: frozenset[int],
        sampling: Sampling = Sampling(),  # noqa: B008 - frozen
        context_length: int | None = None,
        max_batch: int = 64,
        max_prefill_tokens: int = 8192,
        max_cache_bytes: int = 4 << 30,
    ) -> None:
        """Check the model; its weights and device stay as they are.

        Args:
            model: A causal language model of transformers, or a peft model over one.
            stop_ids: The tokens that end a turn; the one that did is part of the result.
            sampling: The distribution to sample from.
            context_length: The longest sequence; None takes the model's own bound.
            max_batch: The most sequences in one pass.
            max_prefill_tokens: The most tokens in one pass.
            max_cache_bytes: The most memory kept between calls; beyond it the oldest episodes are dropped.

        Raises:
            ConfigurationError: The model is not decoder-only, an argument cannot be used, or no path gives the
                logits of a plain forward pass.
        """
        for name, value in (
            ("max_batch", max_batch),
            ("max_prefill_tokens", max_prefill_tokens),
            ("context_length", 1 if context_length is None else context_length),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigurationError(f"{name} must be a whole number >= 1, got {value!r}")
        if not isinstance(sampling, Sampling):
            raise ConfigurationError(f"sampling must be a Sampling(...), got {sampling!r}")
        if not isinstance(stop_ids, Set | list | tuple) or not all(isinstance(index, int) for index in stop_ids):
            raise ConfigurationError(f"stop_ids must be a set of token ids, as renderer.stop_ids is, got {stop_ids!r}")
        self.stop_ids = frozenset(stop_ids)
        self.sampling = sampling
        self.version: int | None = None
        self.max_batch = max_batch
        self._interrupted = False
        self._model = CausalModel(model)
        self._context_length = context_length or self._model.context_length
        self._shelf = Shelf(max_cache_bytes)
        self._opener = Opener(self._model, self._shelf, SamplerStats(), max_prefill_tokens)
        self.path: Path = self._choose()
        self.stats = self._opener.stats = SamplerStats()

    @property
    def context_length(self) -> int | None:
        """The most tokens that a sequence may have; None when the model sets no bound."""
        return self._context_length

    @property
    def kept_bytes(self) -> int:
        """The memory of the caches that are kept between calls."""
        return self._shelf.bytes

    def release(self, keys: Sequence[str]) -> None:
        """Forget what is kept for these episodes; unknown keys are ignored."""
        self._shelf.release(keys)
        with torch.inference_mode():
            self._shelf.tidy()

    def weights_changed(self) -> None:
        """Forget every cache: to be called after anything that changes the model's weights."""
        self._shelf.clear()
        self._opener.forget()

    def interrupt(self) -> None:
        """From another thread: end the call that goes on, and each later one, as Ctrl-C in its own thread would."""
        self._interrupted = True

    def sample(self, requests: Sequence[TokenRequest]) -> list[Sampled]:
        """Continue each sequence; the results are in the order of the requests.

        A result depends on its own ids, seed and limits alone (up to rounding of the logits), not on what
        else is in the batch. A sequence that already fills the context gives an empty result.

        Raises:
            ConfigurationError: A request is empty, asks for no token, holds an id that the model does not
                have, or shares its key with another.
            PolicyError: The model gave logits that are not numbers.
            KeyboardInterrupt: `interrupt` was called.
        """
        self._validate(requests)
        jobs = [self._job(request) for request in requests]
        waiting = [job for job in jobs if job.reason is None]
        with self._inference():
            for start in range(0, len(waiting), self.max_batch):
                self._run(waiting[start : start + self.max_batch])
                self._shelf.tidy()
        return [Sampled(tuple(job.sampled), tuple(job.logprobs), job.reason or job.cut, self.version) for job in jobs]

    def _validate(self, requests: Sequence[TokenRequest]) -> None:
        keys: set[str] = set()
        for request in requests:
            if request.key in keys:
                raise ConfigurationError(f"two requests of one call have the key {request.key!r}")
            keys.add(request.key)
            if not len(request.ids):
                raise ConfigurationError(f"request {request.key!r} has no ids; a prompt needs at least one token")
            if request.max_tokens < 1:
                raise ConfigurationError(f"request {request.key!r}: max_tokens must be >= 1, got {request.max_tokens}")
            low, high = min(request.ids), max(request.ids)
            if low < 0 or high >= self._model.vocabulary:
                raise ConfigurationError(
                    f"request {request.key!r} holds the id {low if low < 0 else high}, but the model has ids "
                    f"0..{self._model.vocabulary - 1}: is this the model's own tokenizer?"
                )

    def _job(self, request: TokenRequest) -> Job:
        ids = list(request.ids)
        room = request.max_tokens if self._context_length is None else self._context_length - len(ids)
        budget = max(0, min(request.max_tokens, room))
        cut = "length" if room >= request.max_tokens else "context"
        draws = uniforms(request.seed, len(ids), budget)
        return Job(request, ids, budget, cut, draws, reason=None if budget else cut)

    @contextmanager
    def _inference(self) -> Iterator[None]:
        model = self._model.model
        training = model.training
        model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            model.train(training)

    def _open(self, jobs: Sequence[Job], path: Path) -> Decoder:
        if path == "kept":
            return SlabDecoder(self._model, self._opener.open(jobs))
        sequences = [job.ids for job in jobs]
        if path == "native":
            return NativeDecoder(self._model, sequences)
        return PlainDecoder(self._model, sequences)

    def _run(self, jobs: Sequence[Job]) -> None:
        decoder = self._open(jobs, self.path)
        rows, tokens = list(jobs), [job.ids[-1] for job in jobs]
        ended: list[Job] = []
        for step in range(max(job.budget for job in jobs)):
            if self._interrupted:
                raise KeyboardInterrupt
            logits = decoder.step(tokens)
            picked = pick(logits, torch.tensor([job.draws[step] for job in rows]), self.sampling)
            self.stats.steps += 1
            self.stats.sampled += len(rows)
            tokens = picked.ids
            for index in reversed(range(len(rows))):
                job, logprob = rows[index], picked.logprobs[index]
                if not math.isfinite(logprob):
                    raise PolicyError(f"the model gave logits that are not numbers for episode {job.request.key!r}")
                if job.take(tokens[index], logprob, self.stop_ids):
                    decoder.drop(index, len(rows) - 1)
                    rows[index], tokens[index] = rows[-1], tokens[-1]
                    rows.pop()
                    tokens.pop()
                    ended.append(job)
            if not rows:
                break
        if isinstance(decoder, SlabDecoder):
            # The first to end was swapped to the last row, the next to the one before it.
            for row, job in enumerate(reversed(ended)):
                self._shelf.put(job.request.key, Kept(job.ids + job.sampled[:-1], decoder.slab.row(row)))

    def _choose(self) -> Path:
        """The fastest path whose logits are those of a plain forward pass over each sequence alone."""
        paths: list[Path] = ["plain"]
        if self._model.cache_name:
            paths.insert(0, "native")
        if self._model.keeps_every_token:
            paths.insert(0, "kept")
        reasons = []
        for path in paths:
            try:
                with self._inference():
                    difference = self._difference(path)
            except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
                # Foreign modelling code that cannot take the path's arguments fails in ways of its own.
                reasons.append(f"{path}: {type(error).__name__}: {error}")
                continue
            finally:
                self.weights_changed()
            # Rounding of the dtype, through all layers, relative to the largest logit.
            bound = min(0.1, 1e4 * torch.finfo(self._model.model.dtype).eps)
            if difference <= bound:
                return path
            reasons.append(f"{path}: logits differ by {difference:.3g} of the largest")
        raise ConfigurationError(
            f"{type(self._model.model).__name__} gives other logits in a batch than alone, so it cannot be sampled "
            f"from here ({'; '.join(reasons)})"
        )

    def _difference(self, path: Path) -> float:
        """The largest difference from the plain logits over two ragged turns, relative to the largest logit."""
        generator = torch.Generator().manual_seed(0)

        def fresh(count: int) -> list[int]:
            return torch.randint(self._model.vocabulary, (count,), generator=generator).tolist()

        prompt = fresh(6)
        sequences = [fresh(1), prompt, list(prompt), fresh(11)]
        worst = 0.0
        for added in (0, 3):
            sequences = [ids + fresh(added * index) for index, ids in enumerate(sequences)]
            jobs = [
                Job(TokenRequest(f"check {index}", ids, 3, 0), list(ids), 3, "length", uniforms(0, 0, 3))
                for index, ids in enumerate(sequences)
            ]
            decoder, live = self._open(jobs, path), list(range(len(sequences)))
            for step in range(3):
                tokens = [sequences[index][-1] for index in live]
                logits = decoder.step(tokens)
                plain = torch.cat([self._model.whole([sequences[index]]) for index in live])
                worst = max(worst, float((logits - plain).abs().max() / plain.abs().max()))
                if step == 0:
                    decoder.drop(1, len(live) - 1)
                    live[1] = live.pop()
                for index in live:
                    sequences[index] = sequences[index] + fresh(1)
            if isinstance(decoder, SlabDecoder):
                for row, index in enumerate(live):
                    self._shelf.put(f"check {index}", Kept(sequences[index][:-1], decoder.slab.row(row)))
        return worst
