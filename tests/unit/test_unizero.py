"""UniZero's parts: the transformer, search by paths of keys and values, losses, the learner."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_draws import a_batch, classes, drawn, targets_of
from torch import Tensor

from headway.core.types import Batch
from headway.runs.fingerprint import fingerprint
from headway.zero.planner_history import Past, pasts
from headway.zero.planner_planning import Planner
from headway.zero.replay_stream_rings import TERMINATED, TRUNCATED, VALID, begins_of
from headway.zero.search_interface import SearchSettings
from headway.zero.unizero_inference import CompiledModel, UniZeroModel, searchable
from headway.zero.unizero_learner import UniZeroLearner, UniZeroSettings
from headway.zero.unizero_loss import UniZeroLossWeights, unizero_losses
from headway.zero.unizero_network import UniZeroArchitecture, UniZeroNetwork, normalise
from headway.zero.world_model_packed import load_weights, pack_weights
from headway.zero.world_model_two_hot import Support

torch.set_num_threads(1)

NUM_ACTIONS = 3


def architecture(**changes: Any) -> UniZeroArchitecture:
    small = {"observation": (4,), "num_actions": NUM_ACTIONS, "dim": 16, "heads": 2, "attention_steps": 4}
    supports = {"value_support": Support(-10, 10, 21), "reward_support": Support(-5, 5, 11)}
    return UniZeroArchitecture(**{**small, **supports, **changes})


def a_network(*, shaken: bool = True, seed: int = 1, **changes: Any) -> UniZeroNetwork:
    """With heads that say something, too."""
    network = UniZeroNetwork(architecture(**changes), seed=seed)
    random = torch.Generator().manual_seed(seed)
    if shaken:
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=random))
    return network


# -- the network --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("observation", "windows"), [((4,), 0), ((2, 6, 7), 0), ((1, 20, 17), 0), ((2, 6, 7), 5)])
def test_latents_are_normalised_whoever_makes_them(observation: tuple[int, ...], windows: int) -> None:
    network = a_network(observation=observation, windows=windows)
    latents = network.encode(torch.randn(5, *observation))
    expected, _ = network.expect(torch.randn(5, 16), latents)
    for made in (latents, expected, network.ending[None]):
        torch.testing.assert_close(made.mean(-1), torch.zeros(len(made)), atol=1e-5, rtol=0)
        torch.testing.assert_close(made.var(-1, correction=0), torch.ones(len(made)), atol=1e-2, rtol=0)


def test_a_new_network_has_no_opinion_and_expects_no_change() -> None:
    network = a_network(shaken=False)
    latents = network.encode(torch.randn(3, 2, 4).flatten(0, 1)).view(3, 2, -1)
    sequence = network(latents, torch.zeros(3, 1, dtype=torch.long))
    policy, value = network.judge(sequence.seen)
    expected, reward = network.expect(sequence.done, latents[:, :1])
    for logits in (policy, value, reward):
        assert not logits.any()
    torch.testing.assert_close(expected, latents[:, :1], atol=1e-4, rtol=0)


def test_a_token_sees_its_own_node_and_the_nodes_before_as_far_as_it_is_told() -> None:
    """In one layer. Changing latent 2 changes what is said from there on, up to attention_steps - 1 nodes later."""
    network = a_network(layers=1, attention_steps=3)
    latents = normalise(torch.randn(1, 8, 16))
    actions = torch.zeros(1, 7, dtype=torch.long)
    other = latents.clone()
    other[:, 2] = normalise(torch.randn(16))
    before, after = network(latents, actions), network(other, actions)
    differs = [not torch.allclose(before.seen[0, k], after.seen[0, k], atol=1e-6) for k in range(8)]
    assert differs == [2 <= k <= 4 for k in range(8)]
    differs = [not torch.allclose(before.done[0, k], after.done[0, k], atol=1e-6) for k in range(7)]
    assert differs == [2 <= k <= 3 for k in range(7)]  # action k is of node k + 1


def test_only_the_distance_of_tokens_matters() -> None:
    """What comes first and is not there changes nothing: neither by what it holds nor by how long it is."""
    network = a_network()
    latents, actions = normalise(torch.randn(2, 6, 16)), torch.randint(3, (2, 5))
    lengths = torch.tensor([3, 3])
    padded = network(latents, actions, lengths)
    alone = network(latents[:, 3:], actions[:, 3:])
    torch.testing.assert_close(padded.seen[:, 3:], alone.seen, atol=1e-5, rtol=0)
    torch.testing.assert_close(padded.done[:, 3:], alone.done, atol=1e-5, rtol=0)


def test_the_seed_decides_the_first_weights_and_nothing_else_does() -> None:
    torch.manual_seed(1)
    first = pack_weights(a_network(shaken=False, seed=3))
    torch.manual_seed(2)
    assert fingerprint(first) == fingerprint(pack_weights(a_network(shaken=False, seed=3)))
    assert fingerprint(first) != fingerprint(pack_weights(a_network(shaken=False, seed=4)))


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"dim": 18, "heads": 4}, "dim must be a multiple of 2 \\* heads = 8, received 18"),
        ({"layers": 0}, "layers must be >= 1, received 0"),
        ({"observation": (3, 4)}, "received \\(3, 4\\)"),
    ],
)
def test_a_network_that_cannot_be_is_refused(bad: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        architecture(**bad)


# -- search by path -----------------------------------------------------------------------------------


def recomputed(
    network: UniZeroNetwork, obs: np.ndarray, acts: list[int], steps: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Reward, value and policy logits of one node, by passes over its whole sequence.

    obs [n, ...] and acts [n - 1] are what was seen and done up to the root, steps what is imagined from there.
    """
    latents = network.encode(torch.from_numpy(obs))[None]
    reward = torch.zeros((), dtype=latents.dtype)
    for at in range(len(steps)):
        actions = torch.tensor([acts + steps[: at + 1]])
        expected, rewards = network.expect(network(latents, actions).done[:, -1], latents[:, -1])
        latents = torch.cat((latents, expected[:, None]), 1)
        reward = network.architecture.reward_support.decode(rewards[0])
    policy, value = network.judge(network(latents, torch.tensor([acts + steps], dtype=torch.long)).seen[:, -1])
    return reward, network.architecture.value_support.decode(value[0]), policy[0]


def on_a_gpu(network: UniZeroNetwork, *, context_steps: int) -> UniZeroModel:
    return searchable(network, context_steps=context_steps, device="cuda")


@pytest.mark.parametrize(
    "of", [{"observation": (4,)}, {"observation": (2, 3, 3), "windows": 5}], ids=["vector", "board"]
)
@pytest.mark.parametrize("kind", [UniZeroModel, CompiledModel, pytest.param(on_a_gpu, marks=pytest.mark.gpu)])
@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 3), st.sampled_from([1, 2, 4, 20]), st.integers(1, 3))
def test_search_by_path_is_a_pass_over_the_whole_sequence(
    kind: Callable[..., UniZeroModel], of: dict[str, Any], seed: int, context: int, width: int, layers: int
) -> None:
    rng, shape = np.random.default_rng(seed), of["observation"]
    network = a_network(seed=seed % 7, attention_steps=width, layers=layers, **of)
    exact = copy.deepcopy(network).double()
    model = kind(copy.deepcopy(network), context_steps=context)
    rows, num_nodes = 2, 6
    for _ in range(3):  # the second search finds the memory of the first, the third is replayed on a GPU
        obs = rng.normal(size=(rows, *shape)).astype(np.float32)
        past = Past(
            rng.normal(size=(rows, context, *shape)).astype(np.float32),
            rng.integers(NUM_ACTIONS, size=(rows, context)),
            rng.integers(context + 1, size=rows),
        )
        said = [model.begin(obs, num_nodes, past if context else None)]
        steps: list[list[list[int]]] = [[[] for _ in range(rows)]]  # by node and row
        for simulation in range(num_nodes - 1):
            # deep trees and wide ones
            parents = np.maximum(rng.integers(simulation + 1, size=rows), rng.integers(simulation + 1, size=rows))
            actions = rng.integers(NUM_ACTIONS, size=rows)
            leaves = model.expand(simulation, parents.astype(np.int32), actions.astype(np.int32))
            said.append(copy.deepcopy(leaves))
            steps.append([[*steps[parents[b]][b], int(actions[b])] for b in range(rows)])
        for node in range(num_nodes):
            for b in range(rows):
                first = context - past.lengths[b]
                seen = np.concatenate((past.obs[b, first:], obs[b : b + 1]))
                done = past.actions[b, first:].tolist(), steps[node][b]
                with torch.no_grad():
                    rounded, wanted = recomputed(network, seen, *done), recomputed(exact, seen.astype(float), *done)
                leaf = said[node]
                for mine, plain, right in zip((leaf.rewards, leaf.values, leaf.logits), rounded, wanted, strict=True):
                    rounding = float((plain - right).abs().max())  # of a plain pass in single precision
                    np.testing.assert_allclose(mine[b], right, atol=1e-5 + 2 * rounding, rtol=1e-5)


def test_a_line_looks_the_same_in_every_window_of_a_board() -> None:
    """A shape that is moved moves the features of the windows, whatever the weights: what it is is learned once."""
    network = a_network(observation=(2, 6, 7), windows=5)
    board = torch.zeros(1, 2, 6, 7)
    board[0, 0, 2, 1:4] = 1
    moved = torch.roll(board, (1, 2), (2, 3))
    seen, other = (network.encoder[:4](one) for one in (board, moved))  # [1, 5, 3, 4]
    assert seen.shape == (1, 5, 3, 4)
    assert not torch.equal(seen, other)
    torch.testing.assert_close(seen[:, :, 0:2, 0:2][..., 1, 1], other[:, :, 1:3, 2:4][..., 1, 1])
    with pytest.raises(ValueError, match="windows are for boards, received windows=5"):
        architecture(observation=(4,), windows=5)


def test_the_past_is_seen_anew_with_new_weights_and_not_at_all_where_an_episode_begins() -> None:
    rng = np.random.default_rng(1)
    obs = rng.normal(size=(2, 4)).astype(np.float32)
    past = Past(rng.normal(size=(2, 2, 4)).astype(np.float32), np.ones((2, 2), np.int64), np.array([2, 0]))
    one, other = ({"network": pack_weights(a_network(seed=seed))} for seed in (1, 2))
    model = UniZeroModel(a_network(), context_steps=2)
    said = []
    for weights in (one, other, one):
        model.load(weights)
        said.append(model.begin(obs, 2, past).logits.copy())
    np.testing.assert_array_equal(said[0], said[2])
    assert not np.allclose(said[0], said[1])
    alone = UniZeroModel(a_network(), context_steps=0).begin(obs, 2).logits
    without = model.begin(obs, 2).logits
    np.testing.assert_allclose(without, alone, atol=1e-5)
    assert np.abs(said[0][0] - alone[0]).max() > 1e-2
    np.testing.assert_allclose(said[0][1], alone[1], atol=1e-5)


def test_kernels_search_on_a_cpu_and_nowhere_else() -> None:
    assert isinstance(searchable(a_network()), CompiledModel)
    with pytest.raises(ValueError, match="kernels are compiled for the CPU, received device 'meta'"):
        CompiledModel(a_network(), device="meta")


@pytest.mark.parametrize("kind", [UniZeroModel, CompiledModel])
def test_new_weights_are_searched_with_at_once(kind: type[UniZeroModel]) -> None:
    obs = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    model, said = kind(a_network()), []
    for seed in (1, 2, 1):
        model.load({"network": pack_weights(a_network(seed=seed))})
        model.begin(obs, 2)
        said.append(model.expand(0, np.zeros(3, np.int32), np.ones(3, np.int32)).logits.copy())
    np.testing.assert_array_equal(said[0], said[2])
    assert not np.allclose(said[0], said[1])


def test_a_past_of_another_length_is_refused() -> None:
    past = Past(np.zeros((1, 3, 4), np.float32), np.zeros((1, 3), np.int64), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match=r"the past of 1 roots is \[1, 2\], received \[1, 3\]"):
        UniZeroModel(a_network(), context_steps=2).begin(np.zeros((1, 4), np.float32), 2, past)
    with pytest.raises(ValueError, match="context_steps must be >= 0, received -1"):
        UniZeroModel(a_network(), context_steps=-1)


def test_a_plan_depends_on_weights_observations_past_and_the_generator_alone() -> None:
    obs = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    weights = {"network": pack_weights(a_network())}
    planners = [
        Planner(UniZeroModel(a_network(seed=seed), context_steps=2), SearchSettings(num_simulations=9))
        for seed in (1, 2)
    ]
    history = planners[0].history(obs)
    assert history is not None
    history.add(obs[::-1], np.ones(5, np.int64))
    for planner in planners:
        planner.load(weights)
    planners[1].plan(obs[:2], np.random.default_rng(5))  # what was planned before, with other rows, leaves no trace
    results = [planner.plan(obs, np.random.default_rng(3), past=history.past) for planner in planners]
    np.testing.assert_array_equal(results[0].visits, results[1].visits)
    np.testing.assert_array_equal(results[0].values, results[1].values)
    assert not np.array_equal(results[0].values, planners[0].plan(obs, np.random.default_rng(3)).values)


# -- histories ----------------------------------------------------------------------------------------


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_a_history_is_the_newest_steps_of_this_episode(seed: int, steps: int) -> None:
    rng = np.random.default_rng(seed)
    obs, actions = rng.normal(size=(3, 9, 2)).astype(np.float32), rng.integers(4, size=(3, 9))
    begins = rng.random((3, 9)) < 0.3
    found = pasts(obs, actions, begins, steps)
    for game in range(3):
        for step in range(9):
            row, first = game * 9 + step, step
            while first > 0 and step - first < steps and not begins[game, first]:
                first -= 1
            length = step - first
            assert found.lengths[row] == length
            np.testing.assert_array_equal(found.obs[row, steps - length :], obs[game, first:step])
            np.testing.assert_array_equal(found.actions[row, steps - length :], actions[game, first:step])
            assert not found.obs[row, : steps - length].any()


def test_the_replay_says_where_episodes_begin() -> None:
    """Reset by a step of its own, cut and reset so, or followed at once by the next episode."""
    done, cut = VALID | TERMINATED, VALID | TRUNCATED
    flags = np.array(
        [[VALID, done, 0, VALID, cut, 0, VALID], [VALID, VALID, done, VALID, done, VALID, VALID]], np.uint8
    )
    wanted = [[True, False, False, True, False, False, True], [True, False, False, True, False, True, False]]
    np.testing.assert_array_equal(begins_of(flags), wanted)


def test_whoever_plays_the_best_moves_remembers_until_told_to_forget() -> None:
    class Spy(UniZeroModel):
        lengths: list[list[int]]

        def begin(self, obs: np.ndarray, num_nodes: int, past: Past | None = None) -> Any:
            self.lengths.append([-1] if past is None else past.lengths.tolist())
            return super().begin(obs, num_nodes, past)

    spy = Spy(a_network(), context_steps=2)
    spy.lengths = []
    player = Planner(spy, SearchSettings(num_simulations=5))
    player.load({"network": pack_weights(a_network())})
    obs = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    player.best(obs, None)
    for begins in ([True, True], [False, False], [False, True], [False, False]):
        player.forget(np.array(begins))
        player.best(obs, None)
    assert spy.lengths == [[-1], [0, 0], [1, 1], [2, 0], [2, 1]]
    player.load({"network": pack_weights(a_network())})
    player.best(obs, None)
    assert spy.lengths[-1] == [-1]


# -- losses -------------------------------------------------------------------------------------------


def loss(network: UniZeroNetwork, data: dict[str, Any], weights: UniZeroLossWeights) -> Tensor:
    return unizero_losses(network, a_network(seed=2), targets_of(data), weights).total


def slow_loss(
    network: UniZeroNetwork, target: UniZeroNetwork, data: dict[str, Any], weights: UniZeroLossWeights
) -> Tensor:
    """Sample by sample and step by step, from the definition: a pass over each beginning of each window."""
    targets = targets_of(data)
    steps, batch = targets.actions.shape

    def latent_of(by: UniZeroNetwork, k: int, b: int) -> Tensor:
        return by.ending if targets.ended[k, b] else by.encode(targets.observations[k, b : b + 1])[0]

    total = torch.zeros(())
    for b in range(batch):
        sum_of_steps = torch.zeros(())
        tokens: list[Tensor] = []
        for k in range(steps + 1):
            counts, past = float(targets.mask[k, b]), float(targets.ended[k, b])
            valued = max(counts, past) if weights.learn_endings else counts
            tokens.append(latent_of(network, k, b))
            row = torch.stack(tokens)[None]
            policy, value = network.judge(network(row, targets.actions[None, :k, b]).seen[0, -1])
            logs = policy.log_softmax(-1)
            sum_of_steps = sum_of_steps - counts * weights.policy * (targets.policies[k, b] * logs).sum()
            sum_of_steps = sum_of_steps + counts * weights.entropy * (logs.exp() * logs).sum()
            support = network.architecture.value_support
            sum_of_steps = sum_of_steps + valued * weights.value * classes(value, targets.values[k, b], support)
            if k == steps:
                break
            done = network(row, targets.actions[None, : k + 1, b]).done[0, -1]
            expected, reward = network.expect(done, tokens[-1])
            support = network.architecture.reward_support
            sum_of_steps = sum_of_steps + valued * weights.reward * classes(reward, targets.rewards[k, b], support)
            follows = float(targets.mask[k + 1, b])
            if weights.learn_endings:
                follows = max(follows, float(targets.ended[k + 1, b]))
            away = (expected - latent_of(target, k + 1, b).detach()).square().mean()
            sum_of_steps = sum_of_steps + follows * weights.latent * away
        total = total + targets.weights[b] * sum_of_steps
    return total / (batch * steps)


@pytest.mark.parametrize("learn_endings", [False, True])
def test_the_loss_is_what_its_definition_says(learn_endings: bool) -> None:
    network, target, data = a_network(), a_network(seed=2), a_batch()
    weights = UniZeroLossWeights(latent=7, reward=0.9, value=0.3, policy=1.1, entropy=0.01, learn_endings=learn_endings)
    quick = unizero_losses(network, target, targets_of(data), weights).total
    slow = slow_loss(network, target, data, weights)
    torch.testing.assert_close(quick, slow, rtol=1e-4, atol=1e-5)
    ours = torch.autograd.grad(quick, list(network.parameters()))
    theirs = torch.autograd.grad(slow, list(network.parameters()))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_each_sample_counts_by_its_own_importance_weight() -> None:
    network, data = a_network(), a_batch()
    alone = []
    for b in range(6):
        data["weights"] = np.eye(6, dtype=np.float32)[b]
        alone.append(loss(network, data, UniZeroLossWeights()))
    mixed = np.array([0.1, 1.0, 0.0, 0.5, 0.2, 0.9], np.float32)
    data["weights"] = mixed
    together = loss(network, data, UniZeroLossWeights())
    torch.testing.assert_close(together, (torch.stack(alone) * torch.from_numpy(mixed)).sum())


def test_past_the_end_of_an_episode_nothing_counts_but_what_a_termination_teaches() -> None:
    network, data = a_network(), a_batch()
    changed = {name: values.copy() for name, values in data.items()}
    for name in ("policies", "root_values", "obs"):
        changed[name][1:, 1] += 1
        changed[name][2:, 2] += 1
    changed["rewards"][1:, 1] = changed["rewards"][2:, 2] = 3.0
    changed["returns"][1:, 1] = changed["returns"][2:, 2] = 3.0
    for learn_endings in (False, True):
        weights = UniZeroLossWeights(learn_endings=learn_endings)
        before, after = loss(network, data, weights), loss(network, changed, weights)
        assert torch.allclose(before, after) is not learn_endings


# -- the learner --------------------------------------------------------------------------------------


def a_learner(**changes: Any) -> UniZeroLearner:
    return UniZeroLearner(a_network, UniZeroSettings(**{"learning_rate": 3e-3, **changes}))


def a_draw(seed: int = 0, batch: int = 32) -> Batch:
    return Batch(0, (drawn(a_batch(batch, seed=seed)),))


def value_alone(network: UniZeroNetwork, obs: np.ndarray) -> np.ndarray:
    """What a network says an observation is worth that nothing came before."""
    leaves = UniZeroModel(network).begin(obs, 1)
    return leaves.values


def test_learning_lowers_the_loss_and_reports_priorities_by_id() -> None:
    learner, draw = a_learner(), a_draw()
    reports = [learner.learn(draw) for _ in range(25)]
    assert reports[-1].metrics["total_loss"] < reports[0].metrics["total_loss"] - 0.1
    assert reports[-1].metrics["latent_loss"] < reports[0].metrics["latent_loss"]
    assert reports[0].samples == 32
    feedback, data = reports[0].feedback, draw.rollouts[0].payload
    np.testing.assert_array_equal(feedback.ids, np.arange(32) + 100)
    values, ahead = (value_alone(a_network(), rows[0]) for rows in (data.obs, data.bootstrap_obs))
    wanted = data.returns[0] + data.factors[0] * ahead
    np.testing.assert_allclose(feedback.priorities, np.abs(values - wanted), rtol=1e-3, atol=1e-4)


def test_a_search_bootstraps_with_what_it_found_then() -> None:
    data = a_batch(4)
    del data["bootstrap_obs"]
    report = a_learner(bootstrap="search").learn(Batch(0, (drawn(data),)))
    wanted = data["returns"][0] + data["factors"][0] * data["root_values"][0]
    errors = np.abs(value_alone(a_network(), data["obs"][0]) - wanted)
    np.testing.assert_allclose(report.feedback.priorities, errors, rtol=1e-3, atol=1e-4)


def test_the_target_follows_softly() -> None:
    learner = a_learner(target_tau=0.25)
    first = learner.state_dict()["target"].copy()
    learner.learn(a_draw())
    state = learner.state_dict()
    assert not np.allclose(state["network"], first)
    np.testing.assert_allclose(state["target"], 0.75 * first + 0.25 * state["network"], rtol=1e-4, atol=1e-6)


def test_weights_of_another_network_are_refused() -> None:
    with pytest.raises(ValueError, match="these weights are of another network"):
        load_weights(a_network(layers=1), {"network": pack_weights(a_network())})


def test_a_part_of_the_loss_cannot_weigh_less_than_nothing() -> None:
    with pytest.raises(ValueError, match="the weight of latent must be >= 0, received -1"):
        UniZeroLossWeights(latent=-1)
