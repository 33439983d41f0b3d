"""The optimiser steps in float32, whatever the model's dtype, and leaves norms and biases out of the decay."""

import pytest
import torch
from torch import nn

from tiltyard.errors import CheckpointError, ConfigurationError
from tiltyard.train.optimiser import Optimiser, OptimiserSettings

SETTINGS = OptimiserSettings(learning_rate=1e-3)


def _parameter(dtype=torch.float32, shape=(2, 2)):
    return nn.Parameter(torch.ones(shape, dtype=dtype))


def _step(optimiser, parameter, step, gradient=1.0):
    parameter.grad = torch.full_like(parameter, gradient)
    optimiser.collect()
    optimiser.take(step, optimiser.norm())


@pytest.mark.parametrize("gradient", [1.0, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_many_small_steps_add_up_in_every_dtype(dtype, gradient):
    """One step is less than the weight's rounding in a short float, and 1e-4 squared is nothing in float16."""
    parameter = _parameter(dtype)
    optimiser = Optimiser([parameter], SETTINGS)
    for step in range(1, 101):
        _step(optimiser, parameter, step, gradient)
    assert parameter.dtype == dtype
    assert parameter.detach().flatten().tolist() == pytest.approx([0.9] * 4, abs=0.003)


def test_gradients_of_many_passes_are_added_in_float32():
    """In bfloat16 a pass of 2**-9 after one of 1 would be lost."""
    parameter = _parameter(torch.bfloat16, (1, 1))
    optimiser = Optimiser([parameter], SETTINGS)
    for value in (1.0, 2**-9, 2**-9):
        parameter.grad = torch.full_like(parameter, value)
        optimiser.collect()
    assert (optimiser.norm(), parameter.grad) == (1 + 2**-8, None)


def test_weights_that_were_put_into_the_model_are_stepped_from():
    """The float32 copy never brings back what the model no longer has."""
    parameter = _parameter(torch.bfloat16)
    optimiser = Optimiser([parameter], SETTINGS)
    _step(optimiser, parameter, 1)
    with torch.no_grad():
        parameter.fill_(4.0)
    _step(optimiser, parameter, 2)
    assert parameter.detach().flatten().tolist() == [4.0] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_optimiser_goes_on_as_if_it_had_not_stopped(dtype):
    """What rounding hides in the model's weights is saved with the moments."""
    whole, first = _parameter(dtype), _parameter(dtype)
    unbroken, optimiser = Optimiser([whole], SETTINGS), Optimiser([first], SETTINGS)
    for step in range(1, 4):
        _step(unbroken, whole, step)
        _step(optimiser, first, step)
    second = nn.Parameter(first.detach().clone())
    resumed = Optimiser([second], SETTINGS)
    resumed.load_state_dict(optimiser.state_dict())
    for step in range(4, 20):
        _step(unbroken, whole, step)
        _step(resumed, second, step)
    assert torch.equal(whole, second)
    assert whole.detach().flatten().tolist() != [1.0] * 4


def test_the_state_of_another_dtype_is_refused():
    """A float32 run has no copies that a bfloat16 run could go on from."""
    with pytest.raises(CheckpointError, match="resume with the model, the dtype"):
        Optimiser([_parameter(torch.bfloat16)], SETTINGS).load_state_dict(
            Optimiser([_parameter()], SETTINGS).state_dict()
        )


def test_norms_and_biases_do_not_decay():
    """Only matrices are pulled to 0; without a gradient's pull nothing else changes them."""
    matrix, vector = _parameter(), _parameter(shape=(3,))
    optimiser = Optimiser([vector, matrix], OptimiserSettings(learning_rate=0.1, weight_decay=0.5))
    for parameter in (matrix, vector):
        parameter.grad = torch.zeros_like(parameter)
    optimiser.take(1, optimiser.norm())
    assert matrix.detach().flatten().tolist() == pytest.approx([0.95] * 4)
    assert vector.tolist() == [1.0] * 3


def rates(**settings):
    """The learning rates of the first six steps, as shares of the whole."""
    found = OptimiserSettings(learning_rate=2.0, **settings)
    return [found.learning_rate_at(step) / 2.0 for step in range(1, 7)]


def test_a_constant_rate_stays_after_the_warm_up():
    """The rise ends with the last step of the warm-up."""
    assert rates(warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rates() == [1.0] * 6


def test_a_linear_rate_falls_from_the_warm_up_to_the_last_step():
    """To nothing, or to the share that is to be left; it stays there afterwards."""
    assert rates(warmup_steps=1, schedule="linear", total_steps=5) == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert rates(schedule="linear", total_steps=4, end_share=0.5) == [0.875, 0.75, 0.625, 0.5, 0.5, 0.5]


def test_a_cosine_rate_falls_along_half_a_cosine():
    """Slowly first and last: half is left half way (Loshchilov and Hutter 2017)."""
    found = rates(warmup_steps=1, schedule="cosine", total_steps=5)
    assert found == pytest.approx([1.0, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2, 0.0, 0.0])
    assert rates(schedule="cosine", total_steps=6, end_share=0.2)[-1] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "exponential"}, "schedule must be one of constant, linear, cosine, got 'exponential'"),
        ({"schedule": "linear"}, r"total_steps must be > warmup_steps \(0\), got None"),
        ({"schedule": "cosine", "warmup_steps": 5, "total_steps": 5}, r"warmup_steps \(5\), got 5"),
        ({"end_share": 1.5}, "end_share must be between 0 and 1, got 1.5"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(settings, message):
    """A rate that falls needs to know where it ends."""
    with pytest.raises(ConfigurationError, match=message):
        OptimiserSettings(learning_rate=1.0, **settings)
