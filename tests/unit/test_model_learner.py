"""What learners of all models share: weights that play by their average, and observations brought to one scale."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from replay_draws import a_batch, drawn
from test_muzero import SMALL
from torch import nn

from headway.coordinator.roles import LearnerRole
from headway.core.types import Batch
from headway.envs.input_scale import InputScale
from headway.runs.fingerprint import fingerprint
from headway.zero.model_learner import ModelLearner, ModelSettings
from headway.zero.muzero_inference import TorchModel, VectorModel
from headway.zero.muzero_learner import MuZeroLearner, MuZeroSettings
from headway.zero.muzero_network import VectorNetwork, build_network
from headway.zero.unizero_learner import UniZeroLearner, UniZeroSettings
from headway.zero.unizero_network import UniZeroArchitecture, UniZeroNetwork
from headway.zero.world_model_packed import load_weights, pack_weights

torch.set_num_threads(1)

SCALED = {"observation": SMALL.observation, "num_actions": SMALL.num_actions, "normalise": True}


def scaled_muzero() -> VectorNetwork:
    network = build_network(type(SMALL)(**SCALED, latent=8, hidden=16, projection=8), seed=2)
    assert isinstance(network, VectorNetwork)
    return network


def scaled_unizero() -> UniZeroNetwork:
    return UniZeroNetwork(UniZeroArchitecture(**SCALED, dim=16, heads=2), seed=2)


def a_learner(kind: str, **settings: Any) -> ModelLearner[Any]:
    if kind == "muzero":
        return MuZeroLearner(scaled_muzero, MuZeroSettings(**settings))
    return UniZeroLearner(scaled_unizero, UniZeroSettings(**{"learning_rate": 3e-3, **settings}))


def a_draw(seed: int = 0) -> Batch:
    return Batch(0, (drawn(a_batch(16, seed=seed)),))


both = pytest.mark.parametrize("kind", ["muzero", "unizero"])


# -- the average --------------------------------------------------------------------------------------


def test_weights_in_memory_of_others_are_loaded_without_a_word_from_torch() -> None:
    """Warnings are errors here."""
    network, other = (build_network(SMALL, seed=seed) for seed in (0, 1))
    shared = pack_weights(other)
    shared.flags.writeable = False
    load_weights(network, {"network": shared})
    np.testing.assert_array_equal(pack_weights(network), shared)
    obs = np.zeros((3, *SMALL.observation), np.float32)
    obs.flags.writeable = False
    assert isinstance(network, VectorNetwork)
    for model in (VectorModel(network), TorchModel(network)):
        model.begin(obs, 2)


@both
def test_published_is_the_average_of_all_weights_at_first_and_then_of_the_last(kind: str) -> None:
    learner = a_learner(kind, average=0.75)
    published, trained = [], []
    for update in range(8):
        learner.learn(a_draw(update))
        published.append(learner.snapshot()["network"])
        trained.append(learner.state_dict()["network"])
    np.testing.assert_allclose(published[0], trained[0], atol=1e-6)
    np.testing.assert_allclose(published[2], np.mean(trained[:3], axis=0), rtol=1e-4, atol=1e-5)
    for update in range(4, 8):
        wanted = 0.75 * published[update - 1] + 0.25 * trained[update]
        np.testing.assert_allclose(published[update], wanted, rtol=1e-4, atol=1e-5)
    assert np.abs(published[-1] - trained[-1]).max() > 1e-4


@both
def test_without_an_average_the_weights_themselves_are_published(kind: str) -> None:
    learner = a_learner(kind)
    learner.learn(a_draw())
    assert fingerprint(learner.snapshot()["network"]) == fingerprint(learner.state_dict()["network"])


@both
def test_training_does_not_depend_on_what_is_published(kind: str) -> None:
    plain, averaged = a_learner(kind), a_learner(kind, average=0.9)
    for update in range(4):
        plain.learn(a_draw(update))
        averaged.learn(a_draw(update))
    assert fingerprint(plain.state_dict()["network"]) == fingerprint(averaged.state_dict()["network"])


@pytest.mark.parametrize("settings", [{}, {"target_every": 2}, {"average": 0.9}], ids=str)
@both
def test_a_learner_that_was_loaded_goes_on_bit_for_bit(kind: str, settings: dict[str, Any]) -> None:
    learner, again = a_learner(kind, **settings), a_learner(kind, **settings)
    for update in range(3):
        learner.learn(a_draw(update))
    again.load_state_dict(copy.deepcopy(learner.state_dict()))
    for update in range(3, 6):
        learner.learn(a_draw(update))
        again.learn(a_draw(update))
    assert fingerprint(learner.snapshot()) == fingerprint(again.snapshot())
    assert fingerprint(learner.state_dict()) == fingerprint(again.state_dict())


@both
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"learning_rate": 0}, r"learning_rate\n  Input should be greater than 0 .*input_value=0"),
        ({"target_tau": 1.5}, r"target_tau\n  Input should be less than or equal to 1 .*input_value=1.5"),
        ({"weight_decay": -1}, r"weight_decay\n  Input should be greater than or equal to 0 .*input_value=-1"),
        ({"bootstrap": "guess"}, r"bootstrap\n  Input should be 'network' or 'search' .*input_value='guess'"),
        ({"final_learning_rate": 1e-4}, "needs updates"),
    ],
)
def test_settings_that_cannot_work_are_refused(kind: str, bad: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        {"muzero": MuZeroSettings, "unizero": UniZeroSettings}[kind](**bad)


def test_the_learning_rate_decays_over_the_run() -> None:
    settings = ModelSettings(learning_rate=1e-2, final_learning_rate=0.0, updates=10)
    assert [settings.rate(update) for update in (0, 5, 10, 20)] == [1e-2, 5e-3, 0.0, 0.0]


@both
@pytest.mark.parametrize(
    ("field", "number"),
    [
        ("returns", math.nan),
        ("returns", math.inf),
        ("rewards", math.nan),
        ("policies", math.nan),
        ("root_values", math.nan),
        ("root_values", math.inf),
    ],
)
def test_targets_that_are_not_finite_are_refused(kind: str, field: str, number: float) -> None:
    role = LearnerRole(lambda: a_learner(kind, bootstrap="search" if field == "root_values" else "network"))
    role.learn(a_draw(), None)
    draw = a_draw(1)
    getattr(draw.rollouts[0].payload, field)[:, 3] = number
    with pytest.raises(FloatingPointError, match="a draw of the replay at version 0 is not finite: ") as caught:
        role.learn(draw, 2)
    assert "\n" not in str(caught.value)


@both
@pytest.mark.parametrize("part", ["network", "target"])
def test_a_network_that_diverged_is_refused(kind: str, part: str) -> None:
    role = LearnerRole(lambda: a_learner(kind, target_every=1))
    state = role.learner.state_dict()
    state[part] = np.full_like(state[part], float("nan"))
    role.restore(state)
    with pytest.raises(FloatingPointError, match="value_loss is nan"):
        role.learn(a_draw(), 1)


@both
def test_weights_that_a_step_made_infinite_are_refused(kind: str) -> None:
    with pytest.raises(FloatingPointError, match="weight_norm is"):
        LearnerRole(lambda: a_learner(kind, **{"learning_rate": 1e38})).learn(a_draw(), 1)


@both
def test_the_norm_of_the_weights_is_measured_after_the_update(kind: str) -> None:
    learner = a_learner(kind)
    found = learner.learn(a_draw()).metrics["weight_norm"]
    trained = [p.detach().double() for p in learner._network.parameters() if p.requires_grad]
    assert found == pytest.approx(float(sum((p**2).sum() for p in trained)) ** 0.5, rel=1e-6)


@pytest.mark.parametrize("bad", [-0.1, 1.0, float("nan")])
def test_an_average_that_never_moves_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=r"average\n  Input should be "):
        ModelSettings(average=bad)


# -- one scale ----------------------------------------------------------------------------------------


def test_the_moments_are_those_of_all_rows_seen() -> None:
    scale = InputScale(3)
    random = np.random.default_rng(0)
    batches = [random.normal([1.0, -50.0, 0.01], [2.0, 10.0, 0.2], (64, 3)).astype(np.float32) for _ in range(20)]
    for batch in batches:
        scale.see(torch.from_numpy(batch))
    rows = np.concatenate(batches).astype(np.float64)
    np.testing.assert_allclose(scale.mean.numpy(), rows.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scale.variance.numpy(), rows.var(0), rtol=1e-4)
    scaled = scale(torch.from_numpy(rows.astype(np.float32)))
    torch.testing.assert_close(scaled.mean(0), torch.zeros(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(scaled.std(0), torch.ones(3), atol=2e-2, rtol=0)


def test_a_feature_that_never_changed_stays_small_when_it_does() -> None:
    scale = InputScale(1)
    for _ in range(5):
        scale.see(torch.full((8, 1), 7.0))
    assert scale(torch.tensor([[7.0]])).item() == 0.0
    assert abs(scale(torch.tensor([[7.1]])).item()) <= 10.1


@both
def test_moments_are_learned_from_draws_and_no_gradient_reaches_them(kind: str) -> None:
    learner = a_learner(kind, weight_decay=0.5)  # it would pull them to zero
    draws = [a_draw(update) for update in range(3)]
    for draw in draws:
        learner.learn(draw)
    rows = np.concatenate([draw.rollouts[0].payload.obs[0] for draw in draws]).reshape(48, -1)
    network = learner._network
    np.testing.assert_allclose(network.inputs.mean.numpy(), rows.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(network.inputs.variance.numpy(), rows.var(0), rtol=1e-4, atol=1e-5)


@both
def test_what_is_published_carries_the_scale(kind: str) -> None:
    learner = a_learner(kind)
    learner.learn(a_draw())
    build: dict[str, Any] = {"muzero": scaled_muzero, "unizero": scaled_unizero}
    fresh: nn.Module = build[kind]()
    before = pack_weights(fresh)
    assert len(before) == len(learner.snapshot()["network"])
    assert fresh.get_parameter("inputs.batches").item() == 0
    TorchModel(fresh).load(learner.snapshot())  # type: ignore[arg-type]
    assert fresh.get_parameter("inputs.batches").item() == 1


def test_kernels_see_the_same_scale_as_torch() -> None:
    weights = {"network": pack_weights(_seen(scaled_muzero()))}
    models = [VectorModel(scaled_muzero()), TorchModel(scaled_muzero())]
    rows = np.random.default_rng(1).normal(3.0, 20.0, (6, *SMALL.observation)).astype(np.float32)
    answers = []
    for model in models:
        model.load(weights)
        leaves = model.begin(rows, 4)
        answers.append([leaves.values.copy(), leaves.logits.copy()])
    for compiled, plain in zip(*answers, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-4, atol=1e-5)
    unscaled = TorchModel(build_network(type(SMALL)(**{**SCALED, "normalise": False}, latent=8, hidden=16), seed=2))
    assert not np.allclose(unscaled.begin(rows, 4).logits, answers[1][1], atol=1e-4)


def _seen(network: VectorNetwork) -> VectorNetwork:
    """Shaken, so that heads say something, and with moments of rows far from mean 0 and variance 1."""
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=random))
    assert network.inputs is not None
    for _ in range(3):
        network.inputs.see(3.0 + 20.0 * torch.randn(32, *SMALL.observation, generator=random))
    return network


@pytest.mark.parametrize("kind", [partial(type(SMALL)), partial(UniZeroArchitecture)], ids=["muzero", "unizero"])
def test_planes_have_no_features_to_scale(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"normalise is for vectors, received observations \[2, 6, 7\]"):
        kind(observation=(2, 6, 7), num_actions=7, normalise=True)
