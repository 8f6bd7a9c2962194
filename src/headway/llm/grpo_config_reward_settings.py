"""What a reply is worth and who computes it, as settings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from headway.core.types_opaque import JsonObject, SettingValue
from headway.llm.tasks.reward_functions import MODEL
from headway.llm.tasks.reward_pool import PoolSettings
from headway.runs.config_shared_settings import SettingsGroup

DEADLINE_S = 120.0
THREADS = 32
OF_THE_MODEL = ("reward_model_device", "reward_model_rows")
OF_THE_POOL = (
    *("reward_runs_in", "reward_calls", "reward_deadline_s"),
    *("reward_attempts", "reward_delay_s", "reward_backoff"),
)


class RewardSettings(SettingsGroup):
    """Rewards: what a reply is worth, and who computes it."""

    for_evaluation: ClassVar[Sequence[str]] = (*OF_THE_MODEL, *OF_THE_POOL)

    reward: tuple[str, ...] = ()
    """What scores replies: file.py:function or module:function of your own, math (math-verify), or task (the task's own
    rule, which it is by default). Several, as a list, are added up."""
    reward_weights: tuple[float, ...] = ()
    """A weight for each of them, and a last one for reward_model. Empty: 1 each."""
    reward_options: JsonObject = Field(default_factory=dict)
    """More arguments, by name, for the functions of your own, like {threshold: 0.5}."""
    reward_model: str = ""
    """A folder, or an id on the model hub, of a reward model: a transformer with one number as its head. It is added to
    what reward names."""
    reward_model_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it computes. auto: where the engine does."""
    reward_model_rows: int = Field(default=32, ge=1)
    """Replies that it reads in one pass. More use the hardware better and take more memory."""
    reward_runs_in: Literal["threads", "processes"] = "threads"
    """Where reward functions run. A call that hangs is left behind in a thread, and killed in a process; what computes
    for long is quicker in processes."""
    reward_calls: int | None = Field(default=None, ge=1)
    """Reward calls at once, of each collector. More hide more latency and ask more of whoever answers. Default: 32; in
    processes as many as there are cores."""
    reward_deadline_s: float | None = Field(default=None, gt=0)
    """One attempt at one call may take so long; then it is given up and counted. Default: 120, or less, so that all
    attempts fit into half of collect_deadline_s."""
    reward_attempts: int = Field(default=3, ge=1)
    """Attempts at a call that raises or is late. When they are used up its group fails (attempts_on_error and
    on_failure say what follows)."""
    reward_delay_s: float = Field(default=0.5, ge=0)
    """Pause before the second attempt."""
    reward_backoff: float = Field(default=2.0, ge=1)
    """Every further pause is so many times as long."""

    @field_validator("reward", mode="before")
    @classmethod
    def _one_is_a_list_of_one(cls, value: SettingValue) -> SettingValue:
        return ((value,) if value else ()) if isinstance(value, str) else value

    @property
    def reward_names(self) -> tuple[str, ...]:
        """All rewards that are added up, by name; none: the task scores by itself."""
        return (*self.reward, f"{MODEL}{self.reward_model}") if self.reward_model else self.reward

    def pool_settings(self, wait_s: float) -> PoolSettings:
        """How rewards are computed; a caller waits so long for a group at most."""
        limit = min(DEADLINE_S, wait_s / (2 * self.reward_attempts))
        return PoolSettings(
            runs_in=self.reward_runs_in,
            calls=self.reward_calls or (THREADS if self.reward_runs_in == "threads" else os.cpu_count() or 1),
            deadline_s=limit if self.reward_deadline_s is None else self.reward_deadline_s,
            attempts=self.reward_attempts,
            delay_s=self.reward_delay_s,
            backoff=self.reward_backoff,
            wait_s=wait_s,
        )

    def check_rewards(self, *, by_option: bool, collect_deadline_s: float) -> None:
        """Refuses what cannot work together. `by_option`: the task's own options name reward functions."""
        names = self.reward_names
        if by_option and names:
            raise ValueError(f"rewards are named twice: reward={list(names)} and task_options.reward; keep one of them")
        if self.reward_weights and not by_option and len(self.reward_weights) != len(names):
            raise ValueError(
                f"reward_weights must be one for each of {len(names)} rewards ({', '.join(names) or 'none'}), "
                f"received {list(self.reward_weights)}"
            )
        if by_option and self.reward_weights:
            raise ValueError("reward_weights goes with reward; task_options have reward_weights of their own")
        if self.reward_options and not self.reward:
            raise ValueError(f"reward_options={self.reward_options} needs reward")
        for name in OF_THE_MODEL if not self.reward_model else ():
            self._is_default(name, "reward_model")
        for name in OF_THE_POOL if not (names or by_option) else ():
            self._is_default(name, "reward or reward_model: the rule of a task is computed at once")
        longest = self.pool_settings(collect_deadline_s).longest_s
        if (names or by_option) and longest >= collect_deadline_s:
            raise ValueError(
                f"a reward call can take {longest:g} s in all (reward_attempts x reward_deadline_s, and pauses): that "
                f"must be below collect_deadline_s={collect_deadline_s:g}, or the collector is restarted first"
            )

    def _is_default(self, name: str, needs: str) -> None:
        value = getattr(self, name)
        if value != type(self).model_fields[name].default:
            raise ValueError(f"{name}={value!r} needs {needs}")
