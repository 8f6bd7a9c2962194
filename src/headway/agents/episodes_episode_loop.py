"""One episode of a language model in an environment, from its first message to its end.

    first message --> reply --> step --> observation --> reply --> step --> ... --> done | turns | tokens | deadline

What is drawn and what is said are appended to one record, as tokens, and never rendered again. Three limits have three
names, and each can only be as large as the next:

    max_turn_tokens      <=  max_episode_tokens         <=  max_context_tokens
    one reply                all behind the first           the first message too:
                             message, drawn and said        what the engine has room for
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from headway.agents.env import Step
from headway.agents.episodes_replayed_game import ReplayedGame
from headway.agents.episodes_turn_times import Turn
from headway.core.types import derive_seed
from headway.llm.engine.protocol_engine import Overdue, Reply, Sampling, Session
from headway.llm.rollouts_episode import EpisodeBuilder
from headway.llm.rollouts_transcript import Transcript, TurnText


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Says how long an episode may become."""

    max_turns: int
    max_turn_tokens: int = 256
    max_episode_tokens: int = 1024
    max_context_tokens: int = 2048
    deadline_s: float | None = None
    """Seconds an episode may take; None: no limit. Time in which the collector is paused does not count."""

    def __post_init__(self) -> None:
        turn, episode, context = self.max_turn_tokens, self.max_episode_tokens, self.max_context_tokens
        if not 1 <= turn <= episode <= context:
            raise ValueError(
                f"limits must be 1 <= max_turn_tokens <= max_episode_tokens <= max_context_tokens, "
                f"received {turn}, {episode}, {context}"
            )
        if self.max_turns < 1:
            raise ValueError(f"max_turns must be >= 1, received {self.max_turns!r}")
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise ValueError(f"an episode's deadline must be above 0 seconds, received {self.deadline_s!r}")

    def room(self, num_prompt: int, num_tokens: int) -> int:
        """Tokens that the next reply may have, behind so many of the prompt and of the episode; below 1: none."""
        left = min(self.max_episode_tokens - num_tokens, self.max_context_tokens - num_prompt - num_tokens)
        return min(self.max_turn_tokens, left)


class Speaker(Protocol):
    """Makes tokens of what the environment says (`llm/model/conversation.py`)."""

    prefix: tuple[int, ...]
    end_token: int | None

    def following(self, text: str, *, ended: bool) -> tuple[int, ...]: ...


@dataclass(slots=True)
class Progress:
    """How far an episode has come: others read it while it is played."""

    turns: int = 0
    tokens: int = 0
    """That the policy drew."""
    times: list[Turn] = field(default_factory=list)
    """When each turn was, on the clock of the episode."""

    def note(self, num_tokens: int, begun_s: float, said_s: float) -> None:
        """One more turn, with so many tokens; its step begins."""
        self.turns += 1
        self.tokens += num_tokens
        self.times.append((begun_s, said_s, said_s))

    def stepped(self, over_s: float) -> None:
        """The step of the last turn is over."""
        begun_s, said_s, _ = self.times[-1]
        self.times[-1] = begun_s, said_s, over_s


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """Says what one episode is made of."""

    uid: str
    first: str
    """What the environment said first."""
    prompt: tuple[int, ...]
    """The same as tokens, with all that belongs before the first token that is drawn."""
    sampling: Sampling
    limits: EpisodeLimits
    seed_of: Callable[[int], int]
    """The seed of each turn's reply."""


def run_episode(
    plan: EpisodePlan,
    game: ReplayedGame,
    session: Session,
    conversation: Speaker,
    now: Callable[[], float],
    progress: Progress,
) -> Transcript:
    """Plays an episode that has begun: its first message was said, and the session has read the prompt."""
    limits, prefix = plan.limits, conversation.prefix
    record, turns, measured = EpisodeBuilder(plan.prompt, plan.uid), list[TurnText](), dict[str, float]()
    ends_at = math.inf if limits.deadline_s is None else now() + limits.deadline_s
    num_tokens, room = 0, limits.room(len(plan.prompt), 0)
    text, observed, success = plan.first, tuple[int, ...](), None
    while True:
        state = game.state_key() or text
        sampling, begun_s = replace(plan.sampling, max_tokens=room), now()
        reply = reply_in_time(session, sampling, plan.seed_of(len(turns)), lambda: ends_at - now())
        if reply is None:  # not a token in time
            end = "deadline"
            break
        if turns:
            record.add_observation(observed, reply.read_by)
            record.add_prefix(prefix, reply.read_by)
        record.add_reply(reply.tokens, reply.log_probs, reply.versions, state=state)
        progress.note(len(reply.tokens), begun_s, now())
        if reply.finish == "deadline":
            turns.append(_in_words(reply, Step("", done=True), 0))
            end = "deadline"
            break
        step = game.step(reply.text)
        progress.stepped(now())
        record.set_reward(step.reward)
        measured.update(step.info)
        text, success = step.text, success if step.success is None else step.success
        num_tokens += len(reply.tokens)
        end = _end(step, len(turns) + 1, limits, ends_at - now())
        if not end:
            observed = conversation.following(text, ended=_has_ended(reply, conversation))
            num_tokens += len(observed) + len(prefix)
            room = limits.room(len(plan.prompt), num_tokens)
            end = "" if room >= 1 else "tokens"
        turns.append(_in_words(reply, step, 0 if end else len(observed) + len(prefix)))
        if end:
            break
        session.say((*observed, *prefix))
    if not turns:
        raise Overdue(f"{plan.uid}: not a token was drawn within {limits.deadline_s:g} s")
    return Transcript(record.finish(end, success, measured), plan.first, turns)


def reply_in_time(session: Session, sampling: Sampling, seed: int, left_s: Callable[[], float]) -> Reply | None:
    """Draws a reply, cut short when the time is over; None if there is nothing of it by then.

    The engine's own clock does not stand still while it is paused. What it has cut too early goes on.
    """
    if left_s() == math.inf:
        return session.reply(sampling, seed=seed)
    reply: Reply | None = None
    while (left := left_s()) > 0:
        room = sampling.max_tokens - (0 if reply is None else len(reply.tokens))
        its_seed = seed if reply is None else derive_seed(seed, "after", len(reply.tokens))
        try:
            more = session.reply(replace(sampling, max_tokens=room), seed=its_seed, deadline_s=left, on_deadline="cut")
        except Overdue:
            continue
        reply = more if reply is None else _joined(reply, more)
        if reply.finish != "deadline":
            break
    return reply


def _joined(reply: Reply, more: Reply) -> Reply:
    return Reply(
        np.concatenate([reply.tokens, more.tokens]),
        np.concatenate([reply.log_probs, more.log_probs]),
        np.concatenate([reply.versions, more.versions]),
        more.finish,
        reply.text + more.text,
        reply.read_by,
    )


def _end(step: Step, num_turns: int, limits: EpisodeLimits, left_s: float) -> str:
    """Says why the episode is over; nothing if it goes on."""
    if step.done:
        return "done"
    if num_turns >= limits.max_turns:
        return "turns"
    return "deadline" if left_s <= 0 else ""


def _has_ended(reply: Reply, conversation: Speaker) -> bool:
    """Did the policy draw the end of its turn itself?"""
    return conversation.end_token is not None and int(reply.tokens[-1]) == conversation.end_token


def _in_words(reply: Reply, step: Step, num_read: int) -> TurnText:
    return {
        "reply": reply.text,
        "observation": step.text,
        "reward": float(step.reward),
        "tokens": len(reply.tokens),
        "read": num_read,
        "versions": [int(reply.versions.min()), int(reply.versions.max())],
    }
