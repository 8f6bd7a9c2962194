"""What every environment for agents must do to be collected from. A new one is accepted when it passes this suite.

Derive a test class, say how one is made, and let pytest find it:

    class TestGuess(AgentEnvContract):
        make_env = staticmethod(load_env("my_games.py:Guess"))

`headway check-env my_games.py:Guess` runs the same checks and prints a line for each.
"""

from __future__ import annotations

import pytest

from headway.agents.env import AgentEnv
from headway.testing.agent_env_checks import CHECKS, FAILED, CheckResult, EnvTrial, check_env, run_check

__all__ = ["AgentEnvContract", "CheckResult", "check_env"]


class AgentEnvContract:
    """The checks as tests. A class derived from it says `make_env`; what that is can be pickled."""

    seeds = 3

    def make_env(self) -> AgentEnv:
        raise NotImplementedError("say how the environment is made: make_env = staticmethod(load_env(...))")

    @pytest.mark.parametrize("check", list(CHECKS))
    def test_it_keeps_the_contract(self, check: str) -> None:
        trial = EnvTrial(self.make_env, type(self).__name__, range(self.seeds))
        result = run_check(trial, check)
        assert result.outcome != FAILED, result.detail
