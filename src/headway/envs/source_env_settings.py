"""The settings of recipes whose environment is Gymnasium's or your own: how it is made and what is seen of it."""

from __future__ import annotations

from pydantic import Field, field_validator

from headway.core.types_opaque import JsonObject, SettingValue
from headway.envs.source_env_source import EnvSource
from headway.runs.config_shared_settings import SettingsGroup
from headway.runs.user_code_named_classes import anywhere


class EnvSettings(SettingsGroup):
    """Preprocessing: how the environment is made, and what is put around it."""

    env: str = "CartPole-v1"
    """A registered Gymnasium environment; `module:Id`, where importing the module registers it; or a class of your own,
    file.py:Class or module:Class."""
    env_kwargs: JsonObject = Field(default_factory=dict)
    """What the environment is made with: {gravity: 9.8}."""
    wrappers: tuple[str, ...] = ()
    """Put around it, in this order: names of gymnasium.wrappers, file.py:Class or module:Class, with commas. They are
    there in evaluations too."""
    time_limit: int | None = Field(default=None, ge=1)
    """Steps of the environment after which an episode is cut, in place of its own limit."""
    frame_skip: int = Field(default=1, ge=1)
    """How often each action is done. More: decisions are rarer, and episodes have fewer steps to learn from."""
    grey: bool = False
    """See pictures without colours."""
    resize: tuple[int, int] | None = None
    """See pictures of this size: 84, or 96x64 (height, width)."""
    frame_stack: int = Field(default=1, ge=1)
    """How many observations are seen at once, the newest last: where one does not show what moves."""

    @field_validator("env")
    @classmethod
    def _means_the_same_elsewhere(cls, value: str) -> str:
        return anywhere(value)

    @field_validator("wrappers", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> SettingValue:
        names = value.split(",") if isinstance(value, str) else value
        if not isinstance(names, list | tuple):
            return names
        return tuple(anywhere(name.strip()) if isinstance(name, str) else name for name in names if name)

    @field_validator("resize", mode="before")
    @classmethod
    def _a_side_or_two(cls, value: object) -> SettingValue:
        if isinstance(value, str):
            sides = value.replace("x", ",").split(",")
            value = [int(side) for side in sides] if all(side.strip().isdigit() for side in sides) else value
        if isinstance(value, int) and not isinstance(value, bool):
            value = [value]
        if isinstance(value, list | tuple) and len(value) == 1:
            value = [*value, *value]
        return value

    @property
    def source(self) -> EnvSource:
        """What makes copies of it."""
        return EnvSource(
            self.env,
            kwargs=self.env_kwargs,
            wrappers=self.wrappers,
            time_limit=self.time_limit,
            frame_skip=self.frame_skip,
            frame_stack=self.frame_stack,
            grey=self.grey,
            resize=self.resize,
        )
