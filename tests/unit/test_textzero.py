"""TextZero's parts: words, known actions, the order of candidates, losses, the learner."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from replay_draws import a_batch, classes, drawn, targets_of
from text_rows import BODIES, SMALL, a_text_network, text_rows, words_of
from torch import Tensor
from torch.nn import functional

from headway.core.types import Batch
from headway.replay.records_feedback import Priorities
from headway.runs.fingerprint import fingerprint
from headway.text_games.textzero_inference import searchable
from headway.text_games.textzero_known_actions import KnownActions, keys_of
from headway.text_games.textzero_learner import TextZeroLearner, TextZeroSettings
from headway.text_games.textzero_loss import TextZeroLossWeights, textzero_losses
from headway.text_games.textzero_network import Body, TextZeroNetwork
from headway.zero.model_learner_window_loss import Targets
from headway.zero.planner_planning import Planner
from headway.zero.search_interface import SearchSettings
from headway.zero.world_model_packed import load_weights, pack_weights
from headway.zero.world_model_two_hot import Support

torch.set_num_threads(1)


def text_batch(steps: int = 3, batch: int = 6, *, seed: int = 0) -> dict[str, Any]:
    """A draw: rows of words, policies over the slots that are filled."""
    data = a_batch(batch, steps, seed=seed, num=4)
    rows = text_rows((steps + 1) * batch, seed=seed).reshape(steps + 1, batch, -1)
    data["obs"] = np.where(data["mask"][..., None] > 0, rows, 0).astype(np.int32)
    data["bootstrap_obs"] = text_rows((steps + 1) * batch, seed=seed + 1).reshape(steps + 1, batch, -1)
    data["policies"] = np.concatenate((data["policies"], np.zeros((steps + 1, batch, 1), np.float32)), 2)
    return data


# -- words --------------------------------------------------------------------------------------------


def test_the_order_of_words_matters_and_padding_does_not() -> None:
    network = a_text_network()
    words = torch.tensor([[3, 4, 5, 0, 0], [3, 5, 4, 0, 0], [3, 4, 5, 0, 0]])
    bags = network.bag(words)
    torch.testing.assert_close(bags[0], bags[2])
    torch.testing.assert_close(bags[0], network.bag(words[:1, :3])[0])
    assert not torch.allclose(bags[0], bags[1])
    assert not network.bag(torch.zeros(1, 5, dtype=torch.long)).any()


@pytest.mark.parametrize("body", BODIES)
def test_a_new_text_network_has_no_opinion(body: Body) -> None:
    network = a_text_network(body, shaken=False)
    leaves = searchable(network).begin(text_rows(3), 2)
    assert not leaves.logits.any()
    assert abs(leaves.values).max() < 1e-6


@pytest.mark.parametrize(
    "bad",
    [
        {"slots": 0},
        {"buckets": 2**24},
        {"body": "transformer"},
        {"value_support": Support(-1, 2, 4)},
    ],
)
def test_an_architecture_that_cannot_be_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="received"):
        replace(SMALL, **bad)


# -- the order of candidates --------------------------------------------------------------------------


@pytest.mark.parametrize("body", BODIES)
def test_candidates_in_another_order_are_visited_as_often_and_nothing_else_changes(body: Body) -> None:
    network = a_text_network(body)
    rows = text_rows(6, seed=3)
    network.known.see(words_of(rows))
    order = np.random.default_rng(1).permuted(np.tile(np.arange(SMALL.slots), (6, 1)), axis=1)
    moved = rows.copy()
    slots = moved[:, SMALL.text_words :].reshape(6, SMALL.slots, SMALL.action_words)
    slots[:] = np.take_along_axis(slots.copy(), order[:, :, None], 1)
    planner = Planner(searchable(network), SearchSettings(num_simulations=24))
    legal = words_of(rows).numpy().any(2)
    results, leaves = [], []
    for seen, allowed in ((rows, legal), (moved, np.take_along_axis(legal, order, 1))):
        result = planner.plan(seen, np.random.default_rng(0), legal=allowed, noise=False)
        results.append(result)
        leaves.append(searchable(network).begin(seen, 2))
    for field in ("visits", "policies", "q"):
        before, after = (getattr(result, field) for result in results)
        np.testing.assert_array_equal(np.take_along_axis(before, order, 1), after)
    np.testing.assert_array_equal(results[0].values, results[1].values)
    np.testing.assert_array_equal(np.take_along_axis(leaves[0].logits, order, 1), leaves[1].logits)
    np.testing.assert_array_equal(leaves[0].values, leaves[1].values)


@pytest.mark.parametrize("body", BODIES)
def test_an_empty_slot_is_never_visited_whatever_is_said_to_be_legal(body: Body) -> None:
    rows = text_rows(4, filled=2)
    planner = Planner(searchable(a_text_network(body)), SearchSettings(num_simulations=16))
    visits = planner.plan(rows, np.random.default_rng(0)).visits
    assert (visits.sum(1) == 16).all()
    assert not visits[:, 2:].any()


# -- known actions ------------------------------------------------------------------------------------


def test_what_can_be_done_is_known_from_then_on_once_each() -> None:
    table, rows = KnownActions(12, 3), text_rows(40)
    table.see(words_of(rows))
    before = table.words.clone()
    table.see(words_of(rows[:7]))
    assert torch.equal(before, table.words)
    wanted = {tuple(words) for words in words_of(rows).flatten(0, 1).tolist() if any(words)}
    known = [tuple(words) for words in table.words.tolist() if any(words)]
    assert len(known) == len(set(known)) == 8
    assert set(known) == wanted
    assert table.is_used.sum() == 8


def test_usage_follows_how_often_an_action_could_be_done() -> None:
    table = KnownActions(4, 2)
    always, rarely = [5, 6], [7, 0]
    for step in range(200):
        table.see(torch.tensor([[always, rarely if step % 10 == 0 else [0, 0]]]))
    usage = {tuple(words): float(use) for words, use in zip(table.words.tolist(), table.usage, strict=True)}
    assert usage[(5, 6)] == pytest.approx(1 - 0.99**200, abs=1e-4)
    assert 0.05 < usage[(7, 0)] < 0.15
    assert not table.is_used[2:].any()


def test_a_full_table_keeps_what_is_frequent() -> None:
    table = KnownActions(2, 1)
    for _ in range(50):
        table.see(torch.tensor([[[1], [2]], [[1], [0]]]))
    assert sorted(table.words.flatten().tolist()) == [1, 2]
    table.see(torch.tensor([[[3]]] + 99 * [[[1]]]))  # once in a hundred is rarer than both
    assert sorted(table.words.flatten().tolist()) == [1, 2]
    for _ in range(400):
        table.see(torch.tensor([[[1], [3]]]))
    assert sorted(table.words.flatten().tolist()) == [1, 3]


def test_where_known_actions_were_possible_is_found_again() -> None:
    table, rows = KnownActions(6, 3), text_rows(10, seed=5)
    table.see(words_of(rows[:3]))
    found = table.among(keys_of(words_of(rows)))
    for row, hits in zip(words_of(rows).tolist(), found.tolist(), strict=True):
        wanted = [float(any(words) and words in row) for words in table.words.tolist()]
        assert hits == wanted


# -- losses -------------------------------------------------------------------------------------------


def slow_text_loss(
    network: TextZeroNetwork, target: TextZeroNetwork, targets: Targets, weights: TextZeroLossWeights
) -> Tensor:
    """Sample by sample and step by step, from the definition."""
    steps, batch = targets.actions.shape
    body, supports = network.body, (network.value_support, network.reward_support)
    table = network.known.words.tolist()
    total = torch.zeros(())
    for b in range(batch):
        rows = [targets.observations[k, b : b + 1] for k in range(steps + 1)]
        candidates = [network.candidates(row)[0] for row in rows]
        done = [network.vectors(candidates[k][targets.actions[k, b]][None]) for k in range(steps)]
        latents, rewards, agreements = _slow_unroll(network, target, targets, b, rows, done)
        loss = torch.zeros(())
        for k in range(steps + 1):
            counts, past = float(targets.mask[k, b]), float(targets.ended[k, b])
            valued = max(counts, past) if weights.learn_endings else counts
            queries, value = body.judge(latents[k])
            good, possible = queries[0].chunk(2)
            filled = candidates[k].any(1)
            logs = (network.vectors(candidates[k][filled]) @ good).log_softmax(-1)
            loss = loss - counts * weights.policy * (targets.policies[k, b][filled] * logs).sum()
            loss = loss + counts * weights.entropy * (logs.exp() * logs).sum()
            loss = loss + valued * weights.value * classes(value[0], targets.values[k, b], supports[0])
            for words, vector in zip(table, network.vectors(network.known.words), strict=True):
                if any(words):
                    is_there = counts > 0 and words in candidates[k].tolist()
                    wrong = -functional.logsigmoid((vector @ possible) * (1 if is_there else -1))
                    loss = loss + valued * weights.legality * wrong / network.architecture.slots
            if k == steps:
                break
            loss = loss + valued * weights.reward * classes(rewards[k][0], targets.rewards[k, b], supports[1])
            next_counts = targets.mask if network.architecture.body == "muzero" else targets.counted(True)
            loss = loss + float(next_counts[k + 1, b]) * weights.agreement * agreements[k]
        total = total + targets.weights[b] * loss
    return total / (batch * steps)


def _slow_unroll(
    network: TextZeroNetwork, target: TextZeroNetwork, targets: Targets, b: int, rows: list[Tensor], done: list[Tensor]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Features that the heads read, reward logits, and disagreements."""
    body: Any = network.body
    if network.architecture.body == "muzero":
        latents, rewards, agreements = [network.encode(rows[0])], [], []
        for row, vector in zip(rows[1:], done, strict=True):
            latent, trace = body.step(latents[-1], vector)
            latents.append(latent)
            rewards.append(body.rewards(body.look(latent), trace))
            seen = body.project(network.encode(row)).detach()
            agreements.append(-functional.cosine_similarity(body.guess(body.project(latent)), seen)[0])
        return [body.look(latent) for latent in latents], rewards, agreements
    other: Any = target.body
    ended = targets.ended[:, b] > 0
    latents = [body.ending[None] if over else network.encode(row) for row, over in zip(rows, ended, strict=True)]
    wanted = [other.ending[None] if over else target.encode(row) for row, over in zip(rows, ended, strict=True)]
    sequence = body(torch.stack(latents, 1), torch.stack(done, 1))
    expected, rewards = body.expect(sequence.done, torch.stack(latents[:-1], 1))
    agreements = [(expected[0, k] - wanted[k + 1][0].detach()).square().mean() for k in range(len(done))]
    return list(sequence.seen.unbind(1)), list(rewards.unbind(1)), agreements


@pytest.mark.parametrize("learn_endings", [False, True])
@pytest.mark.parametrize("body", BODIES)
def test_the_loss_of_texts_is_what_its_definition_says(body: Body, learn_endings: bool) -> None:
    network, target = a_text_network(body), a_text_network(body, seed=2)
    if body == "unizero" and not learn_endings:
        learn_endings = True  # its latents always end; only that is defined below
    data = text_batch()
    targets = targets_of(data)
    network.known.see(words_of(data["obs"][0]))
    weights = TextZeroLossWeights(value=0.3, legality=0.7, agreement=1.7, entropy=0.01, learn_endings=learn_endings)
    quick = textzero_losses(network, target, targets, weights).total
    torch.testing.assert_close(quick, slow_text_loss(network, target, targets, weights), rtol=1e-4, atol=1e-5)


# -- learning -----------------------------------------------------------------------------------------


def a_text_learner(body: Body, **settings: Any) -> TextZeroLearner:
    return TextZeroLearner(lambda: a_text_network(body), TextZeroSettings(**settings))


@pytest.mark.parametrize("body", BODIES)
def test_a_model_of_texts_learns_what_it_is_shown(body: Body) -> None:
    learner, batch = a_text_learner(body, bootstrap="search"), Batch(0, (drawn(text_batch()),))
    first = learner.learn(batch)
    for _ in range(30):
        last = learner.learn(batch)
    for name in ("policy_loss", "value_loss", "reward_loss", "legality_loss"):
        assert last.metrics[name] < first.metrics[name]
    assert isinstance(last.feedback, Priorities)
    assert last.metrics["legality_loss"] < 0.9 * first.metrics["legality_loss"]


@pytest.mark.parametrize("body", BODIES)
def test_saved_learning_goes_on_bit_for_bit_with_its_table(body: Body) -> None:
    settings = {"average": 0.9, "target_every": 2, "target_tau": 0.5}
    batches = [Batch(version, (drawn(text_batch(seed=version)),)) for version in range(8)]
    whole = a_text_learner(body, **settings)
    for batch in batches[:4]:
        whole.learn(batch)
    state = copy.deepcopy(whole.state_dict())
    resumed = a_text_learner(body, **settings)
    resumed.load_state_dict(state)
    for batch in batches[4:]:
        assert whole.learn(batch).metrics == resumed.learn(batch).metrics
    assert fingerprint(whole.state_dict()) == fingerprint(resumed.state_dict())
    published = a_text_network(body, shaken=False)
    load_weights(published, whole.snapshot())
    assert published.known.is_used.sum() == 12  # eight actions of each draw and twelve places
    known = {tuple(words) for words in published.known.words.tolist()}
    drawn_words = [words_of(text_batch(seed=seed)["obs"][0]).flatten(0, 1).tolist() for seed in range(8)]
    seen = {tuple(words) for every in drawn_words for words in every}
    assert known <= seen


def test_a_table_is_copied_to_what_follows_and_never_averaged() -> None:
    learner = a_text_learner("muzero", average=0.9, target_tau=0.1, target_every=1)
    for version in range(3):
        learner.learn(Batch(version, (drawn(text_batch(seed=version)),)))
    state = learner.state_dict()
    networks = [a_text_network() for _ in range(3)]
    for network, name in zip(networks, ("network", "target", "average"), strict=True):
        load_weights(network, {"network": state[name]})
    for network in networks[1:]:
        assert torch.equal(networks[0].known.words, network.known.words)
        assert torch.equal(networks[0].known.usage, network.known.usage)
        assert not np.array_equal(pack_weights(network), pack_weights(networks[0]))
