"""Sessions: isolated, never shared, never silently replaced."""

import gc
import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from openenv_servers import RealServers, wait_until
from websockets.sync.server import serve

from tiltyard import ConfigurationError, EnvError, EnvTimeoutError, LostSessionError, ServerFullError
from tiltyard.envs.openenv.held import session_report
from tiltyard.envs.openenv.options import SessionOptions
from tiltyard.envs.openenv.session import Session


def session(url, **bounds):
    return Session(url, SessionOptions(**{"connect_timeout_s": 5.0, **bounds}))


@pytest.fixture
def odd(real_servers):
    """A session on the environment that does what it is told."""
    opened = session(real_servers.url("odd"))
    yield opened
    opened.close()


def test_making_a_session_needs_no_server():
    """It is dialled when it is first needed."""
    made = session("http://127.0.0.1:9")
    assert not made.is_open
    made.close()


def test_an_episode_over_the_wire(odd):
    """Reward and done are of the envelope, metadata beside it."""
    assert odd.reset(seed=3).observation["text"] == "seed 3, options []"
    raw = odd.step({"message": "hello"})
    assert (raw.observation["text"], raw.reward, raw.done) == ("hello 1", 0.5, False)
    raw = odd.step({"message": "end"})
    assert (raw.reward, raw.done, raw.metadata) == (2.0, True, {"answer": 42})
    assert odd.state()["step_count"] == 2


def test_a_step_that_times_out_ends_the_session(real_servers, odd):
    """OE-01: its late answer can never be taken for that of the next step; only a reset opens another session."""
    slow = session(real_servers.url("odd"), message_timeout_s=1.5)
    slow.reset()
    with pytest.raises(EnvTimeoutError, match=r"within 1\.5 s"):
        slow.step({"message": "one", "seconds": 3.0})
    time.sleep(2.0)
    with pytest.raises(LostSessionError, match="reset"):
        slow.step({"message": "two"})
    slow.reset()
    assert slow.step({"message": "three"}).observation["text"] == "three 1"
    slow.close()


def test_a_session_that_was_interrupted_is_dead(real_servers):
    """OE-01: whatever interrupts the wait, the answer is not left in the socket."""
    held = session(real_servers.url("odd"))
    held.reset()
    closing = threading.Timer(0.2, held.close)
    closing.start()
    with pytest.raises(LostSessionError, match="closed"):
        held.step({"message": "one", "seconds": 1.0})
    closing.join()


def closed_while_it_opens(url, reached):
    """Close a session once its server was reached; the error of who waited for it."""
    held = session(url, connect_timeout_s=60.0)
    raised = []

    def reset():
        try:
            held.reset()
        except LostSessionError as error:
            raised.append(str(error))

    waiting = threading.Thread(target=reset)
    waiting.start()
    assert reached.wait(60)
    held.close()
    waiting.join(60)
    assert not held.is_open
    return raised


def test_closing_a_session_that_is_being_opened_calls_it_off():
    """Whoever waits for it learns of it at once, and no session is left on the server."""
    leased = session_report().acquired
    reached, done = threading.Event(), threading.Event()

    def say_nothing():
        taken, _ = silent.accept()
        reached.set()
        done.wait(60)
        taken.close()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        thread = threading.Thread(target=say_nothing)
        thread.start()
        (told,) = closed_while_it_opens(f"http://127.0.0.1:{silent.getsockname()[1]}", reached)
        done.set()
        thread.join()
    assert "was closed" in told

    def never_ready(asking):
        asking.recv()
        reached.set()
        done.wait(60)

    reached.clear(), done.clear()
    with serve(never_ready, "127.0.0.1", 0) as server:  # its environment takes for ever to be made
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        (told,) = closed_while_it_opens(f"http://127.0.0.1:{server.socket.getsockname()[1]}", reached)
        done.set()
        server.shutdown()
        thread.join()
    assert "was closed" in told
    assert session_report().acquired == leased


def test_a_server_that_went_away_between_episodes_is_dialled_anew_by_reset(strange):
    """OE-02 a: a reset may be sent again, on a session that is new."""
    held = session(strange)
    held.reset()
    with pytest.raises(LostSessionError, match=r"1001.*restarting"):
        held.step({"message": "restart"})
    with pytest.raises(LostSessionError):
        held.step({"message": "again"})
    held.reset()
    assert held.step({"message": "here"}).observation == {"message": "here"}
    held.close()


def test_clients_come_back_when_their_server_does(scaffolds):
    """OE-02 c: a step is lost and not sent again; each reset waits for the server, with bounded back-off."""
    servers = RealServers(scaffolds)
    held = [session(servers.url("odd"), connect_timeout_s=60.0) for _ in range(4)]
    for one in held:
        one.reset()
    servers.kill()
    for one in held:
        with pytest.raises(LostSessionError):
            one.step({"message": "lost"})
    back = threading.Thread(target=servers.start)
    back.start()
    again = [threading.Thread(target=one.reset) for one in held]
    for thread in again:
        thread.start()
    for thread in [*again, back]:
        thread.join()
    assert [one.step({"message": "new"}).observation["text"] for one in held] == ["new 1"] * 4
    for one in held:
        one.close()
    wait_until(lambda: servers.active("odd") == 0, what="an empty server")
    servers.kill()


def test_a_full_server_says_so_with_both_numbers(real_servers):
    """OE-04 a: not "connection closed", not a time-out."""
    held = [session(real_servers.url("pair"), capacity_timeout_s=0.2) for _ in range(3)]
    held[0].reset()
    held[1].reset()
    with pytest.raises(ServerFullError, match=r"2/2 sessions active.*max_concurrent_envs") as caught:
        held[2].reset()
    assert (caught.value.active_sessions, caught.value.max_sessions) == (2, 2)
    for one in held:
        one.close()


def test_a_full_server_is_waited_for(real_servers):
    """OE-04 a: whoever comes later gets the place of who leaves."""
    first, second = (session(real_servers.url("single"), capacity_timeout_s=30.0) for _ in range(2))
    first.reset()
    leaving = threading.Timer(0.3, first.close)
    leaving.start()
    assert second.reset(seed=2).observation["text"] == "seed 2, options []"
    leaving.join()
    second.close()


def test_a_session_that_is_dropped_without_close_is_given_back(real_servers):
    """OE-04 b: garbage collection closes it."""
    dropped = session(real_servers.url("single"))
    dropped.reset()
    del dropped
    gc.collect()
    wait_until(lambda: real_servers.active("single") == 0, what="a free place")


def test_sessions_are_given_back_at_the_end_of_the_process(real_servers):
    """Without a close, and without a wait for what does not come."""
    code = f"from tiltyard.envs.openenv.session import Session; s = Session({real_servers.url('tools')!r}); s.reset()"
    subprocess.run([sys.executable, "-c", code], check=True)
    wait_until(lambda: real_servers.active("tools") == 0, what="an empty server")


def test_a_server_sees_a_killed_process_go(real_servers):
    """Nobody says good-bye; the socket does."""
    code = (
        "import os, signal; from tiltyard.envs.openenv.session import Session; "
        f"s = Session({real_servers.url('single')!r}); s.reset(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode != 0
    wait_until(lambda: real_servers.active("single") == 0, what="an empty server")


def test_two_threads_on_one_session_are_refused(odd):
    """Each would get the other's answer."""
    odd.reset()
    busy = threading.Thread(target=odd.step, args=({"message": "one", "seconds": 0.5},))
    busy.start()
    wait_until(odd._in_use.locked)
    with pytest.raises(ConfigurationError, match="two threads"):
        odd.step({"message": "two"})
    busy.join()


def test_close_may_be_called_twice(real_servers):
    """And a session that was closed can be opened again by a reset."""
    held = session(real_servers.url("odd"))
    held.reset()
    held.close()
    held.close()
    with pytest.raises(LostSessionError, match="closed"):
        held.step({"message": "x"})
    held.reset()
    held.close()


def test_a_forked_child_has_a_loop_and_sessions_of_its_own(real_servers):
    """It never writes into the parent's socket."""
    code = f"""
import os
from tiltyard.envs.openenv.session import Session
from tiltyard.errors import LostSessionError
held = Session({real_servers.url("odd")!r})
held.reset()
child = os.fork()
if child == 0:
    try:
        held.step({{"message": "mine"}})
    except LostSessionError as error:
        assert "forked" in str(error), error
        held.reset()
        assert held.step({{"message": "own"}}).observation["text"] == "own 1"
        held.close()
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert held.step({{"message": "still"}}).observation["text"] == "still 1"
held.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_threads_do_not_grow_with_sessions(real_servers):
    """One loop for all sessions of a process."""
    first = session(real_servers.url("odd"))
    first.reset()
    before = threading.active_count()
    more = [session(real_servers.url("odd")) for _ in range(40)]
    for one in more:
        one.reset()
    assert threading.active_count() == before
    for one in [first, *more]:
        one.close()


def test_every_session_is_a_lease(real_servers):
    """What was opened is counted, and what is still open."""
    before = session_report()
    held = session(real_servers.url("odd"))
    held.reset()
    assert session_report().acquired == before.acquired + 1
    assert session_report().leaked == before.leaked + 1
    held.close()
    assert session_report().leaked == before.leaked


def test_the_proxy_is_not_asked_for_this_machine(real_servers):
    """OE-03: a proxy variable does not swallow a connection to localhost."""
    code = f"from tiltyard.envs.openenv.session import Session; Session({real_servers.url('odd')!r}).reset()"
    dead = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **dead, "NO_PROXY": ""})


def test_a_large_answer_arrives_and_one_that_is_too_large_is_named(real_servers):
    """5 MB are fine; beyond the limit the session ends and the message says what to raise."""
    held = session(real_servers.url("odd"))
    held.reset()
    assert len(held.step({"message": "big"}).observation["text"]) == 5_000_000
    held.close()
    small = session(real_servers.url("odd"), max_message_bytes=1_000_000)
    small.reset()
    with pytest.raises(EnvError, match=r"sent an answer of more than 1000000 bytes; .*max_message_size_mb"):
        small.step({"message": "big"})
    assert not small.is_open
    small.close()


def test_an_action_that_is_too_large_is_not_taken_for_an_answer(real_servers):
    """Either side closes with the same code; who began says whose message it was."""
    held = session(real_servers.url("odd"))
    held.reset()
    with pytest.raises(EnvError, match="refused an action as too large"):
        held.step({"message": "x" * 20_000_000})
    held.reset(seed=1)
    held.close()


def test_an_environment_that_cannot_be_made_is_not_tried_for_ever(real_servers):
    """The server says why it could not; a retry would not help."""
    with pytest.raises(EnvError, match="could not make its environment"):
        session(real_servers.url("broken")).reset()


def test_construction_counts_against_the_time_of_an_answer(real_servers):
    """The bound must be above it."""
    with pytest.raises(EnvTimeoutError, match="construction"):
        session(real_servers.url("slow"), message_timeout_s=0.2).reset()
    held = session(real_servers.url("slow"), message_timeout_s=10.0)
    assert held.reset(seed=1).observation["text"] == "seed 1, options []"
    held.close()


def test_a_wrong_path_is_told(real_servers):
    """And not tried again: it is a mistake."""
    with pytest.raises(ConfigurationError, match="no OpenEnv server at this path"):
        session(real_servers.url("nowhere")).reset()


def test_https_to_a_server_of_http_is_told(real_servers):
    """With what to write."""
    with pytest.raises(ConfigurationError, match="write http://"):
        session(real_servers.url("odd").replace("http:", "https:")).reset()


def test_a_server_of_something_else_is_told():
    """It does not speak the protocol."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"

        def say_no():
            for _ in range(2):
                taken, _ = listening.accept()
                taken.recv(1000)
                taken.sendall(b"SSH-2.0-no\r\n\r\n")
                taken.close()

        threading.Thread(target=say_no, daemon=True).start()
        with pytest.raises(ConfigurationError, match="does not speak WebSocket"):
            session(url).reset()


def test_a_server_that_is_not_there_is_tried_for_the_time_given():
    """The message names the URL and the time; the episode fails, the run does not."""
    with pytest.raises(LostSessionError, match=r"ws://127\.0\.0\.1:9/ws cannot be reached.*tried for 0\.1 s"):
        session("http://127.0.0.1:9", connect_timeout_s=0.1).reset()


@pytest.mark.parametrize(
    ("word", "message"),
    [("not json", "not JSON"), ("a list", "a JSON list"), ("another kind", "frame of type 'state'")],
)
def test_an_answer_that_breaks_the_protocol_ends_the_session(strange, word, message):
    """What follows in the socket cannot be trusted."""
    held = session(strange)
    held.reset()
    with pytest.raises(EnvError, match=message):
        held.step({"message": word})
    assert not held.is_open
    held.close()


def test_an_answer_that_nobody_asked_for_ends_the_session(strange):
    """Else every later answer would be that of the step before."""
    held = session(strange)
    held.reset()
    assert held.step({"message": "twice"}).observation == {"message": "first"}
    wait_until(lambda: not held.is_open)  # the second frame may still be on its way
    with pytest.raises(LostSessionError, match="nobody asked for"):
        held.step({"message": "x"})
    held.close()


def test_an_answer_in_fragments_is_one_answer(strange):
    """Servers may send a message in pieces."""
    held = session(strange)
    held.reset()
    assert held.step({"message": "in pieces"}).observation == {"message": "whole"}
    held.close()


def test_lone_surrogates_pass_both_ways(strange):
    """OB-02: they are no reason to lose an episode."""
    held = session(strange)
    held.reset()
    assert held.step({"message": "\ud83e out"}).observation == {"message": "\ufffd out"}
    assert held.step({"message": "surrogate"}).observation == {"message": "\ud83e tail"}
    held.close()


def test_an_action_that_is_no_json_is_told(odd):
    """Before it is sent."""
    odd.reset()
    with pytest.raises(EnvError, match="cannot be sent as JSON"):
        odd.step({"message": object()})
    assert odd.step({"message": "fine"}).observation["text"] == "fine 1"


def test_many_sessions_at_once_keep_their_answers_apart(real_servers):
    """64 threads, one loop."""
    wrong = []

    def play(number):
        held = session(real_servers.url("odd"))
        held.reset(seed=number)
        for turn in range(1, 6):
            text = held.step({"message": f"{number}"}).observation["text"]
            if text != f"{number} {turn}":
                wrong.append(text)
        held.close()

    threads = [threading.Thread(target=play, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
