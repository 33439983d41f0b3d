"""Manifests: the one file that names what runs."""

from tiltyard.manifest.loading import load_manifest, manifest_from_text, manifest_to_yaml
from tiltyard.manifest.sections import (
    AlgorithmSection,
    EnvironmentSection,
    EvalSection,
    LoraSection,
    Manifest,
    ModelSection,
    RolloutSection,
    TrainingSection,
)

__all__ = [
    "AlgorithmSection",
    "EnvironmentSection",
    "EvalSection",
    "LoraSection",
    "Manifest",
    "ModelSection",
    "RolloutSection",
    "TrainingSection",
    "load_manifest",
    "manifest_from_text",
    "manifest_to_yaml",
]
