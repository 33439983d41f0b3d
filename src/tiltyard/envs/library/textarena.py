"""Games of TextArena (arXiv:2504.11442) for one player, as text environments."""

import difflib
from typing import Any

from tiltyard._optional import require
from tiltyard.envs.own_random import OwnRandom
from tiltyard.errors import ConfigurationError, EnvError, EpisodeOverError


class SinglePlayerGame:
    """A text environment over one TextArena game.

    What the game says since the last turn is the observation, and its reward comes at the end (-1 for a move that it
    refused for good). It is reproducible from the seed, on any thread. `info` has the game's own, at the end with
    its `reason` and `invalid_move`.
    """

    def __init__(self, env_id: str, *, max_turns: int | None = None, **options: Any) -> None:
        """Make the game.

        Args:
            env_id: A game of `textarena.envs.registration.ENV_REGISTRY`, such as "GuessTheNumber-v0".
            max_turns: What the rollout may play; None is the game's own limit, which a game may not have.
            options: The game's own, such as `max_number`.

        Raises:
            ConfigurationError: There is no such game, it does not take the options, or it is for several players.
            MissingExtraError: The package is not installed.
        """
        self._random = OwnRandom()
        self._game = self._random.call(_make, env_id, options)
        self._over = True
        self.env_id = env_id
        self._own_limit = OwnRandom().call(_limit, self._game, env_id)  # its seed is not that of a game to play
        if max_turns is not None or self._own_limit is not None:
            self.max_turns = max_turns or self._own_limit

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Begin a game; None draws one."""
        self._random.call(self._game.reset, num_players=1, seed=seed)
        self._over = False
        return self._said(), {"env_id": self.env_id}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Give the game one move.

        Raises:
            EpisodeOverError: The game is over.
            EnvError: It ended without a reward.
        """
        if self._over:
            raise EpisodeOverError(f"{self.env_id} is over; reset it first")
        done, info = self._random.call(self._game.step, action)
        if not done:
            return self._said(), 0.0, False, False, dict(info or {})
        self._over = True
        rewards, infos = self._random.call(self._game.close)
        if not rewards or 0 not in rewards:
            raise EnvError(f"{self.env_id} ended and gave its player no reward, but {rewards!r}")
        ending = {**(info or {}), **infos.get(0, {})}
        return str(ending.get("reason") or ""), float(rewards[0]), True, False, ending

    def _said(self) -> str:
        """What the game said since the last turn, without the player's own move, which the model has already."""
        _player, said = self._random.call(self._game.get_observation)
        move = require("textarena", "libraries").ObservationType.PLAYER_ACTION
        return "\n".join(str(message).strip() for _sender, message, kind in said if kind is not move)


def make(env_id: str, **options: Any) -> SinglePlayerGame:
    """Make a game: the entrypoint of a manifest, `tiltyard.envs.library.textarena:make`.

    Raises:
        ConfigurationError: There is no such game, it does not take the options, or it is for several players.
        MissingExtraError: The package is not installed.
    """
    return SinglePlayerGame(env_id, **options)


def _make(env_id: str, options: dict[str, Any]) -> Any:
    textarena = require("textarena", "libraries")
    known = list(require("textarena.envs.registration", "libraries").ENV_REGISTRY)
    if env_id not in known:
        near = difflib.get_close_matches(env_id, known, n=3) or sorted(known)[:3]
        raise ConfigurationError(f"TextArena has no game {env_id!r}; did you mean {' or '.join(map(repr, near))}?")
    try:
        game = textarena.make(env_id, **options)
    except TypeError as error:
        raise ConfigurationError(f"the game {env_id!r} does not take these options: {error}") from error
    while isinstance(game, textarena.Wrapper):  # wrappers repeat the whole game at every turn
        game = game.env
    return game


def _limit(game: Any, env_id: str) -> int | None:
    """Ask the game, once begun, for its own limit of turns."""
    one_player = require("textarena.state", "libraries").SinglePlayerState
    try:
        game.reset(num_players=1, seed=0)
    except AssertionError as error:
        raise _for_several(env_id) from error
    if not isinstance(game.state, one_player):
        raise _for_several(env_id)
    return game.state.max_turns


def _for_several(env_id: str) -> ConfigurationError:
    return ConfigurationError(
        f"the game {env_id!r} is for several players, and there is nobody to play the others; pick a game for one "
        "player, or write a text environment in which step() also plays the opponent's move"
    )
