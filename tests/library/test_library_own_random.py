"""Games that draw from the process's own generators play reproducibly all the same."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import gem
import numpy

from tiltyard import InProcessEnvClient, RemoteEnvClient, resolve_env
from tiltyard.envs.library import textarena
from tiltyard.envs.own_random import OwnRandom
from tiltyard.envs.turns import as_turns
from tiltyard.types import Reply, Task

GAME = "game:Game2048-v0-easy"  # draws at each step, too
MOVES = [r"\boxed{up}", r"\boxed{left}", r"\boxed{down}", r"\boxed{right}"] * 5


def played(seed: int, together: threading.Barrier | None = None) -> list[str]:
    turns = as_turns(gem.make(GAME))
    boards = [turns.start(Task(seed=seed)).messages[-1]["content"]]
    for move in MOVES:
        if together is not None:
            together.wait()
        turn = turns.reply(Reply(text=move))
        boards.append(turn.info["suffix"])  # the game does not show the board in its observation
        assert not turn.done
    return boards


def boards_of(clients: list, seeds: list[int]) -> list[list[str]]:
    """Several games, a move in each after the other."""
    boards = [[client.reset(seed)[0]] for client, seed in zip(clients, seeds, strict=True)]
    for move in MOVES:
        for client, seen in zip(clients, boards, strict=True):
            seen.append(client.step(move)[4]["suffix"])
    return boards


def test_a_seed_plays_the_same_on_many_threads_as_alone():
    """What other environments draw meanwhile changes nothing."""
    together = threading.Barrier(8)
    with ThreadPoolExecutor(8) as threads:
        games = list(threads.map(lambda _: played(5, together), range(8)))
    assert games == [played(5)] * 8


def test_other_seeds_play_otherwise():
    """The seed is what decides."""
    assert played(5) != played(6)


def test_a_game_leaves_the_processs_own_generator_as_it_was():
    """A seed given to a game is not the trainer's."""
    turns = as_turns(gem.make(GAME))
    before = random.getstate()
    turns.start(Task(seed=5))
    turns.reply(Reply(text=MOVES[0]))
    assert random.getstate() == before


def test_a_client_in_this_process_plays_a_seed_as_the_loop_does():
    """A neighbour's moves draw nothing of its game."""
    clients = [InProcessEnvClient(gem.make(GAME)) for _ in range(2)]
    assert boards_of(clients, [5, 6]) == [played(5), played(6)]


def test_a_served_game_plays_a_seed_as_the_loop_does():
    """The sessions of a server are threads of one process."""
    url, server = resolve_env("gem:make", {"env_id": GAME}, max_concurrent_envs=2)
    with server:
        clients = [RemoteEnvClient(url) for _ in range(2)]
        assert boards_of(clients, [5, 6]) == [played(5), played(6)]
        for client in clients:
            client.close()


def test_choosing_a_row_leaves_the_processs_own_generator_as_it_was():
    """Every reset of GEM seeds it, whatever the environment; two at a time would choose each other's rows."""
    turns = as_turns(gem.make("rg:leg_counting"))
    before = random.getstate()
    turns.start(Task(seed=5))
    assert random.getstate() == before


def test_without_a_seed_each_environment_draws_anew():
    """They share no state of the generators that they would all begin with."""
    assert len({OwnRandom().call(random.random) for _ in range(8)}) == 8
    assert len({OwnRandom().call(numpy.random.random) for _ in range(8)}) == 8


def test_without_a_seed_each_game_of_textarena_is_another():
    """That the game was asked for its limit, with a seed, decides nothing."""
    numbers = set()
    for _ in range(4):
        game = textarena.make("GuessTheNumber-v0", max_number=10**12)
        game.reset()
        numbers.add(game._game.state.game_state["game_number"])
    assert len(numbers) == 4


def test_a_call_that_raises_puts_the_state_back():
    """The process's state comes back in any case."""
    before = random.getstate()

    def draw_and_raise() -> None:
        random.seed(3)
        raise KeyError("x")

    own = OwnRandom()
    try:
        own.call(draw_and_raise)
    except KeyError:
        assert random.getstate() == before
    assert own.call(random.random) == random.Random(3).random()


def test_an_environment_with_a_generator_of_its_own_is_called_as_it_is():
    """Only the games of the libraries that need it wait for one another."""
    held = threading.Event()
    waiting = threading.Event()

    class Slow:
        def reset(self, seed=None):
            waiting.set()
            assert held.wait(10)
            return "go", {}

        def step(self, action):
            return "", 0.0, True, False, {}

    class Quick(Slow):
        def reset(self, seed=None):
            held.set()
            return "go", {}

    thread = threading.Thread(target=lambda: as_turns(Slow()).start(Task(seed=0)))
    thread.start()
    assert waiting.wait(10)
    as_turns(Quick()).start(Task(seed=0))
    thread.join(10)
    assert not thread.is_alive()
