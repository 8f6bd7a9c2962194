"""Plays one episode to its end. Chance replies, or an expert, a person who types, or any function of the text."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TextIO

from headway.agents.env import AgentEnv, Step, checked_step, checked_text, is_success
from headway.core.text_naming import unknown
from headway.core.types import derive_seed
from headway.core.types_opaque import UserFunction

TextPlayer = Callable[[str], str]
"""Replies to what the environment said last."""
RANDOM, EXPERT = "random", "expert"
DONE, TURNS, LEFT = "done", "turns", "left"


class PlayerLeft(Exception):
    """A person has had enough: the episode ends here."""


@dataclass(frozen=True, slots=True)
class PlayedConversation:
    """Holds what was said in one episode, and what it was worth."""

    seed: int
    texts: tuple[str, ...]
    """What the environment said: first, and after each reply."""
    replies: tuple[str, ...]
    rewards: tuple[float, ...]
    """Of each reply."""
    success: bool
    end: str
    """`done`: the environment ended it; `turns`: the limit did; `left`: the player did."""

    @property
    def total(self) -> float:
        """Returns the sum of the rewards."""
        return sum(self.rewards)


def play_episode(
    env: AgentEnv,
    player: TextPlayer | str,
    seed: int,
    *,
    on_text: Callable[[str], object] = lambda text: None,
    on_reply: Callable[[str, Step], object] = lambda reply, step: None,
) -> PlayedConversation:
    """Plays the episode of this seed to its end, or for `max_turns` replies.

    The player is a function of the text, or `random` or `expert` for the environment's own. Whoever watches is called
    with every text before it is replied to, and with every reply and what came of it.
    """
    name = type(env).__name__
    choose = player_of(env, player, seed) if isinstance(player, str) else player
    texts, replies, rewards = [checked_text(env.reset(seed), name)], list[str](), list[float]()
    end, success = TURNS, None
    while len(replies) < env.max_turns:
        on_text(texts[-1])
        try:
            reply = choose(texts[-1])
        except PlayerLeft:
            end = LEFT
            break
        step = checked_step(env.step(reply), name)
        on_reply(reply, step)
        texts.append(step.text)
        replies.append(reply)
        rewards.append(step.reward)
        if step.done:
            end, success = DONE, step.success
            break
    is_won = is_success(sum(rewards), success)
    return PlayedConversation(seed, tuple(texts), tuple(replies), tuple(rewards), is_won, end)


def player_of(env: AgentEnv, who: str, seed: int) -> TextPlayer:
    """Returns the environment's own `random` or `expert` player; chance depends on the seed alone."""
    if who not in (RANDOM, EXPERT):
        raise ValueError(unknown("player", who, (RANDOM, EXPERT)))
    reply: UserFunction | None = getattr(env, f"{who}_reply", None)
    if reply is None:
        raise ValueError(f"{type(env).__name__} has no {who} player: it has no method {who}_reply")
    if who == EXPERT:
        return lambda text: str(reply())
    rng = random.Random(derive_seed(seed, "random player"))
    return lambda text: str(reply(rng))


def scripted_player(replies: Iterator[str]) -> TextPlayer:
    """Returns a player that says one reply after another, whatever it is told, and then leaves."""

    def choose(text: str) -> str:
        try:
            return next(replies)
        except StopIteration:
            raise PlayerLeft from None

    return choose


def human(lines: TextIO, prompt: Callable[[], object] = lambda: None) -> TextPlayer:
    """Returns a person who types a reply a line, after a prompt; the end of the input is the end of the episode."""

    def choose(text: str) -> str:
        prompt()
        line = lines.readline()
        if not line:
            raise PlayerLeft
        return line.rstrip("\n")

    return choose
