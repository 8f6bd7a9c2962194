"""Plays groups of episodes of one game instance: each at its own pace, all with one engine.

    play(...) --> reset, prompt --> open(prompt, n) --> n threads: run_episode --> the first `needed` that end
                                                            |                         |
                                                            +-- environment lost      +-- the rest is abandoned:
                                                                replayed, or given up     sessions and games are closed

    begun --> ended                     the first `needed` are the group
          --> abandoned                 counted, with what they had come to
          --> failed                    no environment was to be had for it; never a reward
          --> broken                    BadEnvironment, or an error: raised to whoever asked

Invariants: when `play` returns or raises, every session of the group is closed, and every game is closed or about to
be, by the thread that plays it. Episodes are in the order of their numbers, however they ended.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from headway.agents.env import BadEnvironment, EnvironmentLost
from headway.agents.episodes_episode_loop import EpisodeLimits, EpisodePlan, Progress, run_episode
from headway.agents.episodes_episode_threads import EpisodeThreads
from headway.agents.episodes_replayed_game import GameChanged, ReplayedGame
from headway.agents.episodes_turn_times import CountedSession, EngineUse, EpisodeTrack, idle_share, timing, track
from headway.agents.stepping import Stepping
from headway.core.protocols import CannotGoOn
from headway.core.types import derive_seed
from headway.llm.engine.protocol_engine import Aborted, Engine, Sampling, Session
from headway.llm.model.conversation import Conversation
from headway.llm.rollouts_transcript import Transcript


class GroupFailed(RuntimeError):
    """Too few episodes of a group could be played, because their environments were lost. One line."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Says which episodes are played."""

    uid: str
    seed: int
    """Of all that is drawn, and of the game instance where that has no other."""
    attempt: int
    """Nothing depends on it but what the engine calls the requests."""
    begun: int
    """Episodes that begin."""
    needed: int
    """The group is whole when so many have ended."""
    least: int
    """It goes on with so many where environments are lost; with fewer it fails."""
    sampling: Sampling
    limits: EpisodeLimits
    instance: int | None = None
    """The seed that decides the game instance."""
    accepts: Callable[[str], bool] | None = None
    """Which first messages may be played; another game instance is looked for until one is."""


@dataclass(frozen=True, slots=True)
class PlayedGroup:
    """Holds the episodes of a group, and what it cost to play them."""

    episodes: Mapping[int, Transcript]
    """By their numbers, in order."""
    abandoned: Mapping[int, Progress] = field(default_factory=dict)
    """How far those had come that were not needed any more."""
    num_failed: int = 0
    """Episodes that no environment was to be had for."""
    num_lost: int = 0
    """Environments that were lost, most of them without anybody noticing."""
    num_anew: int = 0
    """Episodes that had to begin anew."""
    more: Mapping[str, float] = field(default_factory=dict)
    """Other measures, by name."""
    tracks: Sequence[EpisodeTrack] = ()
    """When the turns of all that began were."""
    engine_idle: float = 0.0
    """The share of the group's time in which environments kept the engine waiting, that of other groups included."""

    def measures(self) -> dict[str, float]:
        """Measures how the group was played. The winners of a race are shorter than all that began. How long the others
        would have become is not known: they count with what they had come to, so the bias is an upper bound."""
        won = [Progress(len(one.turns), int(one.record.num_trained.sum())) for one in self.episodes.values()]
        begun = [*won, *self.abandoned.values()]
        numbers = {
            "episodes_abandoned": float(len(self.abandoned)),
            "episodes_failed": float(self.num_failed),
            "episodes_anew": float(self.num_anew),
            "environments_lost": float(self.num_lost),
            **self.more,
            "engine_idle": self.engine_idle,
            **timing(self.tracks),
        }
        if self.abandoned:
            numbers["tokens_abandoned"] = float(sum(one.tokens for one in self.abandoned.values()))
            for name in ("turns", "tokens"):
                mean_won, mean_begun = (sum(getattr(one, name) for one in some) / len(some) for some in (won, begun))
                numbers[f"redundancy_bias_{name}"] = mean_won / mean_begun - 1 if mean_begun else 0.0
        return numbers


class GroupPlayer(Protocol):
    """Plays groups of episodes with an engine of its own. `play` may be called by several threads at once."""

    engine: Engine

    def play(self, plan: GroupPlan) -> PlayedGroup: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def doing(self) -> list[str]:
        """What is under way that may take long, since when."""
        ...

    def health(self) -> dict[str, float]: ...

    def close(self) -> None: ...


class PausableClock:
    """Seconds, less those in which it was stopped."""

    def __init__(self) -> None:
        self._stopped_at: float | None = None
        self._stopped_s = 0.0

    def now(self) -> float:
        return (time.monotonic() if self._stopped_at is None else self._stopped_at) - self._stopped_s

    def stop(self) -> None:
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()

    def go_on(self) -> None:
        if self._stopped_at is not None:
            self._stopped_s += time.monotonic() - self._stopped_at
            self._stopped_at = None


@dataclass(slots=True)
class _Episode:
    """One episode under way, as those who may abandon it see it."""

    number: int
    session: Session
    progress: Progress = field(default_factory=Progress)
    is_abandoned: bool = False
    num_lost: int = 0
    num_anew: int = 0
    result: Transcript | Exception | None = None

    @property
    def end(self) -> str:
        """How it ended; or that it was abandoned, or lost its environments."""
        if isinstance(self.result, Transcript):
            return self.result.end
        return "abandoned" if self.result is None or isinstance(self.result, Aborted) else "lost"


class EpisodePlayer:
    """Holds an engine, a place where environments step, and the threads in which episodes are played.

    `play` may be called by several threads at once.
    """

    def __init__(
        self,
        engine: Engine,
        stepping: Stepping,
        conversation: Conversation,
        *,
        attempts: int = 3,
        clock: PausableClock | None = None,
    ) -> None:
        self.engine = engine
        self.stepping = stepping
        self._conversation = _OneAtATime(conversation)
        self._attempts = attempts
        self._threads = EpisodeThreads("episode")
        self._clock = clock or PausableClock()
        self._use = EngineUse(self._clock.now)

    def play(self, plan: GroupPlan) -> PlayedGroup:
        """Plays a group. Raises GroupFailed, CannotGoOn for an environment that must be mended, or what went wrong."""
        try:
            return self._play(plan)
        except BadEnvironment as error:
            raise CannotGoOn(str(error)) from error
        except EnvironmentLost as error:
            raise GroupFailed(f"{plan.uid}: no environment could begin: {error.what}") from error

    def pause(self) -> None:
        """Generation stands still; steps of environments under way are finished, and their episodes wait."""
        self.engine.pause()
        self._clock.stop()

    def resume(self) -> None:
        self._clock.go_on()
        self.engine.resume()

    def doing(self) -> list[str]:
        return self.stepping.doing()

    def health(self) -> dict[str, float]:
        """What engine and environments say of themselves."""
        return {
            **engine_numbers(self.engine),
            **{f"env_{name}": value for name, value in self.stepping.health().items()},
        }

    def close(self) -> None:
        """Ends everything: replies under way are given up, then the environments, then the threads."""
        self.engine.close()
        self.stepping.close()
        self._threads.close()

    # -- a group --------------------------------------------------------------------------------------

    def _play(self, plan: GroupPlan) -> PlayedGroup:
        began_s, use = self._clock.now(), self._use.seconds()
        game, first, seed = self._first_game(plan)
        try:
            prompt = self._prompt(plan, first)
            sessions = self.engine.open(f"{plan.uid}.{plan.attempt}", prompt, plan.begun)
        except BaseException:
            game.close()
            raise
        episodes = [_Episode(number, session) for number, session in enumerate(sessions)]
        over: queue.SimpleQueue[_Episode] = queue.SimpleQueue()
        try:
            for one in episodes:
                seed_of = partial(seed_of_turn, plan.seed, one.number)
                its_plan = EpisodePlan(plan.uid, first, prompt, plan.sampling, plan.limits, seed_of)
                its_game = ReplayedGame(self.stepping, seed, self._attempts) if one.number else game
                self._threads.start(partial(self._run, its_plan, its_game, one, over))
            played = self._wait(plan, episodes, over, began_s)
            return replace(played, engine_idle=idle_share(use, self._use.seconds()))
        finally:
            for one in episodes:
                one.is_abandoned = one.result is None
                one.session.close()

    def _prompt(self, plan: GroupPlan, first: str) -> tuple[int, ...]:
        prompt = (*self._conversation.first(first), *self._conversation.prefix)
        if plan.limits.room(len(prompt), 0) < 1:
            raise ValueError(
                f"the first message of {plan.uid} has {len(prompt)} tokens: max_context_tokens="
                f"{plan.limits.max_context_tokens} leaves no room for a reply"
            )
        return prompt

    def _first_game(self, plan: GroupPlan) -> tuple[ReplayedGame, str, int]:
        """The game of the first episode, begun; what it said first is what all of them begin with."""
        for number in range(MAX_INSTANCES):
            seed = game_seed(plan.seed if plan.instance is None else plan.instance, number)
            game = ReplayedGame(self.stepping, seed, self._attempts)
            first = game.begin()
            if plan.accepts is None or plan.accepts(first):
                return game, first, seed
            game.close()
        raise BadEnvironment(
            f"{plan.uid}: of {MAX_INSTANCES} game instances none may be played, because held_out divides them by their "
            "first message and this game has too few different ones; held_out=seeds divides them by seed"
        )

    def _wait(
        self, plan: GroupPlan, episodes: list[_Episode], over: queue.SimpleQueue[_Episode], began_s: float
    ) -> PlayedGroup:
        ended: dict[int, Transcript] = {}
        failed: list[EnvironmentLost] = []
        while len(ended) < plan.needed and len(ended) + len(failed) < plan.begun:
            one = over.get()
            if isinstance(one.result, Transcript):
                ended[one.number] = one.result
            elif isinstance(one.result, EnvironmentLost):
                failed.append(one.result)
            else:
                assert one.result is not None
                raise one.result
        if len(ended) < plan.least:
            raise GroupFailed(
                f"{plan.uid}: {len(failed)} of {plan.begun} episodes lost their environment {self._attempts} times, "
                f"the last one: {failed[-1].what}"
            )
        left = [one for one in episodes if one.number not in ended and not isinstance(one.result, EnvironmentLost)]
        return PlayedGroup(
            dict(sorted(ended.items())),
            {one.number: Progress(one.progress.turns, one.progress.tokens) for one in left},
            len(failed),
            sum(one.num_lost for one in episodes),
            sum(one.num_anew for one in episodes),
            tracks=[track(one.number, one.end, list(one.progress.times), began_s) for one in episodes],
        )

    # -- an episode, in its thread --------------------------------------------------------------------

    def _run(self, plan: EpisodePlan, game: ReplayedGame, one: _Episode, over: queue.SimpleQueue[_Episode]) -> None:
        self._use.episodes(1)
        try:
            one.result = self._episode(plan, game, one)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where somebody waits for the group
            one.result = error
        finally:
            self._use.episodes(-1)
            one.num_lost = game.num_lost
            one.session.close()
            over.put(one)
            game.close()

    def _episode(self, plan: EpisodePlan, game: ReplayedGame, one: _Episode) -> Transcript:
        """Plays it, from the beginning again if the environment was lost and cannot be brought to where it was."""
        is_begun = one.number == 0
        while True:
            first = plan.first if is_begun else game.begin()
            is_begun = False
            if first != plan.first:
                raise BadEnvironment(
                    f"one seed began two games: {_shown(plan.first)} and {_shown(first)}; `headway check-env` finds "
                    "out why (an environment that seeds the global generator needs env_stepping=processes)"
                )
            try:
                clock = self._clock.now
                session = CountedSession(one.session, self._use)
                return run_episode(plan, game, session, self._conversation, clock, one.progress)
            except GameChanged:
                one.num_anew += 1
                one.progress = Progress()
                one.session.close()
                (one.session,) = self.engine.open(f"{plan.uid}/{one.number} anew {one.num_anew}", plan.prompt, 1)
                if one.is_abandoned:  # looked at last: whoever abandons it sets this first, then closes the session
                    raise Aborted(f"{plan.uid}: abandoned") from None


MAX_INSTANCES = 1000
"""Game instances that are looked at for one whose first message may be played."""


def engine_numbers(engine: Engine) -> dict[str, float]:
    """What an engine says of itself."""
    health = engine.health()
    return {
        "running": health.running,
        "waiting": health.waiting,
        "tokens": health.tokens,
        "seconds_since_step": round(health.seconds_since_step, 3),
        **{name: float(value) for name, value in health.details.items()},
    }


def game_seed(seed: int, number: int = 0) -> int:
    """The environment's seed of a group, one for all its episodes. Later numbers are for instances that are skipped."""
    return derive_seed(seed, "game") if number == 0 else derive_seed(seed, "game", number)


def seed_of_turn(seed: int, episode: int, turn: int) -> int:
    return derive_seed(seed, "episode", episode, "turn", turn)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


class _OneAtATime:
    """A conversation that many threads use: tokenizers are not made for that."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._lock = threading.Lock()
        self.prefix = conversation.prefix
        self.end_token = conversation.end_token

    def first(self, text: str) -> tuple[int, ...]:
        with self._lock:
            return self._conversation.first(text)

    def following(self, text: str, *, ended: bool) -> tuple[int, ...]:
        with self._lock:
            return self._conversation.following(text, ended=ended)
