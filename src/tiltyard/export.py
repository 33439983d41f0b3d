"""What a run learned, as a folder that transformers or peft loads: whole or not there."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiltyard._optional import require
from tiltyard.build import trainable_model
from tiltyard.errors import CheckpointError, ConfigurationError
from tiltyard.manifest.resuming import manifest_of

# What needs torch is imported by the functions that need it.
# ruff: noqa: PLC0415

LAST, BEST = "last", "best"


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written.

    Attributes:
        path: The folder.
        kind: "model" for a whole model, "adapter" for what peft puts beside one.
        step: The steps that its weights were trained for.
        files: What is in it, by name, with its bytes.
    """

    path: Path
    kind: str
    step: int
    files: dict[str, int]

    def __str__(self) -> str:
        size = sum(self.files.values()) / 1e6
        return f"{self.path}: {self.kind} after step {self.step}, {len(self.files)} files, {size:.1f} MB"


def export_run(
    run: str | os.PathLike[str], out: str | os.PathLike[str], *, checkpoint: str = LAST, merge: bool = False
) -> Exported:
    """Write the model of a run as a plain transformers folder, or as a peft folder where an adapter was trained.

    The tokenizer is in it too, with the chat template that the run used.

    Args:
        run: The run's folder.
        out: The folder to make; nothing may be there.
        checkpoint: "last", "best", or the number of a step that the run has a checkpoint of.
        merge: Put a trained adapter into the weights, and write a whole model.

    Raises:
        ConfigurationError: There is no run, or something is at `out` already.
        CheckpointError: The run has no such checkpoint, or it is damaged.
        MissingExtraError: The `train` extra is not installed.
    """
    require("torch", "train")
    from tiltyard.models.loading import load_model
    from tiltyard.train.checkpoint import load_weights, step_of

    source, target = Path(run), Path(out).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigurationError(f"{target} is there already; export into a folder that is not")
    manifest = manifest_of(source)
    if merge and manifest.model.train != "lora":
        raise ConfigurationError(f"merge is for a trained adapter, and this run trained {manifest.model.train!r}")
    chosen = find_checkpoint(source, checkpoint)
    loaded = load_model(manifest.model.name, dtype=manifest.model.dtype, device="cpu")
    trainable = trainable_model(manifest, loaded.model)
    load_weights(chosen, trainable)
    partial = target.with_name(f".partial-{target.name}-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        adapter = manifest.model.train == "lora" and not merge
        _write(trainable, partial, merge=merge)
        loaded.tokenizer.save_pretrained(partial)
        _put(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    files = {
        path.relative_to(target).as_posix(): path.stat().st_size for path in sorted(target.rglob("*")) if path.is_file()
    }
    return Exported(target, "adapter" if adapter else "model", step_of(chosen), files)


def find_checkpoint(run: Path, which: str) -> Path:
    """The checkpoint of a run folder: "last", "best", or that of a step.

    Raises:
        CheckpointError: The run has no such checkpoint; the message says which it has.
    """
    from tiltyard.train.checkpoint import best_checkpoint, newest_checkpoint, saved_steps, step_of

    folder = run / "checkpoints"
    steps = saved_steps(folder)
    newest, best = newest_checkpoint(folder), best_checkpoint(folder)
    if newest is None:
        raise CheckpointError(f"{run.absolute()} has no checkpoint; a run saves one each training.save_every steps")
    if which == LAST:
        return newest
    if which == BEST:
        if best is None:
            raise CheckpointError(
                f"{run.absolute()} has no best checkpoint: it was never evaluated after a step; give last"
            )
        return best
    if not which.isdecimal() or int(which) not in steps:
        known = ", ".join(map(str, steps)) + (f" (the best is {step_of(best)})" if best else "")
        raise CheckpointError(f"the checkpoint must be last, best or a step that the run has ({known}), got {which!r}")
    return newest.with_name(f"step-{int(which):08d}")


def _write(trainable: Any, folder: Path, *, merge: bool) -> None:
    if merge:
        trainable.model.merge_and_unload().save_pretrained(folder)
    else:
        trainable.export(folder)


def _put(partial: Path, target: Path) -> None:
    """Have every file on the disk, then give the folder its name."""
    from tiltyard.train.checkpoint import sync

    for path in (*partial.rglob("*"), partial):
        sync(path)
    if target.exists():
        target.rmdir()
    partial.rename(target)
    sync(target.parent)
