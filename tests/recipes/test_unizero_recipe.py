"""The UniZero recipe: what a search sees of the past, and what is refused (test_search_recipes.py has the rest)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

import search_runs

from headway.core.types import Rollout, Snapshot, Ticket
from headway.runs.config import ConfigError, read_values
from headway.runs.recipes_package import load_recipe
from headway.zero.segments import OldTargets
from headway.zero.unizero_recipe import UniZeroConfig

tiny, read = (partial(function, "unizero") for function in (search_runs.tiny, search_runs.read))


def test_collectors_and_reanalyzers_see_as_much_of_the_past_as_they_are_told() -> None:
    """The first step of a game has none, so there the searches agree."""
    values, again = [], []
    for steps in (0, 2):
        config = tiny(context_steps=steps, root_noise_weight=0.0, reanalyze_ratio=1.0)
        stations = load_recipe("unizero").stations(config)
        weights = stations.learner().snapshot()["network"].copy()
        weights += 0.2 * np.random.default_rng(0).normal(size=weights.shape).astype(np.float32)
        snapshot = Snapshot(1, {"network": weights})
        segment = stations.collector(0).collect(Ticket(0, 5, 1), snapshot).payload
        values.append(segment.values)
        work: dict[str, Any] = {
            name: np.swapaxes(getattr(segment, name), 0, 1) for name in ("obs", "actions", "to_play")
        }
        begins = np.zeros((2, 8), bool)
        begins[:, 0] = True
        work |= {"ids": np.arange(2), "round": 0, "legal": None, "begins": begins}
        reanalyzer: Any = stations.reanalyzer()  # type: ignore[misc]
        again.append(reanalyzer.reanalyze(snapshot, Rollout(OldTargets(**work), steps=16)).payload.values.T)
    np.testing.assert_allclose(values[0][0], values[1][0], rtol=1e-4)
    np.testing.assert_allclose(again[0][0], again[1][0], rtol=1e-4)
    assert not np.allclose(values[0][1], values[1][1], rtol=1e-3)
    assert not np.allclose(again[0][1], again[1][1], rtol=1e-3)


def test_a_token_looks_as_far_back_as_learning_does_unless_told() -> None:
    from headway.zero.stations_search_run import game_spec
    from headway.zero.unizero_recipe import _network

    for told, width in ((None, 5), (3, 3)):
        config = tiny(num_unroll_steps=4, attention_steps=told)
        assert _network(config, game_spec(config)).architecture.attention_steps == width


def test_a_board_is_seen_through_windows_and_anything_else_is_not() -> None:
    from headway.zero.stations_search_run import game_spec
    from headway.zero.unizero_recipe import _network

    for env, windows, shape in (("connect_four", 6, (2, 6, 7)), ("CartPole-v1", 0, (4,))):
        config = read(env=env, wall_s=1, board_features=6)
        network = _network(config, game_spec(config))
        assert (network.architecture.windows, network.architecture.observation) == (windows, shape)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"env": "CartPol-v1"}, "did you mean 'CartPole-v1'"),
        ({"dim": 20, "heads": 4}, "dim must be a multiple of 2 * heads = 8, received 20"),
        ({"env": "tictactoe", "context_steps": 2}, "a board shows everything, it must be 0"),
        ({"layer": 3}, "layers"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_values(UniZeroConfig, {"wall_s": 1, **values})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
