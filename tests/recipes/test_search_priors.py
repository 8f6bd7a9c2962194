"""What somebody else thinks of actions, in runs that play by search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from search_runs import read, run, tiny

from headway.core.types import Rollout, Snapshot, Ticket
from headway.runs.config import ConfigError
from headway.runs.fingerprint import fingerprint
from headway.runs.recipes_package import load_recipe
from headway.zero.muzero_inference import VectorModel
from headway.zero.muzero_network import MuZeroArchitecture, VectorNetwork
from headway.zero.planner_planning import Planner
from headway.zero.search_package import SearchSettings
from headway.zero.segments import OldTargets

every_recipe = pytest.mark.parametrize("recipe", ["muzero", "unizero"])
SOURCE = """
import numpy as np

def always_last(observations, legal):
    wanted = np.zeros(legal.shape)
    wanted[:, -1] = 1.0
    return wanted

def nobody(observations, legal):
    raise RuntimeError("nobody is to be asked")

def of_another_game(observations, legal):
    return np.ones((len(legal), 7))

def negative(observations, legal):
    return -np.ones(legal.shape)

def unknown(observations, legal):
    return np.full(legal.shape, np.nan)

def of_what(observations):
    return observations
"""


@pytest.fixture
def priors(tmp_path: Path) -> str:
    (tmp_path / "priors.py").write_text(SOURCE)
    return str(tmp_path / "priors.py")


def the_three(recipe: str, config: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """Policies of a collector and a reanalyzer, and the score of an evaluation, with weights that know nothing."""
    stations = load_recipe(recipe).stations(config)
    snapshot = Snapshot(1, stations.learner().snapshot())
    segment = stations.collector(0).collect(Ticket(0, 5, 1), snapshot).payload
    work: dict[str, Any] = {name: np.swapaxes(getattr(segment, name), 0, 1) for name in ("obs", "actions", "to_play")}
    work |= {"ids": np.arange(2), "round": 0, "legal": None, "begins": np.zeros((2, 8), bool)}
    reanalyzer: Any = stations.reanalyzer()  # type: ignore[misc]
    again = reanalyzer.reanalyze(snapshot, Rollout(OldTargets(**work), steps=16)).payload.policies
    score = stations.evaluator().evaluate(snapshot, 3)  # type: ignore[misc]
    return segment.policies, again, score.value


@every_recipe
def test_collector_reanalyzer_and_evaluator_ask_the_prior(recipe: str, priors: str) -> None:
    base = {"reanalyze_ratio": 1.0, "root_noise_weight": 0.0, "eval_episodes": 2, "eval_simulations": 4}
    base |= {"evaluate_every": 1}
    told = {"prior": f"{priors}:always_last", "prior_weight": 1.0}
    plain, last = the_three(recipe, tiny(recipe, **base)), the_three(recipe, tiny(recipe, **base, **told))
    for without, with_it in zip(plain[:2], last[:2], strict=True):
        assert with_it[..., -1].mean() > 0.9 > without[..., -1].mean()
    assert last[2] < 12, "whoever always pushes to the right falls at once"


@every_recipe
def test_a_weight_of_zero_changes_no_bit_and_asks_nobody(recipe: str, priors: str) -> None:
    plain = fingerprint(run(recipe, tiny(recipe, updates=3)).weights)
    told = tiny(recipe, updates=3, prior=f"{priors}:nobody", prior_weight=0.0)
    assert fingerprint(run(recipe, told).weights) == plain
    heard = tiny(recipe, updates=3, prior=f"{priors}:always_last", prior_weight=0.5)
    assert fingerprint(run(recipe, heard).weights) != plain


def a_planner(**prior: Any) -> Planner:
    network = VectorNetwork(MuZeroArchitecture(observation=(4,), num_actions=3, latent=8, hidden=8), seed=1)
    return Planner(VectorModel(network), SearchSettings(num_simulations=12), **prior)


def test_a_planner_takes_a_prior_for_one_search() -> None:
    obs, opinion = np.ones((2, 4), np.float32), np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])

    def visits(planner: Planner, **how: Any) -> np.ndarray:
        return planner.plan(obs, np.random.default_rng(0), noise=False, **how).visits

    plain = visits(a_planner())
    told = visits(a_planner(), prior=opinion, prior_weight=0.9)
    assert told[0, 2] > plain[0, 2]
    np.testing.assert_array_equal(told[1], plain[1], err_msg="a row of zeros is no opinion")
    np.testing.assert_array_equal(visits(a_planner(), prior=opinion, prior_weight=0.0), plain)
    asked = a_planner(prior=lambda observations, legal: opinion * legal, prior_weight=0.9)
    np.testing.assert_array_equal(visits(asked), told)
    legal = np.array([[True, True, False]] * 2)
    assert visits(asked, legal=legal)[:, 2].tolist() == [0, 0]
    np.testing.assert_array_equal(visits(asked, prior=opinion, prior_weight=0.0), plain, err_msg="instead of its own")
    with pytest.raises(ValueError, match=r"prior_weight must lie in 0\.\.1, received 2"):
        a_planner(prior_weight=2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("of_another_game", r"prior must have shape \[2, 2\], received \[2, 7\]"),
        ("negative", "prior of root 0 must be probabilities, finite and not negative"),
        ("unknown", "prior of root 0 must be probabilities, finite and not negative"),
    ],
)
@every_recipe
def test_an_answer_that_is_no_prior_is_one_clear_line(recipe: str, priors: str, name: str, message: str) -> None:
    stations = load_recipe(recipe).stations(tiny(recipe, prior=f"{priors}:{name}"))
    snapshot = Snapshot(1, stations.learner().snapshot())
    with pytest.raises(ValueError, match=message) as caught:
        stations.collector(0).collect(Ticket(0, 5, 1), snapshot)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prior": "nothing.py:here"}, "prior file nothing.py does not exist"),
        ({"prior": "PRIORS:alway_last"}, "did you mean 'always_last'"),
        ({"prior": "PRIORS:of_what"}, "must take observations, legal"),
        ({"prior": "PRIORS:always_last", "prior_weight": 1.5}, "less than or equal to 1"),
        ({"prior_weight": 0.3}, "prior_weight=0.3 needs prior: whose opinion?"),
    ],
)
@every_recipe
def test_what_cannot_be_is_refused_in_one_line(recipe: str, priors: str, values: dict[str, Any], message: str) -> None:
    values = {name: value.replace("PRIORS", priors) if name == "prior" else value for name, value in values.items()}
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")) as caught:
        read(recipe, wall_s=1, **values)
    assert "\n" not in str(caught.value)
