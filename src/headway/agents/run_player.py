"""A player whose replies are those of a run's newest weights: one conversation, with an engine of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from headway.cli.options_words import UsageError
from headway.core.types import derive_seed
from headway.core.types_opaque import SettingValue
from headway.llm.engine.protocol_engine import Reply, Sampling, Session
from headway.runs.folder import RunFolder

TAKEN = (
    *("chat_template", "chat_template_options", "system_prompt", "reply_prefix", "stop", "stop_token_ids"),
    *("max_turn_tokens", "max_episode_tokens", "max_context_tokens", "device", "torch_threads"),
)
"""What a run was told that its player is told too, where the run has it."""


class RunPlayer:
    """Replies to what a game says, turn by turn. What was said before is read once."""

    def __init__(
        self, run: Path, game: str, options: Mapping[str, SettingValue], *, temperature: float = 0.0, seed: int = 0
    ) -> None:
        from headway.agents.loading import load_env
        from headway.agents.recipe import AgentConfig, build_conversation
        from headway.agents.stepping import env_facts
        from headway.llm.build_language_model import build_engine
        from headway.runs.config import read_values

        folder = RunFolder.existing(run)
        recipe, values = folder.read_config()
        if "model" not in values:
            raise UsageError(f"{folder.path} has no language model that could play: its recipe is {recipe}")
        said = {name: values[name] for name in TAKEN if name in values}
        config = read_values(
            AgentConfig, said, {"model": str(folder.path), "env": game, "env_options": dict(options), "engine_rows": 1}
        )
        assert isinstance(config, AgentConfig)
        self._limits = config.limits(1)
        self._sampling = Sampling(temperature, max_tokens=config.max_turn_tokens, stop=config.stop)
        self._conversation = build_conversation(config, env_facts(config.env_stepping, load_env(game, options)))
        self._engine = build_engine(config, self._sampling)
        self._session: Session | None = None
        self._seed = seed
        self._last: Reply | None = None
        self._num_tokens = self._num_turns = 0

    def __call__(self, text: str) -> str:
        spoken, prefix = self._conversation, self._conversation.prefix
        if self._session is None:
            told = (*spoken.first(text), *prefix)
            (self._session,) = self._engine.open("play", told)
        else:
            assert self._last is not None
            told = (*spoken.following(text, ended=int(self._last.tokens[-1]) == spoken.end_token), *prefix)
            self._session.say(told)
        self._num_tokens += len(told)
        room = min(self._limits.max_turn_tokens, self._limits.max_context_tokens - self._num_tokens)
        if room < 1:
            raise UsageError(f"the episode has more than max_context_tokens={self._limits.max_context_tokens} tokens")
        seed = derive_seed(self._seed, "turn", self._num_turns)
        self._last = self._session.reply(replace(self._sampling, max_tokens=room), seed=seed)
        self._num_turns += 1
        self._num_tokens += len(self._last.tokens)
        return self._last.text

    def close(self) -> None:
        self._engine.close()
