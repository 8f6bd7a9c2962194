"""Episodes of a supervised run: where they come from, the words of the model, and those that are held out."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headway.agents.env import AgentEnv
from headway.agents.loading import load_env
from headway.agents.players import EXPERT, RANDOM, player_of
from headway.core.types import derive_seed
from headway.core.types_opaque import SettingValue
from headway.llm.model.conversation import Conversation
from headway.llm.rollouts_episode import Episodes
from headway.llm.sft_episodes_recorded_episodes import (
    EpisodeSource,
    LongEpisode,
    PlayedGames,
    WrittenChats,
    episode_of_chat,
    require_room,
)
from headway.llm.tasks.chat_files import WrittenChat, parted, read_chats

if TYPE_CHECKING:
    from headway.llm.sft_config import SFTConfig


class Converse:
    """Makes the conversation for a chat: one for each system prompt, tools and role that occur, all of one model."""

    def __init__(self, config: SFTConfig) -> None:
        from headway.llm.model.loading_models import load_tokenizer

        self._config = config
        self._tokenizer = load_tokenizer(config.model)
        self._made: dict[tuple[str, str, str], Conversation] = {}

    def __call__(self, chat: WrittenChat, role: str) -> Conversation:
        system = self._config.system_prompt or chat.system_prompt
        key = system, role, repr(chat.tools)
        if key not in self._made:
            self._made[key] = self.make(system, chat.tools, "", role)
        return self._made[key]

    def for_game(self, env: AgentEnv) -> Conversation:
        """The conversation with an environment, which may have words of its own."""
        config = self._config
        system = config.system_prompt or getattr(env, "system_prompt", "")
        prefix = getattr(env, "reply_prefix", "") if config.reply_prefix is None else config.reply_prefix
        return self.make(system, tuple(getattr(env, "tools", ())), prefix, "user")

    def make(self, system: str, tools: tuple[Mapping[str, SettingValue], ...], prefix: str, role: str) -> Conversation:
        return Conversation(
            self._tokenizer,
            name=self._config.model,
            chat_template=self._config.chat_template,
            chat_template_options=self._config.chat_template_options,
            system_prompt=system,
            tools=tools,
            reply_prefix=prefix,
            observation_role=role,
        )


def chats_of(config: SFTConfig) -> tuple[list[WrittenChat], list[WrittenChat]]:
    """The conversations of the file to train on, and those to evaluate on."""
    chats = _read(config.data, Path(config.data).stat().st_mtime_ns if Path(config.data).is_file() else 0)
    return parted(chats, config.eval_records) if config.evaluate_every else (chats, [])


@functools.lru_cache(maxsize=2)
def _read(file: str, modified_ns: int) -> list[WrittenChat]:
    return read_chats(Path(file).expanduser())


def source_of(config: SFTConfig) -> EpisodeSource:
    """What tickets bring."""
    converse = Converse(config)
    if config.env:
        env = load_env(config.env, config.env_options)()
        return PlayedGames(env, converse.for_game(env), expert_share=config.expert_share)
    chats = chats_of(config)[0]
    if config.on_long_episode == "drop":
        chats = [chat for chat in chats if _fits(config, converse, chat)]
        if not chats:
            raise ValueError(f"{config.data}: every conversation to train on is too long")
    return WrittenChats(chats, converse, seed=config.seed)


def held_out_episodes(config: SFTConfig) -> list[Episodes]:
    """What every evaluation reads, whatever the seed of the run: games of its expert, if that plays."""
    converse = Converse(config)
    if config.env:
        env = load_env(config.env, config.env_options)()
        games = PlayedGames(env, converse.for_game(env), expert_share=float(config.expert_share > 0))
        found = [games.episode(n, derive_seed(0, "held out", n), 0) for n in range(config.eval_records)]
    else:
        found = [episode_of_chat(chat, converse, version=0) for chat in chats_of(config)[1]]
    kept = [record for record in found if _has_room(config, record)]
    if not kept:
        raise ValueError(f"{config.env or config.data}: there are no episodes to evaluate on (evaluate_every=0: none)")
    return kept


def check_episodes(config: SFTConfig) -> None:
    """Refuses, before a run, what is known to go wrong in it: names, lines, templates, lengths."""
    converse = Converse(config)
    if not config.env:
        for chat in (one for part in chats_of(config) for one in part):
            _fits(config, converse, chat)
        return
    env = load_env(config.env, config.env_options)()
    if getattr(env, "seeds_globally", False) and config.runtime not in ("processes", "ray"):
        raise ValueError(
            f"environment {config.env} seeds the random generator that all threads share: it needs "
            f"runtime='processes', received {config.runtime!r}"
        )
    for who, is_needed in ((EXPERT, config.expert_share > 0), (RANDOM, config.expert_share < 1)):
        if is_needed:
            player_of(env, who, 0)
    converse.for_game(env)


def _fits(config: SFTConfig, converse: Converse, chat: WrittenChat) -> bool:
    return _has_room(config, episode_of_chat(chat, converse, version=0))


def _has_room(config: SFTConfig, record: Episodes) -> bool:
    try:
        require_room(record, config.max_context_tokens)
    except LongEpisode:
        if config.on_long_episode == "error":
            raise
        return False
    return True
