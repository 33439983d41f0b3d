"""Worker processes: how they start, what of the user's program they see, and that none is left behind."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from pool_envs import CountEnv, FailsOnce, LoneEnv, NeverMade

from tiltyard import ConfigurationError, EnvError, EnvPool, EnvTimeoutError, ResetNeededError

ANY_TIME_S = 30.0


def alive(pid):
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids):
    end = time.monotonic() + ANY_TIME_S
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(alive, pids))


def run_script(folder, text, **options):
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=60, cwd=folder, **options
    )


def test_progress_is_told_while_the_pool_starts(make_pool):
    """How many environments are ready, and of how many."""
    told = []
    make_pool(5, env_factory=CountEnv, num_workers=2, progress=lambda *numbers: told.append(numbers))
    assert told == [(3, 5), (5, 5)]


def test_an_environment_may_ask_for_a_process_of_its_own(make_pool):
    """`own_process = True` in its class: one that hangs or dies costs no neighbour."""
    pool = make_pool(3, env_factory=LoneEnv)
    assert pool.num_workers == 3
    pool.reset_batch(range(3))
    results = pool.step_batch(range(3), ["add", "die", "add"], [{}] * 3)
    assert [type(result).__name__ for result in results] == ["StepResult", "ResetNeededError", "StepResult"]
    assert pool.step(0, "add", {}).observation == "2"


def test_a_constructor_that_raises_on_one_worker_closes_the_others(tmp_path):
    """The error names the slot and holds the worker's traceback; environments that were made are closed."""
    log = tmp_path / "closed"
    with pytest.raises(EnvError, match=r"slot \d \(worker \d\): FailsOnce\(\) raised LookupError: ") as caught:
        EnvPool(4, env_factory=FailsOnce, env_kwargs={"log": str(log)}, num_workers=4)
    assert "raise LookupError" in str(caught.value.__cause__)


def test_a_worker_that_ends_while_it_starts_is_told(tmp_path):
    """With how it ended."""
    with pytest.raises(EnvError, match=r"worker 0 could not be started: process \d+ ended with exit code 5"):
        EnvPool(1, env_factory=NeverMade, env_kwargs={"how": "exit"})


def test_a_constructor_that_hangs_is_given_up():
    """After start_timeout_s."""
    with pytest.raises(EnvTimeoutError, match=r"worker 0 .* was not ready within start_timeout_s=1"):
        EnvPool(1, env_factory=NeverMade, env_kwargs={"how": "hang"}, start_timeout_s=1.0)


def test_a_worker_that_cannot_be_replaced_is_tried_again_at_each_reset(make_pool, tmp_path):
    """The reset tells why there is none; when the cause is gone, it works."""
    log = tmp_path / "log"
    (tmp_path / "log.made").write_text("xx")
    pool = make_pool(1, env_factory=FailsOnce, env_kwargs={"log": str(log)})
    pool.reset(0)
    (tmp_path / "log.made").write_text("x")
    with pytest.raises(ResetNeededError):
        pool.step(0, "die", {})
    with pytest.raises(EnvError, match="LookupError"):
        pool.reset(0)
    assert pool.reset(0).observation == "task None"


def test_a_call_that_is_interrupted_leaves_its_slots_in_need_of_a_reset(make_pool):
    """Ctrl-C in the middle of a batch: what its slots have done by then nobody knows."""
    pool = make_pool(2, env_factory=CountEnv, num_workers=1)
    pool.reset_batch([0, 1])
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        pool.step(0, "sleep", {"seconds": 2})
    with pytest.raises(ResetNeededError):
        pool.step(0, "add", {})
    assert pool.step(1, "add", {}).observation == "1"
    assert pool.reset(0).observation == "task None"


def test_slots_of_one_worker_are_called_from_many_threads(make_pool):
    """A step that takes long holds up its own slot only."""
    pool = make_pool(3, env_factory=CountEnv, num_workers=1)
    pool.reset_batch(range(3))
    slow = threading.Thread(target=pool.step, args=(0, "sleep", {"seconds": 1.0}))
    slow.start()
    assert [pool.step(1, "add", {}).observation for _ in range(50)] == [str(number) for number in range(1, 51)]
    assert slow.is_alive()
    slow.join()


def test_each_thread_gets_its_own_answers(make_pool):
    """Eight threads on one worker, whose answers come in any order: none is lost, none is somebody else's."""
    pool = make_pool(8, env_factory=CountEnv, num_workers=1)
    pool.reset_batch(range(8))
    seen = {}

    def play(slot):
        draw = random.Random(slot)
        for number in range(1, 101):
            pool.step(slot, "sleep", {"seconds": draw.random() / 500})
            seen[slot, number] = int(pool.step(slot, "add", {}).observation)

    threads = [threading.Thread(target=play, args=(slot,)) for slot in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {(slot, number): 2 * number for slot in range(8) for number in range(1, 101)}


@pytest.mark.parametrize("bound", [None, float("inf"), 1e12])
def test_calls_that_run_for_long_end_nothing_without_a_deadline(make_pool, bound):
    """`step_timeout_s=None` waits as long as it takes, as does a bound that no clock counts to."""
    pool = make_pool(1, env_factory=CountEnv, step_timeout_s=bound, start_timeout_s=bound)
    pool.reset(0)
    assert pool.step(0, "sleep", {"seconds": 0.2}).observation == "slept"


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_workers_end_with_the_process_that_started_them(tmp_path, stopped):
    """Even when it is killed, and even one that hangs."""
    script = f"""
        import os, signal, sys
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from pool_envs import CountEnv
        from tiltyard import EnvPool
        if __name__ == "__main__":
            pool = EnvPool(2, env_factory=CountEnv, num_workers=2)
            print(*[worker.pid for worker in pool.workers], flush=True)
            if {stopped}:
                os.kill(pool.workers[1].pid, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGKILL)
        """
    done = run_script(tmp_path, script)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    assert gone(pids)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_what_an_environment_starts_ends_with_its_worker(make_pool):
    """A worker that is killed takes the programs with it that its environments started."""
    pool = make_pool(1, env_factory=CountEnv)
    pool.reset(0)
    child = int(pool.step(0, "spawn", {}).observation)
    assert alive(child)
    with pytest.raises(ResetNeededError):
        pool.step(0, "die", {})
    assert gone([child])


def test_a_pool_that_is_not_closed_leaves_nothing_at_the_end_of_the_process(tmp_path):
    """Its workers are leases: they are released at exit."""
    script = f"""
        import sys
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from pool_envs import CountEnv
        from tiltyard import EnvPool
        if __name__ == "__main__":
            pool = EnvPool(2, env_factory=CountEnv, num_workers=2)
            print(*[worker.pid for worker in pool.workers], flush=True)
        """
    done = run_script(tmp_path, script)
    assert done.returncode == 0, done.stderr
    assert gone([int(pid) for pid in done.stdout.split()])


SCRIPT = """
    import sys
    from tiltyard import Env, EnvPool, StepResult

    class Mine(Env):
        def step(self, tool_name, arguments):
            return StepResult(f"{tool_name} in {__name__}")

    def run():
        with EnvPool(2, env_factory=Mine, num_workers=2) as pool:
            print(pool.step_batch([1, 0], ["b", "a"], [{}, {}]))
    """


def test_an_environment_may_be_defined_in_the_script_that_is_run(tmp_path):
    """Workers execute the script, but not what stands under `if __name__ == "__main__":`."""
    done = run_script(tmp_path, SCRIPT + "\n    if __name__ == '__main__':\n        run()\n")
    assert "'b in __mp_main__'" in done.stdout, done.stderr
    assert "'a in __mp_main__'" in done.stdout


def test_a_script_without_that_line_is_told_to_have_it(tmp_path):
    """And does not start workers that start workers."""
    done = run_script(tmp_path, SCRIPT + "\n    run()\n")
    assert "write what starts the run under: if __name__ == '__main__':" in done.stderr.replace("\n", " ")
    assert done.returncode != 0


def test_an_environment_of_an_interactive_session_is_refused():
    """A worker could not find it."""
    script = textwrap.dedent(SCRIPT) + "\nrun()\n"
    done = subprocess.run(
        [sys.executable], input=script, capture_output=True, text=True, check=False, timeout=60, cwd=os.getcwd()
    )
    assert "is defined in an interactive session" in done.stderr


def test_a_request_that_nobody_reads_is_given_up(make_pool):
    """A worker that is stopped takes no more than the socket holds; the deadline holds for sending too."""
    pool = make_pool(1, env_factory=CountEnv, step_timeout_s=1.0)
    pool.reset(0)
    os.kill(pool.workers[0].pid, signal.SIGSTOP)
    with pytest.raises(ResetNeededError, match="did not take a request within 1 s and was killed"):
        pool.step(0, "add", {"number": "x" * 5_000_000})
    assert pool.reset(0).observation == "task None"


def test_what_is_sent_may_be_large(make_pool):
    """More than a socket holds, both ways."""
    pool = make_pool(1, env_factory=CountEnv)
    assert len(pool.reset(0, {"text": "x" * 3_000_000}).observation) > 3_000_000


def test_a_backend_that_is_none_is_refused_by_the_name_of_those_that_are():
    """Before anything is started."""
    with pytest.raises(ConfigurationError, match="'process' or 'ray'"):
        EnvPool(1, env_factory=CountEnv, backend="Process")
