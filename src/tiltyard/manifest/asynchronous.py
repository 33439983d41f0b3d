"""What goes with `training.asynchronous`: a correction for samples of older weights."""

from collections.abc import Iterator, Mapping
from typing import Any

from tiltyard.manifest.algorithms import PolicyGradientSection
from tiltyard.manifest.sections import Manifest
from tiltyard.manifest.yaml_text import Problem

SAMPLER_CAP = 2.0
"""The `algorithm.sampler_cap` of an asynchronous run that does not say it."""


def correct_samples(tree: dict[str, Any]) -> None:
    """Switch the correction on in a manifest's tree that is asynchronous and says nothing of it."""
    training, environment = tree.get("training"), tree.get("environment")
    if not isinstance(training, Mapping) or training.get("asynchronous") is not True:
        return
    algorithm = tree.get("algorithm") or {}
    of_rows = isinstance(environment, Mapping) and environment.get("env_type") == "dataset"
    if of_rows or not isinstance(algorithm, Mapping):
        return
    given = {key: value for key, value in algorithm.items() if value is not None}
    if given.setdefault("old_logprobs", "trainer") == "trainer":
        given.setdefault("sampler_cap", SAMPLER_CAP)
    tree["algorithm"] = given


def asynchronous_problems(manifest: Manifest) -> Iterator[Problem]:
    """What does not go with `training.asynchronous`."""
    if not manifest.training.asynchronous:
        return
    algorithm = manifest.algorithm
    if not isinstance(algorithm, PolicyGradientSection):
        yield Problem("training.asynchronous", "only with env_type: rollout; rows are not sampled")
    elif algorithm.old_logprobs != "trainer":
        yield Problem(
            "algorithm.old_logprobs",
            "must be trainer with training.asynchronous: true, since samples of older weights are weighed with the "
            f"trainer's probabilities over the sampler's, got {algorithm.old_logprobs}",
        )
    elif algorithm.sampler_cap is None:
        yield Problem("algorithm.sampler_cap", "must be given with training.asynchronous: true, such as 2")
