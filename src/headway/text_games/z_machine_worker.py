"""The process that runs story files, seen from inside: it keeps nothing, every request brings its state.

    asked:   (path, templates), once; then (method, arguments)
    answers: (SAID, value) | (BAD, line)

It ends when the process that started it hangs up or is gone, whatever it is doing then.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import NamedTuple

from headway.core.text_one_line import first_line
from headway.runtimes.child_process_in_child import begin
from headway.text_games.valid_actions import ActionTemplates, fallback_actions, find_valid_actions
from headway.text_games.z_machine import StoryMoment, ZMachine

SAID, BAD = "said", "bad"
Answer = tuple[str, object]


class StoryFacts(NamedTuple):
    """Says what is known of a file before it is played."""

    fallback: tuple[str, ...]
    """Commands that are worth trying anywhere."""
    walkthrough: tuple[str, ...]
    walkthrough_seed: int
    """The seed with which the walkthrough works."""


def main(fd: int, lifeline: int) -> None:
    """Answers until the other side hangs up."""
    channel = begin(fd, lifeline, takes_fds=False)
    frames = channel.frames()
    path, templates = pickle.loads(next(frames)[0])
    try:
        machine = ZMachine(Path(path))
    except (ValueError, OSError) as error:
        channel.send(pickle.dumps((BAD, first_line(error))))
        os._exit(0)
    requests = _Requests(machine, templates)
    facts = StoryFacts(fallback_actions(machine.words), machine.walkthrough, machine.walkthrough_seed)
    channel.send(pickle.dumps((SAID, facts)))
    for body, _ in frames:
        method, arguments = pickle.loads(body)
        channel.send(pickle.dumps(_answer(requests, method, arguments)))
    os._exit(0)


class _Requests:
    """Says what can be asked."""

    def __init__(self, machine: ZMachine, templates: ActionTemplates) -> None:
        self._machine = machine
        self._templates = templates

    def begin(self, seed: int) -> StoryMoment:
        return self._machine.moment(self._machine.restart(seed))

    def act(self, state: bytes, command: str) -> StoryMoment:
        self._machine.set_state(state)
        return self._machine.moment(self._machine.act(command))

    def actions(self, moment: StoryMoment) -> tuple[str, ...]:
        self._machine.set_state(moment.state)
        return find_valid_actions(self._machine, moment.room, moment.carried, moment.said, self._templates)


def _answer(requests: _Requests, method: str, arguments: tuple[object, ...]) -> Answer:
    try:
        return SAID, getattr(requests, method)(*arguments)
    except ValueError as error:
        return BAD, first_line(error)
