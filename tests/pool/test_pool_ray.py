"""What only a cluster has: what it cannot give, where it puts workers, and that it can be lost as a whole."""

import os
import re
import sys

import pytest
from pool_clusters import CLUSTER, run_script
from pool_envs import CountEnv

from tiltyard import ConfigurationError, EnvPool, MissingExtraError, RayOptions

ON_RAY = pytest.mark.xdist_group("ray")


def test_without_ray_the_extra_is_named(tmp_path):
    """And the process backend works."""
    done = run_script(
        tmp_path,
        """
        import sys
        sys.modules["ray"] = None
        from pool_envs import CountEnv
        from tiltyard import EnvPool, MissingExtraError
        if __name__ == "__main__":
            try:
                EnvPool(2, env_factory=CountEnv, backend="ray")
            except MissingExtraError as error:
                print(error)
            with EnvPool(2, env_factory=CountEnv) as pool:
                print(pool.reset(1).observation)
        """,
    )
    assert done.stdout.splitlines() == [
        "'ray' is not installed; install it with: pip install 'tiltyard[ray]'",
        "task None",
    ], done.stderr
    assert issubclass(MissingExtraError, ImportError)


@ON_RAY
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resources": {"GPU": 1}}, "a worker needs 1 GPU, and the biggest of the cluster's 1 machines has 0"),
        ({"num_cpus": 10_000}, r"a worker needs 10000 CPU, and the biggest of the cluster's 1 machines has \d+"),
        ({"resources": {"node:__internal_head__": 0.9}}, "2 workers of 0.9 node:__internal_head__ need 1.8, .* has 1;"),
    ],
)
def test_what_the_cluster_does_not_have_is_told_at_once(options, message):
    """Ray would wait for it for ever."""
    with pytest.raises(ConfigurationError, match=message):
        EnvPool(4, env_factory=CountEnv, num_workers=2, backend="ray", ray=RayOptions(**options))


@ON_RAY
@pytest.mark.usefixtures("ray_cluster")
def test_a_function_of_the_script_makes_environments_over_ray(make_pool):
    """Ray sends by value what cannot be found by name."""
    pool = make_pool(1, env_factory=lambda: CountEnv(41), backend="ray")
    pool.reset(0)
    assert pool.step(0, "add", {}).observation == "42"


@ON_RAY
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_cluster_of_this_machine_listens_on_the_loopback_address_only(ray_cluster):
    """Whoever reaches it may run code in it."""
    del ray_cluster
    daemons = {pid for pid in os.listdir("/proc") if pid.isdigit() and descends(int(pid), os.getpid())}
    inodes = {found for pid in daemons for found in sockets(pid)}
    bound = [address for address, inode in listening() if inode in inodes]
    assert bound != []
    assert [address for address in bound if not address.endswith("0100007F")] == []


@ON_RAY
def test_the_cluster_that_ran_here_last_is_not_waited_for(tmp_path):
    """A cluster that was killed leaves its address behind, and Ray would look there for two minutes."""
    done = run_script(
        tmp_path,
        """
        from pool_envs import CountEnv
        from tiltyard import EnvPool
        if __name__ == "__main__":
            with EnvPool(1, env_factory=CountEnv, backend="ray") as pool:
                print(pool.reset(0).observation)
        """,
        last_cluster="127.0.0.1:9",  # nobody listens there
    )
    assert done.stdout == "task None\n", done.stderr


def descends(pid, ancestor):
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


def sockets(pid):
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            if found := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{name}")):
                yield found[1]
    except OSError:
        return


def listening():
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}") as file:
            for fields in map(str.split, file.readlines()[1:]):
                if fields[3] == "0A":
                    yield fields[1].rpartition(":")[0], fields[9]


@ON_RAY
@pytest.mark.slow
def test_a_machine_that_is_lost_costs_the_slots_of_its_workers_only(tmp_path):
    """Two of a cluster, one of which dies in the middle of a batch of 32; its workers are replaced on the other."""
    done = run_script(
        tmp_path,
        CLUSTER
        + """
        other = cluster.add_node(num_cpus=2)
        cluster.wait_for_nodes()
        options = RayOptions(address=cluster.address, num_cpus=0.5, placement="SPREAD")
        with EnvPool(32, env_factory=CountEnv, num_workers=4, backend="ray", ray=options, step_timeout_s=60) as pool:
            pool.reset_batch(range(32))
            lost = [slot for worker in pool.workers if worker.node == other.node_id for slot in worker.slots]
            threading.Timer(1.0, lambda: cluster.remove_node(other, allow_graceful=False)).start()
            results = pool.step_batch(range(32), ["sleep"] * 32, [{"seconds": 4}] * 32)
            print("LOST:", len(lost))
            failed = [slot for slot, result in enumerate(results) if isinstance(result, ResetNeededError)]
            print("EXACT:", failed == lost, sum(isinstance(result, StepResult) for result in results))
            print("AGAIN:", set(kinds(pool.reset_batch(lost))))
            print("MACHINES:", len({worker.node for worker in pool.workers}))
        ray.shutdown()
        cluster.shutdown()
        """,
    )
    said = dict(re.findall(r"^([A-Z]+): (.*)$", done.stdout, re.MULTILINE))
    assert said == {"LOST": "16", "EXACT": "True 16", "AGAIN": "{'StepResult'}", "MACHINES": "1"}, done.stderr


@ON_RAY
@pytest.mark.slow
def test_a_cluster_that_is_lost_as_a_whole_is_told_and_the_pool_can_be_closed(tmp_path):
    """No call waits for longer than its deadline, and none gives a result."""
    done = run_script(
        tmp_path,
        CLUSTER
        + """
        options = RayOptions(address=cluster.address)
        pool = EnvPool(
            2, env_factory=CountEnv, num_workers=1, backend="ray", ray=options, step_timeout_s=3, start_timeout_s=3
        )
        pool.reset_batch([0, 1])
        head = cluster.head_node
        head.kill_gcs_server()
        head.kill_raylet()
        for pid in [worker.pid for worker in pool.workers if worker.pid]:
            os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        print("STEP", kinds(pool.step_batch([0, 1], ["add"] * 2, [{}] * 2)), flush=True)
        print("RESET", kinds(pool.reset_batch([0])), flush=True)
        try:
            pool.close(2.0)
        finally:
            print("CLOSED", time.monotonic() - began < 30, flush=True)
            os._exit(0)
        """,
    )
    assert "STEP ['ResetNeededError', 'ResetNeededError']" in done.stdout, done.stderr
    assert re.search(r"RESET \['\w+Error'\]", done.stdout), done.stdout
    assert "CLOSED True" in done.stdout, done.stdout
