"""MuZero's parts: numbers as classes, networks, the two ways to search with one, losses, the learner."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from replay_draws import a_batch, classes, drawn, targets_of
from torch import Tensor

from headway.core.types import Batch
from headway.runs.fingerprint import fingerprint
from headway.zero.muzero_inference import TorchModel, VectorModel, searchable
from headway.zero.muzero_learner import MuZeroLearner, MuZeroSettings
from headway.zero.muzero_loss import MuZeroLossWeights, muzero_losses
from headway.zero.muzero_network import BoardNetwork, MuZeroArchitecture, MuZeroNetwork, build_network, normalise
from headway.zero.planner_planning import Planner
from headway.zero.search_interface import SearchSettings
from headway.zero.world_model_packed import load_weights, pack_weights
from headway.zero.world_model_two_hot import Support, squash, unsquash

torch.set_num_threads(1)

SMALL = MuZeroArchitecture(
    observation=(4,), num_actions=3, latent=12, hidden=10, projection=8, value_support=Support(-10, 10, 21)
)
PLANES = MuZeroArchitecture(observation=(2, 6, 7), num_actions=7, latent=8, hidden=16, projection=8)
BOARD = replace(PLANES, windows=5)


def a_network(architecture: MuZeroArchitecture = SMALL, *, shaken: bool = True, seed: int = 1) -> MuZeroNetwork:
    """With heads that say something, too."""
    network = build_network(architecture, seed=seed)
    random = torch.Generator().manual_seed(seed)
    if shaken:
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=random))
    return network


# -- numbers as classes -------------------------------------------------------------------------------


def test_squashing_is_undone() -> None:
    values = torch.tensor([-1e4, -300.0, -1.0, -1e-3, 0.0, 1e-3, 0.5, 20.0, 2000.0])
    torch.testing.assert_close(unsquash(squash(values)), values, rtol=1e-4, atol=1e-6)
    assert squash(torch.tensor(3.0)) == pytest.approx(2 - 1 + 0.003)


def test_a_value_is_shared_by_the_two_nearest_bins() -> None:
    support = Support(-2, 2, 5)
    value = unsquash(torch.tensor(0.25))
    torch.testing.assert_close(support.encode(value), torch.tensor([0, 0, 0.75, 0.25, 0]), atol=1e-5, rtol=0)
    torch.testing.assert_close(support.encode(torch.tensor(1e6)), torch.tensor([0.0, 0, 0, 0, 1]))
    torch.testing.assert_close(support.encode(torch.tensor(-1e6)), torch.tensor([1.0, 0, 0, 0, 0]))


def test_what_is_encoded_can_be_decoded() -> None:
    support = Support()
    values = torch.linspace(-500, 500, 41)
    decoded = support.decode(support.encode(values).clamp(min=1e-30).log())
    torch.testing.assert_close(decoded, values, rtol=1e-3, atol=1e-2)


def test_smoothing_spreads_a_share_over_all_bins() -> None:
    hot = Support(-1, 1, 4, smoothing=0.1).encode(torch.tensor(0.0))
    assert hot.sum() == pytest.approx(1.0)
    assert hot.min() == pytest.approx(0.025)


@pytest.mark.parametrize("bad", [{"low": 1, "high": 1}, {"num_bins": 1}, {"smoothing": 1.0}])
def test_a_support_that_cannot_be_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="received"):
        Support(**bad)


# -- networks -----------------------------------------------------------------------------------------


def step(network: MuZeroNetwork, latents: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Latents and reward logits after actions."""
    latents, traces = network.step(latents, actions)
    return latents, network.rewards(network.look(latents), traces)


@pytest.mark.parametrize("architecture", [SMALL, BOARD, PLANES], ids=["vector", "board", "planes"])
def test_a_latent_is_normalised_wherever_it_is_made(architecture: MuZeroArchitecture) -> None:
    network = a_network(architecture)
    obs = torch.randn(5, *architecture.observation)
    latents = network.encode(obs)
    for count in range(4):
        flat = latents.flatten(1)
        low, high = (flat.mean(1), flat.var(1)) if architecture.windows else (flat.amin(1), flat.amax(1))
        torch.testing.assert_close(low, torch.zeros(5))
        torch.testing.assert_close(high, torch.ones(5), atol=4e-3, rtol=0)
        latents, rewards = step(network, latents, torch.full((5,), count % 3))
        assert rewards.shape == (5, architecture.reward_support.num_bins)
    policy, value = network.predict(latents)
    assert policy.shape == (5, architecture.num_actions)
    assert value.shape == (5, architecture.value_support.num_bins)


def test_equal_features_do_not_divide_by_zero() -> None:
    assert torch.isfinite(normalise(torch.full((2, 4), 3.0))).all()


def test_a_new_network_has_no_opinion() -> None:
    network = a_network(shaken=False)
    latents = network.encode(torch.randn(3, 4))
    policy, value = network.predict(latents)
    _, reward = step(network, latents, torch.zeros(3, dtype=torch.long))
    for logits in (policy, value, reward):
        assert not logits.any()


def test_the_seed_decides_the_first_weights_and_nothing_else_does() -> None:
    torch.manual_seed(1)
    first = pack_weights(a_network(shaken=False, seed=3))
    torch.manual_seed(2)
    assert fingerprint(first) == fingerprint(pack_weights(a_network(shaken=False, seed=3)))
    assert fingerprint(first) != fingerprint(pack_weights(a_network(shaken=False, seed=4)))


def test_large_pictures_are_halved_until_they_are_small() -> None:
    network = build_network(MuZeroArchitecture(observation=(3, 40, 33), num_actions=2, latent=4, hidden=8), seed=0)
    assert network.latent_shape == (4, 10, 9)
    assert network.encode(torch.rand(2, 3, 40, 33)).shape == (2, 4, 10, 9)


def test_a_board_is_seen_alike_wherever_a_pattern_stands_on_it() -> None:
    """The same cells elsewhere make the same features at another place."""
    network = a_network(BOARD)
    assert isinstance(network, BoardNetwork)
    here = torch.randn(1, 8, 6, 7)
    there = torch.roll(here, (1, 2), (2, 3))  # one row down, two columns on
    seen, moved = network.windows(here), network.windows(there)
    torch.testing.assert_close(seen[:, :, :2, :2], moved[:, :, 1:, 2:])
    assert not torch.allclose(seen, moved)
    small = build_network(replace(BOARD, observation=(2, 3, 3), num_actions=9), seed=0)
    assert small.encode(torch.rand(4, 2, 3, 3)).shape == (4, 8, 3, 3)


@pytest.mark.parametrize("num_actions", [7, 42, 5])
def test_an_action_begins_where_it_is_on_the_board(num_actions: int) -> None:
    """A column, a cell, or any place; what a step changes at first is near it."""
    network = build_network(replace(BOARD, num_actions=num_actions), seed=0)
    plane = network.get_parameter("action.weight").detach().view(num_actions, 6, 7)
    wanted = torch.zeros(6, 7)
    wanted[:, 3] = 1
    torch.testing.assert_close(plane[3], wanted if num_actions == 7 else torch.eye(42)[3].view(6, 7))


@pytest.mark.parametrize("bad", [{"windows": -1}, {"windows": 3, "observation": (4,)}])
def test_windows_are_for_boards(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="windows are for boards, received"):
        replace(BOARD, **bad)


def test_weights_of_another_network_are_refused() -> None:
    weights = {"network": pack_weights(a_network())}
    with pytest.raises(ValueError, match="these weights are of another network"):
        load_weights(a_network(replace(SMALL, hidden=11)), weights)


# -- searching with a network -------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_the_kernels_say_what_torch_says(rows: int) -> None:
    network, architecture = a_network(), SMALL
    assert isinstance(searchable(network), VectorModel)
    quick, plain = VectorModel(network), TorchModel(copy.deepcopy(network))  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(rows, *architecture.observation)).astype(np.float32)
    ours, theirs = quick.begin(obs, 9), plain.begin(obs, 9)
    for simulation in range(9):
        np.testing.assert_allclose(ours.values, theirs.values, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(ours.logits, theirs.logits, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(ours.rewards, theirs.rewards, rtol=1e-3, atol=1e-4)
        if simulation == 8:
            break
        parents = rng.integers(simulation + 1, size=rows).astype(np.int32)
        actions = rng.integers(3, size=rows).astype(np.int32)
        ours, theirs = quick.expand(simulation, parents, actions), plain.expand(simulation, parents, actions)


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", [SMALL, BOARD, PLANES], ids=["vector", "board", "planes"])
def test_a_gpu_says_what_the_cpu_says_however_often_it_is_asked(architecture: MuZeroArchitecture) -> None:
    """Run, captured, replayed, and replayed with other weights."""
    here, there = TorchModel(a_network(architecture)), searchable(a_network(architecture), "cuda")
    rng = np.random.default_rng(0)
    for round in range(5):
        if round == 3:
            for model in (here, there):
                model.load({"network": pack_weights(a_network(architecture, seed=5))})
        obs = rng.normal(size=(6, *architecture.observation)).astype(np.float32)
        told = [(here.begin(obs, 5), there.begin(obs, 5))]
        for simulation in range(4):
            parents = rng.integers(simulation + 1, size=6).astype(np.int32)
            actions = rng.integers(3, size=6).astype(np.int32)
            told.append(tuple(model.expand(simulation, parents, actions) for model in (here, there)))  # type: ignore[arg-type]
        for one, other in told:
            for name in ("rewards", "values", "logits"):
                np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=2e-3, rtol=1e-3)


def test_a_model_steps_from_the_parent_it_is_asked_about() -> None:
    """Node 3 after actions 0 and 2 from the root is what the network says about exactly those steps."""
    network = a_network()
    model = VectorModel(network)  # type: ignore[arg-type]
    obs = np.random.default_rng(1).normal(size=(2, 4)).astype(np.float32)
    model.begin(obs, 4)
    first, second = np.array([0, 1], np.int32), np.array([2, 2], np.int32)
    model.expand(0, np.array([0, 0], np.int32), first)
    model.expand(1, np.array([0, 0], np.int32), np.array([1, 0], np.int32))
    leaves = model.expand(2, np.array([1, 1], np.int32), second)
    with torch.no_grad():
        latents, _ = network.step(network.encode(torch.from_numpy(obs)), torch.from_numpy(first).long())
        latents, rewards = step(network, latents, torch.from_numpy(second).long())
        policy, value = network.predict(latents)
    np.testing.assert_allclose(leaves.logits, policy, atol=1e-5)
    np.testing.assert_allclose(leaves.rewards, network.architecture.reward_support.decode(rewards), atol=1e-3)
    np.testing.assert_allclose(leaves.values, network.architecture.value_support.decode(value), atol=1e-3)


def test_new_weights_change_what_a_model_says_and_old_ones_bring_it_back() -> None:
    model = searchable(a_network(seed=1))
    assert isinstance(model, VectorModel)
    obs = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    one, other = ({"network": pack_weights(a_network(seed=seed))} for seed in (1, 2))
    said = []
    for weights in (one, other, one):
        model.load(weights)
        said.append(model.begin(obs, 2).logits.copy())
    np.testing.assert_array_equal(said[0], said[2])
    assert not np.allclose(said[0], said[1])


def test_a_plan_depends_on_weights_observations_and_the_generator_alone() -> None:
    settings = SearchSettings(num_simulations=12)
    obs = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    weights = {"network": pack_weights(a_network())}
    planners = [Planner(searchable(a_network(seed=seed)), settings) for seed in (1, 2)]
    for planner in planners:
        planner.load(weights)
    planners[1].plan(obs[:2], np.random.default_rng(5))  # what was planned before, with other rows, leaves no trace
    results = [planner.plan(obs, np.random.default_rng(3)) for planner in planners]
    np.testing.assert_array_equal(results[0].visits, results[1].visits)
    np.testing.assert_array_equal(results[0].values, results[1].values)
    legal = np.ones((5, 3), bool)
    legal[:, 1] = False
    assert not planners[0].plan(obs, np.random.default_rng(3), legal=legal).visits[:, 1].any()
    assert set(planners[0].best(obs, legal)) <= {0, 2}


# -- losses -------------------------------------------------------------------------------------------


def slow_loss(network: MuZeroNetwork, data: dict[str, Any], weights: MuZeroLossWeights) -> Tensor:
    """Sample by sample and step by step, from the definition."""
    targets = targets_of(data)
    steps, batch = targets.actions.shape
    supports = network.architecture.value_support, network.architecture.reward_support

    total = torch.zeros(())
    for b in range(batch):
        loss = torch.zeros(())
        latent = network.encode(targets.observations[0, b : b + 1])
        for k in range(steps + 1):
            counts, past = float(targets.mask[k, b]), float(targets.ended[k, b])
            valued = max(counts, past) if weights.learn_endings else counts
            policy, value = network.predict(latent)
            logs = policy[0].log_softmax(-1)
            loss = loss - counts * weights.policy * (targets.policies[k, b] * logs).sum()
            loss = loss + counts * weights.entropy * (logs.exp() * logs).sum()
            loss = loss + valued * weights.value * classes(value[0], targets.values[k, b], supports[0])
            if k == steps:
                break
            latent, reward = step(network, latent, targets.actions[k, b : b + 1])
            loss = loss + valued * weights.reward * classes(reward[0], targets.rewards[k, b], supports[1])
            here = network.guess(network.project(latent))[0]
            with torch.no_grad():
                there = network.project(network.encode(targets.observations[k + 1, b : b + 1]))[0]
            cosine = (here @ there) / (here.norm() * there.norm())
            loss = loss - float(targets.mask[k + 1, b]) * weights.consistency * cosine
        total = total + targets.weights[b] * loss
    return total / (batch * steps)


@pytest.mark.parametrize("learn_endings", [False, True])
@pytest.mark.parametrize("architecture", [SMALL, BOARD, PLANES], ids=["vector", "board", "planes"])
def test_the_loss_is_what_its_definition_says(architecture: MuZeroArchitecture, learn_endings: bool) -> None:
    network, data = a_network(architecture), a_batch(shape=architecture.observation, num=architecture.num_actions)
    weights = MuZeroLossWeights(value=0.3, reward=0.9, consistency=1.7, entropy=0.01, learn_endings=learn_endings)
    quick = muzero_losses(network, targets_of(data), weights).total
    slow = slow_loss(network, data, weights)
    torch.testing.assert_close(quick, slow, rtol=1e-4, atol=1e-5)
    ours = torch.autograd.grad(quick, list(network.parameters()), allow_unused=True)
    theirs = torch.autograd.grad(slow, list(network.parameters()), allow_unused=True)
    for one, other in zip(ours, theirs, strict=True):
        if one is not None or other is not None:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_each_sample_counts_by_its_own_importance_weight() -> None:
    network, data = a_network(), a_batch()
    alone = []
    for b in range(6):
        data["weights"] = np.eye(6, dtype=np.float32)[b]
        alone.append(muzero_losses(network, targets_of(data), MuZeroLossWeights()).total)
    mixed = np.array([0.1, 1.0, 0.0, 0.5, 0.2, 0.9], np.float32)
    data["weights"] = mixed
    together = muzero_losses(network, targets_of(data), MuZeroLossWeights()).total
    torch.testing.assert_close(together, (torch.stack(alone) * torch.from_numpy(mixed)).sum())


def test_past_the_end_of_an_episode_nothing_counts_but_what_a_termination_teaches() -> None:
    network, data = a_network(), a_batch()
    changed = {name: values.copy() for name, values in data.items()}
    for name in ("policies", "root_values"):
        changed[name][1:, 1] += 1
        changed[name][2:, 2] += 1
    changed["obs"][1:, 1] += 1
    changed["obs"][2:, 2] += 1
    changed["rewards"][1:, 1] = changed["rewards"][2:, 2] = 3.0
    changed["returns"][1:, 1] = changed["returns"][2:, 2] = 3.0
    for learn_endings in (False, True):
        weights = MuZeroLossWeights(learn_endings=learn_endings)
        before = muzero_losses(network, targets_of(data), weights).total
        after = muzero_losses(network, targets_of(changed), weights).total
        assert torch.allclose(before, after) is not learn_endings


def test_no_gradient_flows_to_where_the_consistency_looks() -> None:
    """Only what was stepped to moves towards what was seen, not the other way round."""
    network, data = a_network(), a_batch(steps=1)
    only = MuZeroLossWeights(policy=0, value=0, reward=0, consistency=1, entropy=0)
    losses = muzero_losses(network, targets_of(data), only)
    first: Any = next(network.parameters())  # of the encoder
    (through_root,) = torch.autograd.grad(losses.total, [first])
    targets = targets_of(data)
    latents = network.encode(targets.observations[0])
    stepped, _ = network.step(latents, targets.actions[0])
    here = network.guess(network.project(stepped))
    there = network.project(network.encode(targets.observations[1])).detach()
    cosine = torch.nn.functional.cosine_similarity(here, there) * targets.mask[1] * targets.weights
    (wanted,) = torch.autograd.grad(-cosine.mean(), [first])
    torch.testing.assert_close(through_root, wanted)


# -- the learner --------------------------------------------------------------------------------------


def a_learner(**settings: Any) -> MuZeroLearner:
    return MuZeroLearner(a_network, MuZeroSettings(**settings))


def a_draw(seed: int = 0) -> Batch:
    return Batch(0, (drawn(a_batch(32, seed=seed)),))


def test_learning_lowers_the_loss_and_reports_priorities_by_id() -> None:
    learner, draw = a_learner(learning_rate=3e-3), a_draw()
    reports = [learner.learn(draw) for _ in range(40)]
    assert reports[-1].metrics["total_loss"] < reports[0].metrics["total_loss"] - 0.1
    assert reports[0].samples == 32
    feedback = reports[0].feedback
    np.testing.assert_array_equal(feedback.ids, np.arange(32) + 100)
    network = a_network()
    data = draw.rollouts[0].payload
    with torch.no_grad():
        support = network.architecture.value_support
        values = support.decode(network.predict(network.encode(torch.from_numpy(data.obs[0])))[1])
        ahead = support.decode(network.predict(network.encode(torch.from_numpy(data.bootstrap_obs[0])))[1])
    wanted = data.returns[0] + data.factors[0] * ahead.numpy()
    np.testing.assert_allclose(feedback.priorities, np.abs(values.numpy() - wanted), rtol=1e-3, atol=1e-4)


def test_a_search_bootstraps_with_what_it_found_then() -> None:
    data = a_batch(4)
    del data["bootstrap_obs"]
    report = a_learner(bootstrap="search").learn(Batch(0, (drawn(data),)))
    network = a_network()
    with torch.no_grad():
        values = network.predict(network.encode(torch.from_numpy(data["obs"][0])))[1]
    wanted = data["returns"][0] + data["factors"][0] * data["root_values"][0]
    errors = np.abs(network.architecture.value_support.decode(values).numpy() - wanted)
    np.testing.assert_allclose(report.feedback.priorities, errors, rtol=1e-3, atol=1e-4)


def test_the_target_network_follows_at_once_or_slowly() -> None:
    periodic = a_learner(target_every=3)
    first = periodic.state_dict()["target"].copy()
    for update in range(1, 4):
        periodic.learn(a_draw(update))
        state = periodic.state_dict()
        np.testing.assert_array_equal(state["target"], first if update < 3 else state["network"])
    soft = a_learner(target_every=1, target_tau=0.25)
    soft.learn(a_draw())
    state = soft.state_dict()
    np.testing.assert_allclose(state["target"], 0.75 * first + 0.25 * state["network"], rtol=1e-4, atol=1e-6)
