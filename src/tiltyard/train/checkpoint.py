"""Checkpoints: all that a run needs to go on, in one folder that is either whole or not there.

A checkpoint `step-00000012/` holds `weights.safetensors` (what trains), `optimiser.pt`, `rng.pt` and, written last,
`checkpoint.json` with the step, the position in the tasks, and size and SHA-256 of the other files. It is written under
another name and renamed once everything is on the disk. `best.json` beside the checkpoints names the one with the best
evaluation, which is never removed.
"""

import hashlib
import json
import os
import pickle
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tiltyard.errors import CheckpointError

FORMAT = "tiltyard-checkpoint-1"
WEIGHTS, OPTIMISER, RNG, MANIFEST = "weights.safetensors", "optimiser.pt", "rng.pt", "checkpoint.json"
STEP, PARTIAL, BEST = "step-", ".partial-", "best.json"


class Weights(Protocol):
    """What holds the trained weights (`tiltyard.models.trainable`)."""

    def state_dict(self) -> Mapping[str, Tensor]:
        """The trained weights, or the adapter, by name."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Put such weights in."""
        ...


class Stateful(Protocol):
    """What holds the optimiser (`tiltyard.train.learner.Learner`)."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers, strings, and lists and dicts of them."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from such a state."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a run stood.

    Attributes:
        path: The checkpoint's folder.
        step: Steps done.
        position: Where the tasks stood, as it was given to `save_checkpoint`.
    """

    path: Path
    step: int
    position: dict[str, Any]


def save_checkpoint(
    folder: Path, step: int, *, model: Weights, learner: Stateful, position: Mapping[str, Any], keep: int = 2
) -> Path:
    """Write the checkpoint of a finished step, and remove all but the last `keep` and the best one.

    Args:
        folder: Holds the run's checkpoints; made when missing.
        step: Steps done.
        model: Its trained weights are saved.
        learner: Its optimiser is saved.
        position: Where the tasks stand; JSON can hold it.
        keep: How many of the last checkpoints stay, at least 1.

    Returns:
        The checkpoint's folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left_over in folder.glob(f"{PARTIAL}*"):
        shutil.rmtree(left_over)
    partial, final = folder / f"{PARTIAL}{step:08d}", folder / f"{STEP}{step:08d}"
    partial.mkdir()
    save_file(_apart(model.state_dict()), partial / WEIGHTS, metadata={"format": "pt"})
    torch.save(learner.state_dict(), partial / OPTIMISER)
    torch.save(_rng_state(), partial / RNG)
    files = {name: _fingerprint(partial / name) for name in (WEIGHTS, OPTIMISER, RNG)}
    about = {"format": FORMAT, "step": step, "position": dict(position), "files": files}
    (partial / MANIFEST).write_text(json.dumps(about, indent=2, allow_nan=False), encoding="utf-8")
    for path in (*partial.iterdir(), partial):
        sync(path)
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    sync(folder)
    remove_old_checkpoints(folder, keep)
    return final


def remove_old_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the last `keep` checkpoints, at least 1, and the best one."""
    best = best_checkpoint(folder)
    for old in _checkpoints(folder)[: -max(1, keep)]:
        if old != best:
            shutil.rmtree(old)


def mark_best(folder: Path, about: Mapping[str, Any]) -> None:
    """Name the best checkpoint from now on; `about` has its `step`, and what is known of it."""
    beside = folder / f"{BEST}.tmp"
    beside.write_text(json.dumps(dict(about), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    sync(beside)
    beside.replace(folder / BEST)


def best_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that `mark_best` named; None when none was, or when it is gone."""
    try:
        step = int(json.loads((folder / BEST).read_text(encoding="utf-8"))["step"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{folder / BEST} cannot be read ({error}); delete it to go on without a best checkpoint"
        ) from error
    found = folder / f"{STEP}{step:08d}"
    return found if found in _checkpoints(folder) else None


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the most steps in a folder of checkpoints; None when there is none."""
    found = _checkpoints(folder)
    return found[-1] if found else None


def saved_steps(folder: Path) -> list[int]:
    """The steps of the whole checkpoints in a folder of checkpoints, in order."""
    return [step_of(path) for path in _checkpoints(folder)]


def step_of(path: Path) -> int:
    """The step of a checkpoint's folder."""
    return int(path.name.removeprefix(STEP))


def load_checkpoint(path: Path, *, model: Weights, learner: Stateful) -> Checkpoint:
    """Put a checkpoint's weights, optimiser and random states back.

    Nothing is changed before every file has been read and found whole and fitting.

    Raises:
        CheckpointError: A file is missing or damaged, or the checkpoint is of another model or trainer.
    """
    checkpoint = _verified(path)
    weights = _read_weights(path, model)
    optimiser, rng = _read(path / OPTIMISER), _read(path / RNG)
    learner.load_state_dict(optimiser)
    model.load_state_dict(weights)
    _set_rng_state(rng)
    return checkpoint


def load_weights(path: str | Path, model: Weights) -> Checkpoint:
    """Put only the weights back, of a checkpoint, a folder of checkpoints, or the newest one of a run folder.

    Raises:
        CheckpointError: There is none, it is damaged, or it is of another model.
    """
    asked = Path(path)
    candidates = (asked if (asked / MANIFEST).is_file() else None, newest_checkpoint(asked / "checkpoints"))
    found = next((each for each in candidates if each is not None), None) or newest_checkpoint(asked)
    if found is None:
        raise CheckpointError(
            f"{asked.absolute()} is no checkpoint, and holds none; give a run folder, or one of its checkpoints/{STEP}*"
        )
    checkpoint = _verified(found)
    model.load_state_dict(_read_weights(found, model))
    return checkpoint


def _checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints by step, the oldest first."""
    found = (p for p in folder.glob(f"{STEP}*") if p.name.removeprefix(STEP).isdigit() and (p / MANIFEST).is_file())
    return sorted(found, key=step_of)


def _verified(path: Path) -> Checkpoint:
    """Read what a checkpoint says of itself, and hold its files against it."""
    try:
        about = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is no checkpoint: it has no {MANIFEST}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / MANIFEST} cannot be read: {error}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        given = about.get("format") if isinstance(about, dict) else about
        raise CheckpointError(f"{path / MANIFEST} has the format {given!r}; this version reads {FORMAT!r}")
    files, step, position = about.get("files"), about.get("step"), about.get("position")
    if not (isinstance(files, dict) and type(step) is int and isinstance(position, dict)):
        raise CheckpointError(
            f"{path / MANIFEST} is damaged: it needs files, step, position; delete {path} to resume from an older one"
        )
    for name, expected in files.items():
        if not (path / name).is_file():
            raise CheckpointError(
                f"{path} is damaged: {name} is missing; delete the folder to resume from an older one"
            )
        if _fingerprint(path / name) != expected:
            raise CheckpointError(
                f"{path} is damaged: {name} is not the file that was saved ({expected['bytes']} bytes, now "
                f"{(path / name).stat().st_size}); delete the folder to resume from an older one"
            )
    return Checkpoint(path, step, position)


def _read_weights(path: Path, model: Weights) -> dict[str, Tensor]:
    try:
        weights = load_file(path / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path / WEIGHTS} cannot be read: {error}") from error
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if given != expected:
        name = min(name for name in {**given, **expected} if given.get(name) != expected.get(name))
        raise CheckpointError(
            f"{path} is of another model: {name!r} is {given.get(name, 'missing')} in the checkpoint and "
            f"{expected.get(name, 'missing')} here; resume with the model and training mode of the run that saved it"
        )
    return weights


def _read(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _apart(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights on the CPU, each with memory of its own, as safetensors wants them."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in weights.items():
        plain = tensor.detach().cpu().contiguous()
        shared = plain.untyped_storage().data_ptr() in seen
        seen.add(plain.untyped_storage().data_ptr())
        apart[name] = plain.clone() if shared else plain
    return apart


def _rng_state() -> dict[str, Any]:
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _set_rng_state(state: Mapping[str, Any]) -> None:
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def sync(path: Path) -> None:
    """Have a file, or a folder's list of names, on the disk before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
