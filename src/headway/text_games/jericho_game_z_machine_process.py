"""A story file in a process of its own, which may hang or die.

    this process                                      child: a fresh interpreter with the story
    act(state, "open door")  ---- state, command ---->   goes to the state, types the command
                             <--- moment, new state ---

    not started --> runs --> killed because an answer took too long, or dead by itself --> not started

Invariants: the child keeps nothing, so its end loses nothing. A request whose child died is asked once more of a fresh
one; a request that took too long is not. When `close` returns there is no process and no descriptor left.
"""

from __future__ import annotations

import pickle
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from headway.core.os_errors import refusal
from headway.runtimes.child_process_channel import Channel, HungUp
from headway.runtimes.child_process_child import Child, python_command, thread_limits
from headway.text_games.story_interface import BadStory, StoryLost
from headway.text_games.valid_actions import ActionTemplates
from headway.text_games.z_machine_worker import BAD, Answer, StoryFacts

START_S = 60.0
"""How long a fresh child may take until it has loaded the story."""
GRACE_S = 1.0

T = TypeVar("T")


class StoryHung(StoryLost):
    """A story file did not answer within its limit. Its child was killed."""


class ZMachineProcess:
    """Runs a story file in a child that is started when it is needed. Any thread may ask; one at a time is answered."""

    def __init__(self, path: Path, templates: ActionTemplates) -> None:
        self.path = path
        self._templates = templates
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._channel: Channel | None = None
        self._facts: StoryFacts | None = None
        self.num_starts = 0
        self.num_hung = 0

    @property
    def pid(self) -> int | None:
        """None: it is not running."""
        return None if self._child is None else self._child.pid

    def facts(self) -> StoryFacts:
        """What the file says about itself."""
        with self._lock:
            if self._facts is None:
                self._twice(self._start, "its start")
            assert self._facts is not None
            return self._facts

    def ask(self, method: str, arguments: tuple[object, ...], what: str, limit_s: float) -> object:
        """Returns the answer. StoryHung: it took too long; StoryLost: the child died each time."""
        request = pickle.dumps((method, arguments))

        def exchange() -> object:
            if self._child is None:
                self._start()
            return self._exchange(request, what, limit_s)

        with self._lock:
            return self._twice(exchange, what)

    def _twice(self, work: Callable[[], T], what: str) -> T:
        """Does something with a child, once more if the child dies of it."""
        try:
            return work()
        except HungUp:
            self._end(GRACE_S)
        try:
            return work()
        except HungUp:
            raise StoryLost(f"{self.path.name}: its process {self._end(GRACE_S)} at {what}") from None

    def close(self) -> None:
        with self._lock:
            self._end(GRACE_S)

    def _start(self) -> None:
        command = python_command("headway.text_games.z_machine_worker", "headway story")
        try:
            child = Child(command, thread_limits(1), own_group=True, has_lifeline=True, stdout=subprocess.DEVNULL)
        except OSError as error:
            raise StoryLost(f"{self.path.name}: no process can be started: {refusal(error) or error}") from error
        self._child, self._channel = child, Channel(child.socket, takes_fds=False)
        self.num_starts += 1
        try:
            facts = self._exchange(pickle.dumps((str(self.path), self._templates)), "its start", START_S)
            self._facts = cast(StoryFacts, facts)
        except BadStory:
            self._end(0.0)
            raise

    def _exchange(self, request: bytes, what: str, limit_s: float) -> object:
        assert self._channel is not None
        deadline = time.monotonic() + limit_s
        self._channel.send(request)
        while self._channel.wait(max(deadline - time.monotonic(), 0.0)):
            for body, _ in self._channel.receive():
                answer: Answer = pickle.loads(body)
                if answer[0] == BAD:
                    raise BadStory(str(answer[1]))
                return answer[1]
        self.num_hung += 1
        self._end(0.0)
        raise StoryHung(f"{self.path.name}: {what} took more than {limit_s:g} s")

    def _end(self, grace_s: float) -> str:
        """How it ended. Nothing is left of it then."""
        child, self._child, self._channel = self._child, None, None
        if child is None:
            return "was not running"
        child.hang_up()
        how = child.how_it_ended(grace_s, "did not end")
        child.end()
        return how
