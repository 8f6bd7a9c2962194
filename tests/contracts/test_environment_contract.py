"""Environments pass the contract suite: vectors of copies, vectors of their own, ours and those of EnvPool."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("gymnasium", reason="needs headway[games]")
pytest.importorskip("numba", reason="needs headway[games]")

from headway.testing.environment_contract import EnvironmentContract


class TestCartPole(EnvironmentContract):
    env_id = "CartPole-v1"


class TestWaitingCartPole(EnvironmentContract):
    env_id = "headway.envs.waiting_cartpole:headway/WaitingCartPole-v1"


class TestPendulum(EnvironmentContract):
    """Continuous actions."""

    env_id = "Pendulum-v1"


class TestTaxi(EnvironmentContract):
    """Counted observations, and masks."""

    env_id = "Taxi-v4"


class TestBlackjack(EnvironmentContract):
    """Nested observations."""

    env_id = "Blackjack-v1"


class TestColorLines(EnvironmentContract):
    """A vector of its own, with masks of 6561 moves."""

    env_id = "headway/ColorLines-v0"


class TestPictures(EnvironmentContract):
    """Pictures of bytes."""

    env_id = "picture_games:Lights-last-v0"


@pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="EnvPool is not installed")
class TestEnvPool(EnvironmentContract):
    """Copies in threads of another library."""

    env_id = "Acrobot-v1"
    backend = "envpool"
    steps = 600
    is_picklable = False
