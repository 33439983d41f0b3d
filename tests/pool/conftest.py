"""Pools for the tests of this folder: those over Ray share one cluster, on the loopback address."""

import pytest

from tiltyard import EnvPool, RayOptions

BACKENDS = ["process", pytest.param("ray", marks=pytest.mark.xdist_group("ray"))]


@pytest.fixture(scope="session")
def ray_cluster():
    """A cluster of this machine, started as a pool would start it."""
    pytest.importorskip("ray")
    from tiltyard.envs.pool.ray_session import RaySession  # noqa: PLC0415 - tests without Ray do not wait for it

    session = RaySession(RayOptions())
    yield session.ray
    session.ray.shutdown()


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    """The name of a backend that is ready to be used."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    return request.param


@pytest.fixture
def make_pool():
    """Make pools that are closed after the test."""
    pools = []

    def make(*args, **kwargs):
        pools.append(EnvPool(*args, **kwargs))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
