"""Plays groups of episodes by letting a user's agent have its own loop: it asks the endpoint, and says what it earned.

    play(plan) --> n threads: agent(base_url, key, seed) --> HTTP --> endpoint --> one engine for all
                       |
                       +-- it returns             ended: the run's branches become episodes
                       +-- it raises              lost: tried again with the same seeds, then failed; never a reward
                       +-- no room, no turns      what the model has done ends its run: with the rewards until then
                       +-- not in time            with rewards by calls it ends as it stands, else it is lost

All runs of a group have one seed. What is drawn depends on the number of the run, of the branch and of the turn, so an
agent that asks one thing after the other repeats itself.

Invariants: when `play` returns or raises, every session of the group is closed, and its key is good for nothing. A
thread cannot be killed: an agent that hangs stays behind, without a session, until it ends by itself. One that is
asynchronous is cancelled.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable

from headway.agents.agent_loop import AgentLoop
from headway.agents.endpoint import AgentRun, Endpoint, RunRules
from headway.agents.endpoint_player_endpoint_episodes import AgentFunction, EndedRun, ended_run, transcripts
from headway.agents.endpoint_server import EndpointServer
from headway.agents.endpoint_tokens import ChatTokens
from headway.agents.env import BadEnvironment, EnvironmentLost
from headway.agents.episodes_episode_loop import Progress, reply_in_time
from headway.agents.episodes_episode_player import (
    GroupFailed,
    GroupPlan,
    PausableClock,
    PlayedGroup,
    engine_numbers,
    game_seed,
    seed_of_turn,
)
from headway.agents.episodes_episode_threads import EpisodeThreads
from headway.core.protocols import CannotGoOn
from headway.core.text_one_line import in_a_line
from headway.core.types import derive_seed
from headway.llm.engine.protocol_engine import Aborted, Engine, Reply, Sampling, Session

LOOK_S = 0.5
"""How often whoever waits for a group looks whether its time is over, or the player closed."""


@dataclass(slots=True, eq=False)
class _Attempted:
    """One run of an agent, as those who may abandon it see it."""

    number: int
    began: float
    uid: str = ""
    key: str = ""
    run: AgentRun | None = None
    is_abandoned: bool = False
    num_lost: int = 0
    awaited: Future[object] | None = None
    """The call of an asynchronous agent, while it runs."""
    result: EndedRun | Exception | None = None

    def progress(self) -> Progress:
        turns = [] if self.run is None else [turn for branch in self.run.branches for turn in branch.turns]
        return Progress(len(turns), sum(len(turn.reply.tokens) for turn in turns))


class EndpointPlayer:
    """Holds an engine, the server that agents ask, and the threads in which they run."""

    def __init__(
        self, engine: Engine, tokens: ChatTokens, agent: AgentFunction, *, name: str = "agent", attempts: int = 3
    ) -> None:
        self.engine = engine
        self._agent, self._name, self._attempts = agent, name, attempts
        self._endpoint = Endpoint(engine, tokens)
        self._server = EndpointServer(self._endpoint)
        self._threads = EpisodeThreads("agent")
        self._loop = AgentLoop()
        self._clock = PausableClock()
        self._lock = threading.Lock()
        self._under_way: list[_Attempted] = []
        self._is_closed = False

    def play(self, plan: GroupPlan) -> PlayedGroup:
        """Plays a group. Raises GroupFailed, CannotGoOn for an agent that must be mended, or what went wrong."""
        limit = plan.limits.deadline_s
        ends_at = math.inf if limit is None else self._clock.now() + limit
        seed = game_seed(plan.seed if plan.instance is None else plan.instance)
        runs = [_Attempted(number, time.monotonic()) for number in range(plan.begun)]
        over: queue.SimpleQueue[_Attempted] = queue.SimpleQueue()
        with self._lock:
            self._under_way += runs
        try:
            for one in runs:
                self._threads.start(partial(self._run, plan, seed, ends_at, one, over))
            ended, failed = self._wait(plan, runs, over, ends_at)
            return self._group(plan, runs, ended, failed)
        except BadEnvironment as error:
            raise CannotGoOn(str(error)) from error
        finally:
            for one in runs:
                self._abandon(one)
            with self._lock:
                self._under_way = [one for one in self._under_way if one not in runs]

    def pause(self) -> None:
        """Generation stands still; agents go on until they ask for a reply."""
        self.engine.pause()
        self._clock.stop()

    def resume(self) -> None:
        self._clock.go_on()
        self.engine.resume()

    def doing(self) -> list[str]:
        """Says which agents run, since when, and how far they have come."""
        with self._lock:
            runs = [one for one in self._under_way if one.result is None]
        now = time.monotonic()
        return [f"{one.uid}: {one.progress().turns} replies in {now - one.began:.1f} s" for one in runs if one.uid]

    def health(self) -> dict[str, float]:
        with self._lock:
            count = sum(one.result is None for one in self._under_way)
        return {**engine_numbers(self.engine), "agents": float(count)}

    def close(self) -> None:
        """Ends everything: sessions with the server, then the engine, then the threads."""
        self._is_closed = True
        self._server.close()
        self.engine.close()
        self._loop.close()
        self._threads.close()

    # -- a group --------------------------------------------------------------------------------------

    def _wait(
        self, plan: GroupPlan, runs: list[_Attempted], over: queue.SimpleQueue[_Attempted], ends_at: float
    ) -> tuple[dict[int, EndedRun], set[int]]:
        """The runs of the group, as soon as there are enough of them, and the numbers of those that failed."""
        ended: dict[int, EndedRun] = {}
        failed: dict[int, EnvironmentLost] = {}
        while len(ended) < plan.needed and len(ended) + len(failed) < plan.begun:
            try:
                one = over.get(timeout=LOOK_S)
                found = [(one.number, one.result)]
            except queue.Empty:
                if self._is_closed:
                    raise Aborted(f"{plan.uid}: the collector is closed") from None
                if self._clock.now() < ends_at:
                    continue
                late = [one for one in runs if one.number not in ended and one.number not in failed]
                found = [(one.number, one.result or self._overdue(one, plan.limits.deadline_s)) for one in late]
            for number, result in found:
                if isinstance(result, EndedRun):
                    ended[number] = result
                elif isinstance(result, EnvironmentLost):
                    failed[number] = result
                else:
                    assert result is not None
                    raise result
        if len(ended) < plan.least:
            what = next(reversed(failed.values())).what
            raise GroupFailed(
                f"{plan.uid}: {len(failed)} of {plan.begun} runs of the agent failed, the last one: {what}"
            )
        return dict(sorted(ended.items())[: plan.needed]), set(failed)

    def _group(
        self, plan: GroupPlan, runs: list[_Attempted], ended: dict[int, EndedRun], failed: set[int]
    ) -> PlayedGroup:
        left = [one for one in runs if one.number not in ended and one.number not in failed]
        lost, anew = (sum(min(one.num_lost, most) for one in runs) for most in (self._attempts, self._attempts - 1))
        more = {
            "forks": sum(len(one.branches) - 1 for one in ended.values()) / len(ended),
            "replies_resampled": float(sum(one.run.num_resampled for one in ended.values())),
        }
        abandoned = {one.number: one.progress() for one in left}
        return PlayedGroup(transcripts(ended, plan.uid), abandoned, len(failed), lost, anew, more)

    def _abandon(self, one: _Attempted) -> None:
        one.is_abandoned = True  # before it is closed: whoever begins another attempt looks at this last
        self._endpoint.forget(one.key)
        if one.awaited is not None:
            one.awaited.cancel()

    def _overdue(self, one: _Attempted, limit: float | None) -> EndedRun | EnvironmentLost:
        """A run whose time is over ends as it stands, if somebody has said what it is worth."""
        self._abandon(one)
        run = one.run
        if run is not None and run.num_rewards and run.num_turns:
            return EndedRun(run, "deadline")
        return EnvironmentLost(f"agent {self._name} did not return within {limit:g} s, and gave no reward by a call")

    # -- a run, in its thread -------------------------------------------------------------------------

    def _run(
        self, plan: GroupPlan, seed: int, ends_at: float, one: _Attempted, over: queue.SimpleQueue[_Attempted]
    ) -> None:
        try:
            one.result = self._attempted(plan, seed, ends_at, one)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where somebody waits for the group
            one.result = error
        over.put(one)

    def _attempted(self, plan: GroupPlan, seed: int, ends_at: float, one: _Attempted) -> EndedRun:
        rules = self._rules(plan, one.number, ends_at)
        while True:
            one.uid = f"{plan.uid}.{plan.attempt}/{one.number}" + f" again {one.num_lost}" * (one.num_lost > 0)
            key, run = self._endpoint.open(one.uid, rules)
            one.key, one.run = key, run
            try:
                if one.is_abandoned:
                    raise Aborted(f"{one.uid}: abandoned")
                value = self._returned(one, seed)
                if run.fault is not None:  # whatever it made of it: the model did not cause this
                    raise run.fault
                return ended_run(run, value, self._name)
            except (BadEnvironment, Aborted):
                raise
            except BaseException as error:  # any exception is reported under the agent's name
                if one.is_abandoned or self._is_closed:
                    raise Aborted(f"{one.uid}: abandoned") from error
                if run.fault is not None:
                    raise run.fault from (None if error is run.fault else error)
                if run.num_turns and (run.refused in ("tokens", "turns") or (run.refused and run.num_rewards)):
                    return EndedRun(run, run.refused)
                one.num_lost += 1
                if one.num_lost >= self._attempts or run.refused:
                    raise EnvironmentLost(f"agent {self._name} raised {in_a_line(error)}") from error
            finally:
                self._endpoint.forget(key)

    def _returned(self, one: _Attempted, seed: int) -> object:
        value = self._agent(self._server.address, one.key, seed)
        if not isawaitable(value):
            return value
        one.awaited = self._loop.begin(value)
        if one.is_abandoned:  # checked last: abandoning sets this first, then cancels the call
            one.awaited.cancel()
        return one.awaited.result()

    def _rules(self, plan: GroupPlan, number: int, ends_at: float) -> RunRules:
        def left_s() -> float:
            return ends_at - self._clock.now()

        def draw(session: Session, sampling: Sampling, seed: int) -> Reply | None:
            return reply_in_time(session, sampling, seed, left_s)

        def seed_of(branch: int, turn: int) -> int:
            if not branch:
                return seed_of_turn(plan.seed, number, turn)
            return derive_seed(plan.seed, "episode", number, "fork", branch, "turn", turn)

        limits = plan.limits
        return RunRules(plan.sampling, draw, seed_of, limits.room, limits.max_turns)
