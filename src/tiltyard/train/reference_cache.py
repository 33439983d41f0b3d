"""The reference's log-probabilities of pairs, computed once for a run and kept in its folder."""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from torch import nn

from tiltyard.train.dataset_env import DatasetEnv
from tiltyard.train.preference_learner import NO_REFERENCE, Logprobs, PreferenceLearner

VALUES_PER_TENSOR = 64
PAIRS_AT_ONCE = 1024
"""How many pairs are computed before the file is written: no more are lost to an interrupt."""


class ReferenceCache:
    """Keeps what the reference says of the pairs of an environment, by part and position.

    What the file holds is used as long as its rows, template, settings and reference weights are those of now; else it
    is computed again. A file that cannot be read counts as none.
    """

    def __init__(self, path: Path, env: DatasetEnv, learner: PreferenceLearner) -> None:
        self._path, self._env, self._learner = path, env, learner
        self._known: dict[str, dict[int, Logprobs]] = {"train": {}, "held_out": {}}
        self._read = False

    def fill(self, part: str, indices: Iterable[int]) -> int:
        """Have the log-probabilities of these pairs; returns how many had to be computed."""
        if self._learner.algorithm.reference_free:
            return 0
        if not self._read:
            self._load()
        known = self._known[part]
        missing = sorted(set(indices) - known.keys())
        pairs = getattr(self._env, part)
        for start in range(0, len(missing), PAIRS_AT_ONCE):
            some = missing[start : start + PAIRS_AT_ONCE]
            found = self._learner.reference_logprobs([pairs[index] for index in some])
            known.update(zip(some, found, strict=True))
            if self._learner.processes.rank == 0:
                self._write()
        return len(missing)

    def of(self, part: str, indices: Iterable[int]) -> list[Logprobs]:
        """The log-probabilities of these pairs, which were filled in before."""
        if self._learner.algorithm.reference_free:
            return [NO_REFERENCE for _ in indices]
        return [self._known[part][index] for index in indices]

    def _load(self) -> None:
        self._read = True
        self._fingerprint = f"{self._env.fingerprint} {self._model_fingerprint()}"
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            if kept["fingerprint"] == self._fingerprint:
                self._known = {
                    part: {int(index): Logprobs(*values) for index, values in kept[part].items()}
                    for part in ("train", "held_out")
                }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return

    def _write(self) -> None:
        parts = {
            part: {str(index): [value.chosen, value.rejected] for index, value in known.items()}
            for part, known in self._known.items()
        }
        beside = self._path.with_suffix(".tmp")
        beside.write_text(json.dumps({"fingerprint": self._fingerprint, **parts}), encoding="utf-8")
        os.replace(beside, self._path)

    def _model_fingerprint(self) -> str:
        with self._learner.trainable.reference():
            return weights_fingerprint(self._learner.trainable.model)


def weights_fingerprint(model: nn.Module) -> str:
    """A hash of the names, shapes and some numbers of every weight."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        flat = value.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // VALUES_PER_TENSOR)].float().cpu().contiguous()
        digest.update(f"{name} {tuple(value.shape)} ".encode() + some.numpy().tobytes())
    return digest.hexdigest()[:16]
