"""A worker process that holds games, seen from inside: it does what it is asked, one call after another.

    asked:   the packed factory, once; then (method, game, arguments)
    answers: (SAID, value) | (BAD, line) | (LOST, line, traceback)

It ends when the process that started it hangs up or is gone, whatever it is doing then.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback

from headway.agents.checked_env_checked_game import CheckedGame
from headway.agents.env import BadEnvironment, EnvFactory, EnvironmentLost
from headway.core.text_one_line import in_a_line
from headway.runtimes.child_process_channel import Channel
from headway.runtimes.child_process_in_child import begin
from headway.runtimes.child_process_sent_code import unpack_function

MAKE, CLOSE = "make", "close"
SAID, BAD, LOST = "said", "bad", "lost"
Answer = tuple[str, object, *tuple[str, ...]]


def main(fd: int, lifeline: int) -> None:
    """Holds games until the other side hangs up."""
    channel = begin(fd, lifeline, takes_fds=False)
    frames = channel.frames()
    games: dict[int, CheckedGame] = {}
    packed, _ = next(frames, (b"", []))
    factory = _factory(channel, packed)
    if factory is not None:
        for body, _ in frames:
            channel.send(pickle.dumps(_answer(games, factory, *pickle.loads(body))))
        for game in games.values():
            _answer({0: game}, factory, CLOSE, 0, ())
    sys.stdout.flush()
    os._exit(0)  # taking an interpreter down takes a third of a second, and whoever closes waits for it


def _factory(channel: Channel, packed: bytes) -> EnvFactory | None:
    try:
        factory: EnvFactory = unpack_function(packed)
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything when it is imported
        line = f"the environment cannot be loaded in a worker process: {in_a_line(error, 300)}"
        channel.send(pickle.dumps((BAD, line)))
        return None
    channel.send(pickle.dumps((SAID, None)))
    return factory


def _answer(
    games: dict[int, CheckedGame], factory: EnvFactory, method: str, number: int, arguments: tuple[object, ...]
) -> Answer:
    try:
        if method == MAKE:
            games[number] = CheckedGame(factory)
            return SAID, None
        game = games.pop(number) if method == CLOSE else games[number]
        return SAID, getattr(game, method)(*arguments)
    except BadEnvironment as error:
        return BAD, str(error)
    except EnvironmentLost as error:
        return LOST, error.what, traceback.format_exc()
