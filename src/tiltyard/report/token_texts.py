"""What tokens say: the text of each id of a run, from a tokenizer that is on this machine already."""

import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tiltyard._boundary import guarded
from tiltyard.errors import ConfigurationError, ReportError
from tiltyard.models import smollm2

UNREADABLE = "�"


def token_texts(model: str | None, ids: Iterable[int]) -> Mapping[int, str]:
    """Return the text of each id, or nothing where the model's tokenizer is not here: nothing is downloaded for it.

    Args:
        model: The model's name in the manifest.
        ids: The ids to read.
    """
    try:
        return guarded("the tokenizer", ReportError, _texts, model, sorted(set(ids)))
    except (ReportError, ConfigurationError):
        # The report shows ids then, and says so.
        return {}


def _texts(model: str | None, ids: list[int]) -> dict[int, str]:
    file = _tokenizer_file(model) if model and ids else None
    if file is None:
        return {}
    tokenizer: Any = importlib.import_module("tokenizers").Tokenizer.from_file(str(file))
    return {token: _text(tokenizer, token) for token in ids if tokenizer.id_to_token(token) is not None}


def _text(tokenizer: Any, token: int) -> str:
    """A token that is part of a character has no text of its own, and shows the vocabulary's."""
    text = tokenizer.decode([token], skip_special_tokens=False)
    return text if text and UNREADABLE not in text else tokenizer.id_to_token(token)


def _tokenizer_file(model: str) -> Path | None:
    if model.lower() == smollm2.NAME:
        file = smollm2.place_of(smollm2.gguf_path()) / "tokenizer.json"
    elif model.endswith(".gguf"):
        file = smollm2.place_of(Path(model).expanduser()) / "tokenizer.json"
    else:
        file = Path(model).expanduser() / "tokenizer.json"
    if file.is_file():
        return file
    kept = importlib.import_module("huggingface_hub").try_to_load_from_cache(model, "tokenizer.json")
    return Path(kept) if isinstance(kept, str) else None
