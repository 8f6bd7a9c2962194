"""Episodes that others have played or written, as a policy's own would be recorded. No engine is needed.

    ticket --> a game of its seed, played by the expert or at random --+
           --> a conversation of a file (its index says which) --------+--> tokens of the model's template --> rollout

The record is that of episodes which a policy plays (llm/rollouts_episode.py): replies are trained on, what is said to
them is only read. Log-probabilities are 0, nobody drew the tokens; versions are those of the ticket's snapshot, so that
staleness says how old a rollout is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np

from headway.agents.env import AgentEnv
from headway.agents.players import EXPERT, RANDOM, PlayedConversation, play_episode
from headway.core.types import Rollout, Snapshot, Span, Ticket, derive_seed
from headway.llm.model.conversation import Conversation
from headway.llm.rollouts_episode import EpisodeBuilder, Episodes
from headway.llm.tasks.chat_files import WEIGHT, WrittenChat

ConverseFor = Callable[[WrittenChat, str], Conversation]
"""Returns the conversation for a written chat and the role in which it is said what follows a reply."""


class LongEpisode(ValueError):
    """An episode has more tokens than there is room for. One line that names it."""


class EpisodeSource(Protocol):
    """Says which episode a ticket brings: the same for the same index and seed."""

    def episode(self, index: int, seed: int, version: int) -> Episodes: ...


def expert_plays(index: int, share: float) -> bool:
    """Is the game of this number the expert's? Experts and chance take turns as evenly as the share allows."""
    return int(share * (index + 1)) > int(share * index)


class PlayedGames:
    """Plays the games of an environment: a share of them by its expert, the others at random."""

    def __init__(self, env: AgentEnv, conversation: Conversation, *, expert_share: float) -> None:
        self._env = env
        self._conversation = conversation
        self._expert_share = expert_share

    def episode(self, index: int, seed: int, version: int) -> Episodes:
        who = EXPERT if expert_plays(index, self._expert_share) else RANDOM
        played = play_episode(self._env, who, derive_seed(seed, "game"))
        return episode_of_game(played, self._conversation, version=version, uid=f"{who}/{index}")


class WrittenChats:
    """Takes the conversations of a file, shuffled anew every epoch."""

    def __init__(self, chats: Sequence[WrittenChat], converse: ConverseFor, *, seed: int) -> None:
        self._chats = chats
        self._converse = converse
        self._seed = seed
        self._order = functools.lru_cache(maxsize=2)(self._shuffled)

    def episode(self, index: int, seed: int, version: int) -> Episodes:
        epoch, place = divmod(index, len(self._chats))
        return episode_of_chat(self._chats[int(self._order(epoch)[place])], self._converse, version=version)

    def _shuffled(self, epoch: int) -> np.ndarray:
        return np.random.default_rng(derive_seed(self._seed, "epoch", epoch)).permutation(len(self._chats))


class RecordedEpisodeCollector:
    """Makes the rollout of a ticket from a source that needs no policy."""

    def __init__(self, source: EpisodeSource, *, max_tokens: int, on_long: Literal["error", "drop"] = "error") -> None:
        self._source = source
        self._max_tokens = max_tokens
        self._on_long = on_long

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        record = self._source.episode(ticket.index, ticket.seed, snapshot.version)
        info = {"uid": record.uid}
        try:
            require_room(record, self._max_tokens)
        except LongEpisode:
            if self._on_long == "error":
                raise
            span = Span(snapshot.version, snapshot.version)
            return Rollout(None, steps=0, span=span, info=info, filtered=True)
        return Rollout(record, steps=int(record.num_trained.sum()), length=record.length, span=record.span, info=info)


def require_room(record: Episodes, max_tokens: int) -> None:
    """Refuses an episode with more tokens, its prompt included."""
    size = len(record.prompt) + len(record.tokens)
    if size > max_tokens:
        raise LongEpisode(
            f"episode {record.uid} has {size} tokens, more than max_context_tokens={max_tokens} "
            "(on_long_episode=drop leaves it out)"
        )


def episode_of_game(played: PlayedConversation, conversation: Conversation, *, version: int, uid: str) -> Episodes:
    """Records a game as if a policy had said what its player did."""
    builder = EpisodeBuilder(conversation.first(played.texts[0]), uid)
    for number, (reply, reward) in enumerate(zip(played.replies, played.rewards, strict=True)):
        if number:
            builder.add_observation(conversation.following(played.texts[number], ended=True), version)
        if conversation.prefix:
            builder.add_prefix(conversation.prefix, version)
        tokens = conversation.written_reply(reply)
        builder.add_reply(tokens, np.zeros(len(tokens), np.float32), version, reward)
    return builder.finish("done" if played.end == "done" else "turns", success=played.success)


def episode_of_chat(chat: WrittenChat, converse: ConverseFor, *, version: int) -> Episodes:
    """Records a written conversation. Replies that are not to be imitated are read like what is said to them."""
    builder: EpisodeBuilder | None = None
    read: list[int] = []  # since the last reply that is trained on
    for number, remark in enumerate(chat.remarks):
        conversation = converse(chat, remark.role if number else "user")
        read += conversation.following(remark.text, ended=True) if number else conversation.first(remark.text)
        tokens = conversation.written_reply(remark.reply)
        if not remark.is_trained:
            read += tokens
            continue
        if builder is None:
            builder = EpisodeBuilder(read, chat.uid)
        else:
            builder.add_observation(read, version)
        builder.add_reply(tokens, np.zeros(len(tokens), np.float32), version)
        read = []
    assert builder is not None
    return builder.finish("done", parts={WEIGHT: chat.weight})
