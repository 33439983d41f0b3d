"""How slots are shared out, and what a pool refuses before it starts anything."""

from functools import partial

import pytest
from pool_envs import CountEnv, LoneEnv

import tiltyard
from tiltyard import ConfigurationError, DeviceMesh, EnvPool, OpenEnvClient, RayOptions, RemoteEnvClient, ToolManager
from tiltyard.envs.pool.layout import shares, worker_count


@pytest.mark.parametrize(
    ("slots", "workers", "owned"),
    [
        (64, 8, [8] * 8),
        (10, 4, [3, 3, 3, 1]),
        (5, 4, [2, 2, 1]),
        (1, 1, [1]),
    ],
)
def test_each_worker_owns_its_share_of_the_slots(slots, workers, owned):
    """`ceil(slots / workers)` each, the last what is left; a worker for which nothing is left is not started."""
    ranges = shares(slots, workers)
    assert [len(share) for share in ranges] == owned
    assert [slot for share in ranges for slot in share] == list(range(slots))


def test_a_device_mesh_says_how_many_workers_there_are():
    """The product of its sizes."""
    assert DeviceMesh.from_sizes(dp_size=4, tp_size=2).world_size == 8
    assert DeviceMesh.from_sizes(world_size=4).world_size == 4
    assert DeviceMesh({"dp": 3}).world_size == 3
    assert DeviceMesh().world_size == 1


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"dp": 4}, "sizes such as dp_size=8, got 'dp'"),
        ({"dp_size": 0}, "axis 'dp' must be a whole number >= 1, got 0"),
        ({"world_size": 6, "dp_size": 4}, "world_size is 6, but the product"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(sizes, message):
    """A size below 1, a name that is none, a product that is another."""
    with pytest.raises(ConfigurationError, match=message):
        DeviceMesh.from_sizes(**sizes)


def test_a_mesh_of_sizes_without_names_is_refused():
    """Each axis has one."""
    with pytest.raises(ConfigurationError, match=r"sizes must be a dict such as \{'dp': 8\}, got \[8\]"):
        DeviceMesh([8])


@pytest.mark.parametrize(
    ("given", "workers"),
    [
        ({}, 6),
        ({"num_workers": 3}, 3),
        ({"device_mesh": DeviceMesh({"dp": 4})}, 4),
        ({"num_workers": 4, "device_mesh": DeviceMesh({"dp": 4})}, 4),
        ({"own_process": True}, 16),
    ],
)
def test_the_number_of_workers_is_what_was_asked_for(given, workers):
    """num_workers, else the mesh's, else as there is room for; one for each slot where environments ask for it."""
    full = {"num_workers": None, "device_mesh": None, "own_process": False, **given}
    assert worker_count(16, **full, at_hand=6) == workers


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pool_size": 0}, "pool_size must be a whole number >= 1, got 0"),
        ({"pool_size": 2.0}, "pool_size must be a whole number >= 1, got 2.0"),
        ({"num_workers": 0}, "num_workers must be a whole number >= 1, got 0"),
        ({"num_workers": 5}, "pool_size must be at least the number of workers, got 4 slots for 5 workers"),
        ({"device_mesh": DeviceMesh({"dp": 8})}, "got 4 slots for 8 workers"),
        ({"device_mesh": "dp"}, "device_mesh must have a world_size"),
        ({"num_workers": 2, "device_mesh": DeviceMesh({"dp": 4})}, "num_workers is 2 and device_mesh has 4"),
        ({"env_factory": LoneEnv, "num_workers": 2}, "process of its own .*need 4 workers, got 2"),
        ({"env_factory": None}, "give env_factory, .* or env_kwargs, the arguments of OpenEnv"),
        ({"env_factory": CountEnv()}, "one that is made already cannot be moved to a worker"),
        ({"env_kwargs": ["start"]}, "env_kwargs must be a dict"),
        ({"env_factory": lambda: CountEnv(1)}, "the environment cannot be sent to a worker: .*at the top of a module"),
        ({"backend": "threads"}, "backend must be 'process' or 'ray', got 'threads'"),
        ({"ray": RayOptions()}, "write backend='ray'"),
        ({"step_timeout_s": 0}, "step_timeout_s must be a number > 0, or None for no bound, got 0"),
        ({"step_timeout_s": True}, "step_timeout_s must be a number > 0, or None for no bound, got True"),
        ({"start_timeout_s": "2"}, "start_timeout_s must be a number > 0, or None for no bound, got '2'"),
        ({"env_factory": OpenEnvClient}, "OpenEnvClient cannot be pooled: its session already lives on a server"),
        ({"env_factory": partial(RemoteEnvClient, "ws://x")}, "RemoteEnvClient cannot be pooled: its session already"),
        ({"env_factory": ToolManager}, "a ToolManager cannot be pooled: it is a set of tools"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_started(given, message):
    """The message says what was given and what to do."""
    with pytest.raises(ConfigurationError, match=message):
        EnvPool(**{"pool_size": 4, "env_factory": CountEnv, **given})


def test_a_misspelt_argument_is_refused():
    """None is swallowed."""
    with pytest.raises(TypeError, match="pool_sise"):
        EnvPool(pool_sise=4, env_factory=CountEnv)


@pytest.mark.skipif(not hasattr(tiltyard, "AgentEnv"), reason="there are no sandboxes in this version")
def test_sandboxes_are_not_pooled():
    """They live on a server already."""
    with pytest.raises(ConfigurationError, match="AgentEnv cannot be pooled: "):
        EnvPool(4, env_factory=tiltyard.AgentEnv)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"placement": "ANY"}, "placement must be 'SPREAD' or 'PACK', got 'ANY'"),
        ({"num_cpus": -1}, "a worker's CPU must be a number >= 0, got -1"),
        ({"resources": {"GPU": "1"}}, "a worker's GPU must be a number >= 0, got '1'"),
    ],
)
def test_ray_options_that_cannot_be_are_refused(options, message):
    """Before Ray is asked for anything."""
    with pytest.raises(ConfigurationError, match=message):
        RayOptions(**options)
