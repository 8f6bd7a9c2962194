"""Environments that speak in text: a language model is told something, replies, and is told what came of it."""

from __future__ import annotations

from headway.agents.env import (
    AgentEnv,
    BadEnvironment,
    EnvFactory,
    EnvironmentLost,
    Step,
    checked_env,
    checked_step,
    checked_text,
)
from headway.agents.loading import load_env

__all__ = [
    "AgentEnv",
    "BadEnvironment",
    "EnvFactory",
    "EnvironmentLost",
    "Step",
    "checked_env",
    "checked_step",
    "checked_text",
    "load_env",
]
