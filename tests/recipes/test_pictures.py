"""Environments that show pictures, in every layout there is."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

from gymnasium import spaces
from search_runs import run, tiny

from headway.core.types import Snapshot, Ticket
from headway.envs.gymnasium_vector import reaches_255
from headway.runs.fingerprint import fingerprint
from headway.runs.recipes_package import MODULES, load_recipe
from headway.zero.self_play_planes import as_seen, seen_shape
from headway.zero.stations_search_run import game_spec

every_recipe = pytest.mark.parametrize("recipe", ["muzero", "unizero"])
SMALL = {"muzero": {"latent": 4, "hidden": 8}, "unizero": {"context_steps": 1}}


def config_of(recipe: str, layout: str, **more: Any) -> Any:
    return tiny(recipe, env=f"picture_games:Lights-{layout}-v0", **{**SMALL[recipe], "updates": 3, **more})


@every_recipe
def test_the_same_planes_reach_the_network_whichever_layout_they_come_in(recipe: str) -> None:
    segments, weights = [], []
    for layout in ("last", "first"):
        config = config_of(recipe, layout)
        spec = game_spec(config)
        assert (spec.observation, spec.is_picture, spec.is_bytes) == ((3, 32, 32), True, True)
        stations = load_recipe(recipe).stations(config)
        collector = stations.collector(0)
        snapshot = Snapshot(1, stations.learner().snapshot())
        segments.append(collector.collect(Ticket(0, 5, 1), snapshot).payload)
        weights.append(fingerprint(run(recipe, config).weights))
    last, first = segments
    assert last.obs.shape == (8, 2, 3, 32, 32)
    assert last.obs.dtype == np.uint8, "bytes on the way"
    assert sorted(np.unique(last.obs[:, :, 0])) == [0, 250], "the first plane is red"
    for name in ("obs", "actions", "policies", "values"):
        np.testing.assert_array_equal(getattr(last, name), getattr(first, name), err_msg=name)
    assert weights[0] == weights[1]


@every_recipe
def test_a_picture_without_channels_has_one(recipe: str) -> None:
    config = config_of(recipe, "gray", evaluate_every=3, eval_episodes=2, eval_simulations=2)
    assert game_spec(config).observation == (1, 32, 32)
    result = run(recipe, config)
    assert result.updates == 3
    assert len(result.scores) == 1


@every_recipe
def test_bytes_are_divided_by_255_before_the_first_layer_and_ones_are_not(recipe: str) -> None:
    seen = []
    config = config_of(recipe, "last")
    spec = game_spec(config)
    module = import_module(MODULES[recipe])
    network = module._network(config, spec)
    network.encoder[0].register_forward_hook(lambda layer, given, made: seen.append(given[0]))
    network.encode(torch.full((1, 3, 32, 32), 255.0))
    assert seen[0].unique().tolist() == [1.0]
    assert not reaches_255(spaces.Box(0, 1, (32, 32, 3), np.uint8))


def test_replays_keep_bytes() -> None:
    stations = load_recipe("muzero").stations(config_of("muzero", "last", replay_mode="shared"))
    replay: Any = stations.replay()  # type: ignore[misc]
    assert replay._rings.steps.obs.dtype == np.uint8
    assert replay._rings.steps.obs.shape[1:] == (3, 32, 32)


@pytest.mark.parametrize(
    ("shape", "kind", "seen"),
    [
        ((84, 84, 1), np.uint8, (1, 84, 84)),
        ((84, 96, 4), np.uint8, (4, 84, 96)),
        ((64, 64, 3), np.float32, (3, 64, 64)),
        ((4, 84, 84), np.uint8, (4, 84, 84)),
        ((12, 84, 84), np.uint8, (12, 84, 84)),
        ((84, 84), np.uint8, (1, 84, 84)),
        ((7, 7, 3), np.uint8, (3, 7, 7)),
        ((128,), np.uint8, (128,)),
        ((3, 4), np.float32, (3, 4)),
        ((5, 84), np.uint8, (5, 84)),
    ],
)
def test_where_the_channels_are(shape: tuple[int, ...], kind: Any, seen: tuple[int, ...]) -> None:
    space = spaces.Box(0, 255 if kind == np.uint8 else 1, shape, kind)
    assert seen_shape(space) == seen
    rows = np.stack([space.sample(), space.sample()])
    assert as_seen(rows, space).shape == (2, *seen)
    assert as_seen(rows, space).dtype == kind
    if len(shape) == 3 and min(shape[:2]) > 9 and kind == np.uint8:  # the same picture as floats
        floats = spaces.Box(0, 255, shape, np.float32)
        np.testing.assert_array_equal(as_seen(rows.astype(np.float32), floats), as_seen(rows, space))
    if len(shape) == 3 and shape != seen:
        np.testing.assert_array_equal(as_seen(rows, space)[1, 0], rows[1, :, :, 0])


@pytest.mark.parametrize("shape", [(84, 84, 12), (84, 84, 2), (2, 84, 84, 3)])
def test_a_picture_that_cannot_be_read_is_one_clear_line(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"no picture that can be read; allowed: \[height, width\]") as caught:
        seen_shape(spaces.Box(0, 255, shape, np.uint8))
    assert str(list(shape)) in str(caught.value) and "\n" not in str(caught.value)


@every_recipe
def test_a_run_of_such_pictures_does_not_begin(recipe: str) -> None:
    with pytest.raises(ValueError, match="no picture that can be read"):
        load_recipe(recipe).stations(config_of(recipe, "frames"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@every_recipe
def test_pictures_are_learned(recipe: str) -> None:
    more = {"updates": 600, "wall_s": 500, "evaluate_every": 50, "eval_episodes": 20, "target_score": 5.5, "seed": 1}
    now = {"gamma": 0.5, "td_steps": 1, "value_range": 3.0, "value_bins": 21}  # what is done is paid at once
    pace = {"num_envs": 8, "replay_min_size": 200, "replay_capacity": 2000, "replay_ratio": 0.2, "average": 0.9}
    model = {"learning_rate": 3e-3, "batch_size": 32, "num_simulations": 8}
    sizes = {"muzero": {"latent": 8, "hidden": 32}, "unizero": {"dim": 32, "context_steps": 0}}[recipe]
    result = run(recipe, config_of(recipe, "last", **more, **now, **pace, **model, **sizes))
    assert max(score.value or 0.0 for score in result.scores) >= 5.5
