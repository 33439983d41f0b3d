"""Manifests: the one file that names what runs."""

from tiltyard.manifest.algorithms import ALGORITHM_SECTIONS, AlgorithmSection, GRPOSection
from tiltyard.manifest.loading import load_manifest, manifest_from_text, manifest_from_values, manifest_to_yaml
from tiltyard.manifest.sections import (
    EnvironmentSection,
    EvalSection,
    LoraSection,
    Manifest,
    ModelSection,
    RolloutSection,
    TrainingSection,
)

__all__ = [
    "ALGORITHM_SECTIONS",
    "AlgorithmSection",
    "EnvironmentSection",
    "EvalSection",
    "GRPOSection",
    "LoraSection",
    "Manifest",
    "ModelSection",
    "RolloutSection",
    "TrainingSection",
    "load_manifest",
    "manifest_from_text",
    "manifest_from_values",
    "manifest_to_yaml",
]
