"""Searching with a model of texts: kernels against torch, paths against whole sequences, what is offered."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from text_rows import BODIES, SMALL, a_text_network, text_rows, words_of
from torch import Tensor
from torch.nn import functional

from headway.text_games.textzero_inference import QuickTextModel, TextModel, searchable
from headway.text_games.textzero_network import Body, TextZeroNetwork
from headway.zero.planner_history import Past
from headway.zero.planner_planning import Planner
from headway.zero.search_interface import Leaves, SearchSettings
from headway.zero.world_model_packed import pack_weights

torch.set_num_threads(1)

ROWS, NODES, CONTEXT = 4, 9, 2


def a_knowing_network(body: Body, **changes: Any) -> TextZeroNetwork:
    network = a_text_network(body, **changes)
    network.known.see(words_of(text_rows(30)))
    return network


def a_past(seed: int = 4) -> Past:
    rng = np.random.default_rng(seed)
    obs = text_rows(ROWS * CONTEXT, seed=seed).reshape(ROWS, CONTEXT, -1)
    return Past(obs, rng.integers(4, size=(ROWS, CONTEXT)), np.array([0, 1, 2, 2]))


def questions(leaves: list[Leaves], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """For each row a node that there is, and one of the actions that are legal there."""
    parents = rng.integers(len(leaves), size=ROWS).astype(np.int32)
    actions = np.zeros(ROWS, np.int32)
    for row, parent in enumerate(parents):
        legal = leaves[parent].legal
        assert legal is not None
        actions[row] = rng.choice(np.flatnonzero(legal[row]))
    return parents, actions


def kept(leaves: Leaves) -> Leaves:
    """A copy: an answer is good until the next question."""
    return Leaves(*(None if part is None else np.array(part) for part in leaves))


@pytest.mark.parametrize("body", BODIES)
def test_the_kernels_of_texts_say_what_torch_says(body: Body) -> None:
    network = a_knowing_network(body)
    assert isinstance(searchable(network), QuickTextModel)
    quick, plain = QuickTextModel(network, least_chance=0.0), TextModel(copy.deepcopy(network), least_chance=0.0)
    rng, rows = np.random.default_rng(0), text_rows(ROWS, seed=7)
    ours, theirs = [kept(quick.begin(rows, NODES))], [kept(plain.begin(rows, NODES))]
    for simulation in range(NODES - 1):
        parents, actions = questions(ours, rng)
        ours.append(kept(quick.expand(simulation, parents, actions)))
        theirs.append(kept(plain.expand(simulation, parents, actions)))
        for name in ("rewards", "values", "logits"):
            np.testing.assert_allclose(getattr(ours[-1], name), getattr(theirs[-1], name), rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(ours[-1].legal, theirs[-1].legal)


@pytest.mark.gpu
@pytest.mark.parametrize("body", BODIES)
def test_a_gpu_says_of_texts_what_the_cpu_says(body: Body) -> None:
    """Run, captured, and replayed."""
    here, there = TextModel(a_knowing_network(body)), searchable(a_knowing_network(body), "cuda")
    rng = np.random.default_rng(0)
    for round in range(4):
        rows = text_rows(ROWS, seed=round)
        ours, theirs = [kept(here.begin(rows, NODES))], [kept(there.begin(rows, NODES))]
        for simulation in range(NODES - 1):
            parents, actions = questions(ours, rng)
            ours.append(kept(here.expand(simulation, parents, actions)))
            theirs.append(kept(there.expand(simulation, parents, actions)))
            for name in ("rewards", "values", "logits"):
                np.testing.assert_allclose(getattr(ours[-1], name), getattr(theirs[-1], name), rtol=1e-3, atol=2e-3)


class Recomputed:
    """Knows what a node must say by computing everything that led to it in one go."""

    def __init__(self, network: TextZeroNetwork, rows: np.ndarray, past: Past | None, least: float) -> None:
        self.network, self.least = network, least
        self.rows, self.past = torch.from_numpy(rows), past
        self.known = network.vectors(network.known.words)
        self.offers: dict[tuple[int, int], list[int]] = {}
        self.paths: list[list[tuple[int, int]]] = [[] for _ in rows]

    def vector(self, row: int, parent: int, slot: int) -> Tensor:
        if parent == 0:
            return self.network.vectors(self.network.candidates(self.rows[row : row + 1])[0, slot : slot + 1])
        return self.known[self.offers[row, parent][slot]][None]

    def ways(self, row: int) -> tuple[list[Tensor], list[Tensor]]:
        """Latents and action vectors up to the root, the past among them."""
        network, past = self.network, self.past
        latents, done = [], []
        for step in range(CONTEXT - int(past.lengths[row]), CONTEXT) if past is not None else ():
            assert past is not None
            seen = torch.from_numpy(past.obs[row, step][None])
            latents.append(network.encode(seen))
            done.append(network.vectors(network.candidates(seen)[0, past.actions[row, step]][None]))
        return [*latents, network.encode(self.rows[row : row + 1])], done

    def node(self, row: int, vectors: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Reward, value and queries after actions with these vectors."""
        body: Any = self.network.body
        latents, done = self.ways(row)
        reward = self.network.reward_support.decode(torch.zeros(1, self.network.reward_support.num_bins))
        for vector in vectors:
            if self.network.architecture.body == "muzero":
                latent, trace = body.step(latents[-1], vector)
                reward_logits = body.rewards(body.look(latent), trace)
            else:
                done.append(vector)
                sequence = body(torch.stack(latents, 1), torch.stack(done, 1))
                latent, reward_logits = body.expect(sequence.done[:, -1], latents[-1])
            latents.append(latent)
            reward = self.network.reward_support.decode(reward_logits)
        seen = body.look(latents[-1]) if self.network.architecture.body == "muzero" else None
        if seen is None:
            actions = torch.stack(done, 1) if done else torch.zeros(1, 0, SMALL.embedding)
            seen = body(torch.stack(latents, 1), actions).seen[:, -1]
        queries, value = body.judge(seen)
        return reward, self.network.value_support.decode(value), queries[0]

    def offered(self, queries: Tensor) -> list[tuple[float, int]]:
        """Of the known actions that can probably be done the best, with their logits."""
        good, possible = queries.chunk(2)
        chances = (self.known @ possible).sigmoid()
        scores = self.known @ good + functional.logsigmoid(self.known @ possible)
        used = self.network.known.words.any(1)
        able = [(float(scores[m]), m) for m in range(len(used)) if used[m] and chances[m] >= self.least]
        return sorted(able, key=lambda one: (-one[0], one[1]))[: SMALL.slots]


@pytest.mark.parametrize("with_past", [False, True])
@pytest.mark.parametrize("body", BODIES)
def test_a_path_says_what_everything_computed_anew_says(body: Body, with_past: bool) -> None:
    if body == "muzero" and with_past:
        with pytest.raises(ValueError, match="does not look back"):
            searchable(a_text_network(body), context_steps=CONTEXT)
        return
    network, least = a_knowing_network(body), 0.4
    rows, rng = text_rows(ROWS, seed=7), np.random.default_rng(0)
    context = CONTEXT if with_past else 0
    past = a_past() if with_past else None
    model = QuickTextModel(network, context_steps=context, least_chance=least)
    with torch.no_grad():
        anew = Recomputed(network, rows, past, least)
        leaves = [kept(model.begin(rows, NODES, past))]
        ways: list[list[list[Tensor]]] = [[[]] for _ in range(ROWS)]
        for simulation in range(NODES - 1):
            parents, actions = questions_of_open_nodes(leaves, rng)
            leaves.append(kept(model.expand(simulation, parents, actions)))
            for row in range(ROWS):
                vector = anew.vector(row, int(parents[row]), int(actions[row]))
                ways[row].append([*ways[row][parents[row]], vector])
                reward, value, queries = anew.node(row, ways[row][-1])
                offer = anew.offered(queries)
                anew.offers[row, simulation + 1] = [m for _, m in offer]
                told = leaves[-1]
                assert told.legal is not None
                np.testing.assert_allclose(told.rewards[row], reward, atol=1e-5)
                np.testing.assert_allclose(told.values[row], value, atol=1e-5)
                np.testing.assert_allclose(told.logits[row, : len(offer)], [score for score, _ in offer], atol=1e-5)
                assert told.legal[row].tolist() == [slot < len(offer) for slot in range(SMALL.slots)]


def questions_of_open_nodes(leaves: list[Leaves], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The same where a node may be an end: such a one is not gone on from."""
    parents, actions = np.zeros(ROWS, np.int32), np.zeros(ROWS, np.int32)
    for row in range(ROWS):
        legal = [leaf.legal[row] for leaf in leaves if leaf.legal is not None]
        parents[row] = rng.choice([node for node, able in enumerate(legal) if able.any()])
        actions[row] = rng.choice(np.flatnonzero(legal[parents[row]]))
    return parents, actions


def test_what_came_before_changes_what_a_transformer_says() -> None:
    model = QuickTextModel(a_knowing_network("unizero"), context_steps=CONTEXT)
    rows = text_rows(ROWS, seed=7)
    alone, told = model.begin(rows, 2).values.copy(), model.begin(rows, 2, a_past()).values.copy()
    assert alone[0] == told[0]  # nothing came before it
    assert (alone[1:] != told[1:]).all()
    with pytest.raises(ValueError, match="the past of 4 roots is"):
        model.begin(rows, 2, Past(a_past().obs[:, :1], a_past().actions[:, :1], a_past().lengths))


def test_without_known_actions_every_node_below_the_root_is_an_end() -> None:
    rows = text_rows(ROWS)
    for body in BODIES:
        model = searchable(a_text_network(body))
        model.begin(rows, 2)
        leaves = model.expand(0, np.zeros(ROWS, np.int32), np.zeros(ROWS, np.int32))
        assert leaves.legal is not None
        assert not leaves.legal.any()
        result = Planner(model, SearchSettings(num_simulations=10)).plan(rows, np.random.default_rng(0))
        assert (result.visits.sum(1) == 10).all()


def test_a_table_smaller_than_the_slots_is_offered_whole() -> None:
    for body in BODIES:
        network = a_knowing_network(body, table=3)
        for model in (QuickTextModel(network, least_chance=0.0), TextModel(network, least_chance=0.0)):
            model.begin(text_rows(ROWS), 2)
            leaves = model.expand(0, np.zeros(ROWS, np.int32), np.zeros(ROWS, np.int32))
            assert leaves.logits.shape == (ROWS, SMALL.slots)
            assert leaves.legal is not None
            assert leaves.legal.tolist() == [[True] * 3 + [False] * 2] * ROWS


@pytest.mark.parametrize("body", BODIES)
def test_new_weights_bring_their_own_table(body: Body) -> None:
    knowing, other = a_knowing_network(body), a_text_network(body, seed=2)
    rows, settings = text_rows(ROWS, seed=7), SearchSettings(num_simulations=12)
    planner = Planner(searchable(a_text_network(body, seed=3)), settings)
    found = []
    for network in (knowing, other, knowing):
        planner.load({"network": pack_weights(network)})
        found.append(planner.plan(rows, np.random.default_rng(1)))
    np.testing.assert_array_equal(found[0].visits, found[2].visits)
    np.testing.assert_array_equal(found[0].values, found[2].values)
    assert found[0].max_depths.max() > 1
    assert found[1].max_depths.max() == 1


def test_a_chance_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"least_chance must be in \[0, 1\), received 1"):
        searchable(a_text_network(), least_chance=1.0)
