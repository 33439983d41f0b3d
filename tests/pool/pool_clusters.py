"""Scripts with a cluster of their own, some of them of two machines that are one."""

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

HERE = os.path.dirname(__file__)


def run_script(folder, text, timeout_s=100, last_cluster=None):
    """A script of its own, with Ray on the loopback address and its files in a folder that is removed."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    env = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "PYTHONWARNINGS": "ignore"}
    env["PYTHONPATH"] = os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])])
    # The path of a socket has 107 characters at most.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as short:
        if last_cluster is not None:
            Path(short, "ray_current_cluster").write_text(last_cluster)
        env["RAY_TMPDIR"] = short
        command = [sys.executable, str(path)]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout_s, cwd=folder, env=env
        )


CLUSTER = """
    import os, signal, threading, time
    import ray
    from ray.cluster_utils import Cluster
    from pool_envs import CountEnv
    from tiltyard import EnvPool, RayOptions, ResetNeededError, StepResult

    def kinds(results):
        return [type(result).__name__ for result in results]

    if __name__ == "__main__":
        cluster = Cluster(initialize_head=True, connect=False, head_node_args={"num_cpus": 2})
    """
