"""The array search against the slow one, on networks that know nothing; and what it promises its users."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_network import RandomNetwork
from slow_search import slow_search

from headway.testing.rules_model import RulesModel
from headway.zero.board_games_package import BoardGames, perfect_player, play_match, random_player
from headway.zero.board_games_players import values_of
from headway.zero.search_batched import halving_by_considered
from headway.zero.search_package import Leaves, SearchResult, SearchSettings, Tree, choose_actions, search

stable = settings(max_examples=150, deadline=None, derandomize=True)


@dataclass(frozen=True)
class Case:
    num_roots: int
    num_actions: int
    settings: SearchSettings
    legality: Any
    turns: bool
    ties: bool
    seed: int
    noise: bool
    prior_weight: float | None
    idle: int  # every how many roots one is not searched; 0: none

    def network(self) -> RandomNetwork:
        how: dict[str, Any] = {"legality": self.legality, "turns": self.turns, "ties": self.ties}
        return RandomNetwork(self.num_roots, self.num_actions, self.settings.num_simulations, self.seed, **how)

    def how(self) -> dict[str, Any]:
        how: dict[str, Any] = {"noise": self.noise}
        rng = np.random.default_rng(self.seed + 1)
        if self.prior_weight is not None:
            how["prior"] = rng.random((self.num_roots, self.num_actions)) * (rng.random((self.num_roots, 1)) < 0.8)
            how["prior_weight"] = self.prior_weight
        if self.idle:
            how["active"] = np.arange(self.num_roots) % self.idle != 0
        return how


@st.composite
def cases(draw: st.DrawFn) -> Case:
    return Case(
        num_roots=draw(st.integers(1, 5)),
        num_actions=draw(st.integers(1, 7)),
        settings=SearchSettings(
            num_simulations=draw(st.integers(1, 30)),
            discount=draw(st.sampled_from([0.0, 0.5, 0.997, 1.0])),
            pb_c_base=draw(st.sampled_from([19652.0, 5.0])),
            pb_c_init=draw(st.sampled_from([0.0, 1.25, 4.0])),
            value_norm_floor=draw(st.sampled_from([0.01, 3.0])),
            players=draw(st.sampled_from([1, 2])),
            root=draw(st.sampled_from(["puct", "gumbel"])),
            max_considered_actions=draw(st.sampled_from([1, 2, 3, 16])),
            gumbel_c_scale=draw(st.sampled_from([0.1, 1.0])),
        ),
        legality=draw(st.sampled_from(["none said", "all", "some", "ends"])),
        turns=draw(st.booleans()),
        ties=draw(st.booleans()),
        seed=draw(st.integers(0, 2**20)),
        noise=draw(st.booleans()),
        prior_weight=draw(st.sampled_from([None, 0.0, 0.5, 1.0])),
        idle=draw(st.sampled_from([0, 0, 2])),
    )


def fast(case: Case, tree: Tree | None = None) -> SearchResult:
    network = case.network()
    return search(network, network.roots(), case.settings, np.random.default_rng(case.seed), tree=tree, **case.how())


def slow(case: Case) -> SearchResult:
    network = case.network()
    return slow_search(network, network.roots(), case.settings, np.random.default_rng(case.seed), **case.how())


def assert_same(ours: SearchResult, theirs: SearchResult) -> None:
    for name in SearchResult._fields:
        mine, other = getattr(ours, name), getattr(theirs, name)
        if name == "choices" and other is None:
            assert mine is None
            continue
        assert mine.dtype == other.dtype, name
        np.testing.assert_array_equal(mine, other, err_msg=name)


# -- against the slow one ---------------------------------------------------------------------------


@stable
@given(cases())
def test_the_fast_search_makes_the_trees_of_the_slow_one_bit_for_bit(case: Case) -> None:
    assert_same(fast(case), slow(case))


def test_a_longer_search_of_more_roots_and_actions_is_the_same_too() -> None:
    case = Case(9, 40, SearchSettings(num_simulations=120, players=2), "ends", True, False, 5, True, 0.3, 4)
    assert_same(fast(case), slow(case))
    gumbel = replace(case, settings=case.settings.model_copy(update={"root": "gumbel"}))
    assert_same(fast(gumbel), slow(gumbel))


# -- what holds in every tree -----------------------------------------------------------------------


@stable
@given(cases())
def test_visits_add_up_and_illegal_actions_have_none(case: Case) -> None:
    tree = Tree(case.num_roots, case.settings.num_simulations, case.num_actions)
    result, roots, how = fast(case, tree), case.network().roots(), case.how()
    active = how.get("active", np.ones(case.num_roots, bool))
    np.testing.assert_array_equal(result.visits.sum(axis=1), active * case.settings.num_simulations)
    np.testing.assert_allclose(result.policies.sum(axis=1), active, rtol=1e-5)
    assert np.isfinite(result.values).all()
    if roots.legal is not None:
        assert not result.visits[~roots.legal].any()
        assert not result.policies[~roots.legal].any()
    for b in np.flatnonzero(active):
        for number in range(1, case.settings.num_simulations + 1):
            node = tree.nodes[b, number]
            assert 0 <= node["parent"] < number
            edge = tree.edges[b, node["parent"], node["action"]]
            if edge["child"] != number:  # the end of a game, visited again
                assert tree.nodes[b, edge["child"]]["num_legal"] == 0
                continue
            assert edge["visits"] == node["visits"]
            below = tree.edges[b, number]["visits"].sum() if node["num_legal"] else node["visits"] - 1
            assert node["visits"] == 1 + below
            q = node["reward"] + node["discount"] * (node["value_sum"] / np.float32(node["visits"]))
            assert edge["q"] == q
            assert tree.roots[b]["low"] <= q <= tree.roots[b]["high"]


@stable
@given(cases(), st.integers(0, 3), st.integers(0, 9))
def test_used_and_larger_memory_changes_nothing(case: Case, more_roots: int, more_simulations: int) -> None:
    room = case.num_roots + more_roots, case.settings.num_simulations + more_simulations, case.num_actions
    tree = Tree(*room)
    other = replace(case, seed=case.seed + 1, legality="ends", turns=True, prior_weight=0.5)
    fast(other, tree)
    assert_same(fast(case, tree), fast(case))


def test_the_memory_is_used_and_not_replaced() -> None:
    case = Case(4, 3, SearchSettings(num_simulations=8), "none said", False, False, 0, True, None, 0)
    tree = Tree(4, 8, 3)
    before = {name: getattr(tree, name).ctypes.data for name in Tree.__slots__}
    result = fast(case, tree)
    assert {name: getattr(tree, name).ctypes.data for name in Tree.__slots__} == before
    np.testing.assert_array_equal(tree.edges["visits"][:, 0], result.visits)
    assert tree.num_bytes > tree.edges.nbytes
    kept = result.visits.copy()
    fast(replace(case, seed=1), tree)
    np.testing.assert_array_equal(result.visits, kept)  # results are the caller's


def test_a_tree_too_small_is_refused() -> None:
    case = Case(4, 3, SearchSettings(num_simulations=8), "none said", False, False, 0, True, None, 0)
    for room in ((3, 8, 3), (4, 7, 3), (4, 8, 4)):
        with pytest.raises(ValueError, match=r"cannot hold 4 roots, 8 simulations and 3 actions"):
            fast(case, Tree(*room))
    with pytest.raises(ValueError, match="at least one of its actions"):
        Tree(1, 1, 0)
    with pytest.raises(ValueError, match="at most 32767 actions"):
        Tree(1, 1, 40_000)


def test_threads_with_memory_of_their_own_search_side_by_side() -> None:
    base = Case(16, 4, SearchSettings(num_simulations=40), "some", False, True, 0, True, None, 0)
    alone = [fast(replace(base, seed=seed)) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda seed: fast(replace(base, seed=seed)), range(4)))
    for one, other in zip(alone, together, strict=True):
        assert_same(one, other)


# -- choosing, by hand ------------------------------------------------------------------------------


class Bandit:
    """Every step gives the reward of its action, nothing follows."""

    def __init__(self, rewards: list[list[float]], logits: list[list[float]] | None = None) -> None:
        self.rewards = np.array(rewards, np.float32)  # [B, A]
        self.logits = np.zeros_like(self.rewards) if logits is None else np.array(logits, np.float32)
        self.asked: list[tuple[list[int], list[int]]] = []

    def roots(self, **changes: Any) -> Leaves:
        nothing = np.zeros(len(self.rewards), np.float32)
        return Leaves(nothing, nothing, self.logits)._replace(**changes)

    def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
        self.asked.append((parents.tolist(), actions.tolist()))
        rewards = np.where(parents == 0, self.rewards[np.arange(len(actions)), actions], 0)
        return Leaves(rewards.astype(np.float32), np.zeros(len(actions), np.float32), np.zeros_like(self.rewards))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_scores_are_those_of_the_formula() -> None:
    """Prior 0.5, 0.3, 0.2, rewards 0, 1, 0; c = 1.25 + log((N + 19653) / 19652)."""
    bandit = Bandit([[0.0, 1.0, 0.0]], [np.log([0.5, 0.3, 0.2]).tolist()])
    result = search(bandit, bandit.roots(), SearchSettings(num_simulations=3, discount=1.0), rng(), noise=False)
    # Nothing tried: the prior decides, 0. Then Q(0) = 0 is lowest and highest, all norms 0, N = 1:
    # 0.5 c / 2 = 0.3125, 0.3 c = 0.375, 0.2 c = 0.25: action 1. Then Q(1) = 1, norms 0, 1 and (mean 0.5) 0.5, N = 2:
    # 0.5 c sqrt(2) / 2 + 0 = 0.44, 0.3 c sqrt(2) / 2 + 1 = 1.27, 0.2 c sqrt(2) + 0.5 = 0.85: action 1 again.
    assert bandit.asked[:2] == [([0], [0]), ([0], [1])]
    assert bandit.asked[2][0] == [2]  # below action 1
    assert result.visits.tolist() == [[1, 2, 0]]
    assert result.q.tolist() == [[0.0, 1.0, 0.0]]
    assert result.values.tolist() == [0.5]  # (0 + 0 + 1 + 1) / 4
    assert result.parents.tolist() == [[-1, 0, 0, 2]]
    assert (result.mean_depths.tolist(), result.max_depths.tolist()) == ([np.float32(4 / 3)], [2])


def test_equal_scores_are_decided_by_lot_and_by_nothing_else() -> None:
    bandit = Bandit([[0.0] * 4] * 4000)
    result = search(bandit, bandit.roots(), SearchSettings(num_simulations=1), rng(1), noise=False)
    counts = result.visits.sum(axis=0)
    assert ((counts - 1000) ** 2 / 1000).sum() < 16.3  # chi-square, 3 degrees of freedom, one in a thousand
    again = search(bandit, bandit.roots(), SearchSettings(num_simulations=1), rng(1), noise=False)
    other = search(bandit, bandit.roots(), SearchSettings(num_simulations=1), rng(2), noise=False)
    np.testing.assert_array_equal(result.visits, again.visits)
    assert (result.visits != other.visits).any()


def test_what_the_other_roots_are_changes_nothing() -> None:
    settings = SearchSettings(num_simulations=30)
    results = []
    for others in ([1.0, 0.0, 0.0], [0.0, 5.0, -3.0]):
        bandit = Bandit([[0.0, 0.5, 0.5], others, others])
        results.append(search(bandit, bandit.roots(), settings, rng(4)))
    np.testing.assert_array_equal(results[0].visits[0], results[1].visits[0])
    np.testing.assert_array_equal(results[0].parents[0], results[1].parents[0])
    assert (results[0].visits[1] != results[1].visits[1]).any()


def test_the_generator_is_used_and_no_global_state() -> None:
    case = Case(3, 4, SearchSettings(num_simulations=10), "some", False, True, 7, True, None, 0)
    np.random.seed(0)
    first, state = fast(case), np.random.get_state()
    assert_same(first, fast(case))
    assert np.random.get_state()[2] == state[2]  # type: ignore[index]


def test_noise_explores_and_can_be_off() -> None:
    logits = [[9.0, 0.0, 0.0, 0.0]] * 50
    bandit = Bandit([[0.0] * 4] * 50, logits)
    settings = SearchSettings(num_simulations=8)
    assert (search(bandit, bandit.roots(), settings, rng(), noise=False).visits[:, 0] == 8).all()
    noisy = search(bandit, bandit.roots(), settings, rng())
    assert (noisy.visits[:, 0] < 8).any()
    weightless = search(bandit, bandit.roots(), settings.model_copy(update={"root_noise_weight": 0.0}), rng())
    assert (weightless.visits[:, 0] == 8).all()
    flat, spiky = (
        search(
            bandit,
            bandit.roots(),
            settings.model_copy(update={"root_dirichlet_alpha": alpha, "root_noise_weight": 1.0}),
            rng(),
        )
        for alpha in (50.0, 0.05)
    )
    assert flat.visits.max(axis=1).mean() < spiky.visits.max(axis=1).mean()


def test_values_closer_than_the_floor_hardly_count() -> None:
    bandit = Bandit([[0.0, 1e-4]] * 20, [[0.1, 0.0]] * 20)
    coarse = search(bandit, bandit.roots(), SearchSettings(num_simulations=40, value_norm_floor=1.0), rng(), False)
    fine = search(bandit, bandit.roots(), SearchSettings(num_simulations=40, value_norm_floor=1e-5), rng(), False)
    assert abs(coarse.visits[:, 1].mean() - 20) < 3
    assert fine.visits[:, 1].mean() > 25


# -- the prior of somebody else ---------------------------------------------------------------------


def test_the_prior_of_somebody_else_is_mixed_in_by_its_weight() -> None:
    bandit = Bandit([[0.0] * 3] * 2)
    known = np.array([[0.0, 0.0, 5.0], [0.0, 0.0, 0.0]])  # it knows nothing about the second root
    tree = Tree(2, 4, 3)

    def priors(weight: float | np.ndarray) -> np.ndarray:
        settings = SearchSettings(num_simulations=4)
        search(bandit, bandit.roots(), settings, rng(), noise=False, prior=known, prior_weight=weight, tree=tree)
        return tree.edges["prior"][:, 0].copy()

    third = 1 / 3
    np.testing.assert_allclose(priors(0.0), [[third] * 3] * 2)
    np.testing.assert_allclose(priors(0.4), [[0.2, 0.2, 0.6], [third] * 3], rtol=1e-6)
    np.testing.assert_allclose(priors(1.0), [[0.0, 0.0, 1.0], [third] * 3])
    np.testing.assert_allclose(priors(np.array([0.7, 1.0])), [[0.1, 0.1, 0.8], [third] * 3], rtol=1e-6)


def test_a_prior_on_illegal_actions_does_not_count() -> None:
    bandit, tree = Bandit([[0.0] * 3]), Tree(1, 4, 3)
    roots = bandit.roots(legal=np.array([[True, True, False]]))
    known = np.array([[1.0, 3.0, 96.0]])
    search(bandit, roots, SearchSettings(num_simulations=4), rng(), False, known, 1.0, tree)
    assert tree.edges["prior"][0, 0].tolist() == [0.25, 0.75, -1.0]


def test_logarithms_are_no_prior() -> None:
    bandit = Bandit([[0.0] * 3] * 2)
    for wrong in (-1.5, np.nan, np.inf):
        known = np.array([[0.2, 0.3, 0.5], [0.2, wrong, 0.5]])
        with pytest.raises(ValueError, match=r"prior of root 1 must be probabilities.*logarithms"):
            search(bandit, bandit.roots(), SearchSettings(), rng(), prior=known, prior_weight=0.5)
    for shape in ((3,), (2, 1), (2, 4), (3, 3)):
        with pytest.raises(ValueError, match=r"prior must have shape \[2, 3\], received \[\d"):
            search(bandit, bandit.roots(), SearchSettings(), rng(), prior=np.ones(shape), prior_weight=0.5)
    for weight in (-0.1, 1.1, np.nan):
        with pytest.raises(ValueError, match=r"prior_weight must lie in 0\.\.1"):
            search(bandit, bandit.roots(), SearchSettings(), rng(), prior=np.ones((2, 3)), prior_weight=weight)


# -- games that are over, answers that are none -----------------------------------------------------


def test_a_root_without_a_legal_action_is_refused_unless_it_is_left_out() -> None:
    bandit = Bandit([[0.0, 1.0]] * 3)
    roots = bandit.roots(legal=np.array([[True, True], [False, False], [True, False]]))
    with pytest.raises(ValueError, match=r"root 1 has no legal action; .* active\[1\] = False"):
        search(bandit, roots, SearchSettings(num_simulations=6), rng())
    active = np.array([True, False, True])
    result = search(bandit, roots, SearchSettings(num_simulations=6), rng(), active=active)
    assert result.visits.sum(axis=1).tolist() == [6, 0, 6]
    assert result.values[1] == 0
    assert not result.policies[1].any()
    assert choose_actions(result, 1.0, rng()).tolist()[1:] == [0, 0]
    assert all(parents[1] == actions[1] == 0 for parents, actions in bandit.asked)


def test_the_end_of_a_game_inside_the_tree_is_visited_again_with_the_same_value() -> None:
    class OneStep(Bandit):
        def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
            said = super().expand(simulation, parents, actions)
            noise = np.float32(simulation)  # later answers about the same end differ, and are not read
            return said._replace(values=said.values + noise, legal=np.zeros_like(said.logits, bool))

    bandit = OneStep([[3.0, 5.0]])
    result = search(bandit, bandit.roots(), SearchSettings(num_simulations=30, discount=0.5), rng(), noise=False)
    assert all(parents == [0] for parents, _ in bandit.asked)
    first = {action: simulation for simulation, (_, (action,)) in reversed(list(enumerate(bandit.asked)))}
    assert result.q.tolist() == [[3 + 0.5 * first[0], 5 + 0.5 * first[1]]]
    assert result.max_depths.tolist() == [1]


@pytest.mark.parametrize("name", ["rewards", "values", "logits"])
def test_an_answer_that_is_not_finite_is_refused(name: str) -> None:
    class Broken(Bandit):
        def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
            said = super().expand(simulation, parents, actions)
            if simulation == 2:
                getattr(said, name)[1] = np.nan
            return said

    broken = Broken([[0.0, 1.0]] * 2)
    with pytest.raises(ValueError, match=r"answer for root 1 in simulation 2 is not finite"):
        search(broken, broken.roots(), SearchSettings(num_simulations=4), rng())
    if name != "rewards":
        wrong = broken.roots()
        wrong = wrong._replace(**{name: np.full_like(getattr(wrong, name), np.nan)})
        with pytest.raises(ValueError, match=r"answer for root 0 in the roots is not finite"):
            search(broken, wrong, SearchSettings(num_simulations=1), rng())


def test_answers_of_another_shape_are_refused_and_of_another_type_are_taken() -> None:
    class Other(Bandit):
        def __init__(self, name: str, change: Any) -> None:
            super().__init__([[0.0, 1.0]] * 3)
            self.name, self.change = name, change

        def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
            said = super().expand(simulation, parents, actions)
            return said._replace(**{self.name: self.change(getattr(said, self.name))})

    settings = SearchSettings(num_simulations=5)
    other = Other("values", lambda values: values[:, None])
    with pytest.raises(ValueError, match=r"values must have shape \[3\], received \[3, 1\]"):
        search(other, other.roots(), settings, rng())
    other = Other("logits", lambda logits: logits[:1])
    with pytest.raises(ValueError, match=r"logits must have shape \[3, 2\], received \[1, 2\]"):
        search(other, other.roots(), settings, rng())
    plain = Bandit([[0.0, 1.0]] * 3)
    expected = search(plain, plain.roots(), settings, rng())
    for change in (np.float64, np.asfortranarray, list, torch.from_numpy):
        other = Other("logits", change)
        assert_same(search(other, other.roots(), settings, rng()), expected)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("num_simulations", 0, r"num_simulations\n  Input should be greater than or equal to 1"),
        ("discount", -1.0, r"discount\n  Input should be greater than or equal to 0"),
        ("root_noise_weight", 1.5, r"root_noise_weight\n  Input should be less than or equal to 1"),
        ("pb_c_base", 0.0, r"pb_c_base\n  Input should be greater than 0"),
        ("value_norm_floor", 0.0, r"value_norm_floor\n  Input should be greater than 0"),
        ("pb_c_init", float("nan"), r"pb_c_init\n  Input should be a finite number"),
        ("players", 3, r"players\n  Input should be 1 or 2"),
        ("root", "gumble", r"root\n  Input should be 'puct' or 'gumbel'"),
        ("max_considered_actions", 0, r"max_considered_actions\n  Input should be greater than or equal to 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(name: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SearchSettings(**{name: value})


# -- two players ------------------------------------------------------------------------------------


@stable
@given(cases())
def test_two_players_of_whom_one_always_moves_are_one_player(case: Case) -> None:
    class Alone(RandomNetwork):
        def _leaves(self, latents: np.ndarray, is_root: bool = False) -> Leaves:
            said = super()._leaves(latents, is_root)
            return said._replace(to_play=np.ones(len(latents), np.int8))

    shape = case.num_roots, case.num_actions, case.settings.num_simulations, case.seed
    results = []
    for players in (1, 2):
        network = Alone(*shape, legality=case.legality, ties=case.ties)
        settings = case.settings.model_copy(update={"players": players})
        results.append(search(network, network.roots(), settings, rng(case.seed)))
    assert_same(*results)


@stable
@given(cases())
def test_taking_turns_is_the_same_said_or_not(case: Case) -> None:
    class Turns(RandomNetwork):
        def __init__(self, *args: Any, **how: Any) -> None:
            super().__init__(*args, **how)
            self.turn = np.zeros(self._latents.shape[:2], np.int8)

        def roots(self) -> Leaves:
            return super().roots()._replace(to_play=self.turn[0])

        def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
            self.turn[simulation + 1] = 1 - self.turn[parents, np.arange(len(parents))]
            return super().expand(simulation, parents, actions)._replace(to_play=self.turn[simulation + 1])

    shape = case.num_roots, case.num_actions, case.settings.num_simulations, case.seed
    settings = case.settings.model_copy(update={"players": 2})
    results = []
    for kind in (Turns, RandomNetwork):
        network = kind(*shape, legality=case.legality, ties=case.ties)
        results.append(search(network, network.roots(), settings, rng(case.seed)))
    assert_same(*results)


def test_the_sign_changes_with_the_player() -> None:
    class TwoSteps:
        """Whatever is done: reward 1, then value 10 for who is to move after it."""

        def __init__(self, player: int) -> None:
            self.player = player

        def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
            one, ten = np.ones(1, np.float32), np.full(1, 10, np.float32)
            return Leaves(one, ten, np.zeros((1, 1), np.float32), None, np.array([self.player], np.int8))

    roots = Leaves(*np.zeros((2, 1), np.float32), np.zeros((1, 1), np.float32), None, np.zeros(1, np.int8))
    settings = SearchSettings(num_simulations=1, discount=0.5, players=2)
    assert search(TwoSteps(0), roots, settings, rng()).q.tolist() == [[6.0]]
    assert search(TwoSteps(1), roots, settings, rng()).q.tolist() == [[-4.0]]
    assert search(TwoSteps(1), roots, settings.model_copy(update={"players": 1}), rng()).q.tolist() == [[6.0]]


# -- the Gumbel root --------------------------------------------------------------------------------


def test_halving_gives_the_survivors_of_each_round_the_same_number_of_visits() -> None:
    table = halving_by_considered(8, 24)
    assert table[1].tolist() == list(range(24))
    assert table[4].tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 2 + [4] * 2 + [5] * 2 + [6] * 2 + [7] * 2 + [8] * 2
    assert table[8].tolist() == [0] * 8 + [1] * 4 + [2] * 4 + [3] * 2 + [4] * 2 + [5] * 2 + [6] * 2


def test_a_gumbel_root_tries_as_many_actions_as_it_considers_and_plays_the_best_survivor() -> None:
    rewards = np.random.default_rng(3).random((30, 12))
    bandit = Bandit(rewards.tolist())
    settings = SearchSettings(num_simulations=32, root="gumbel", max_considered_actions=4, gumbel_c_scale=100.0)
    result = search(bandit, bandit.roots(), settings, rng())
    assert ((result.visits > 0).sum(axis=1) == 4).all()
    tried = np.where(result.visits > 0, rewards, -1)
    np.testing.assert_array_equal(result.choices, tried.argmax(axis=1))
    np.testing.assert_array_equal(choose_actions(result, 1.0, rng()), result.choices)


def test_without_noise_a_gumbel_root_tries_what_is_most_likely() -> None:
    bandit = Bandit([[0.0] * 6], [[0.0, 3.0, 1.0, 2.0, -1.0, -2.0]])
    settings = SearchSettings(num_simulations=12, root="gumbel", max_considered_actions=3)
    result = search(bandit, bandit.roots(), settings, rng(), noise=False)
    assert np.flatnonzero(result.visits[0]).tolist() == [1, 2, 3]
    quiet = search(bandit, bandit.roots(), settings.model_copy(update={"gumbel_scale": 0.0}), rng(5))
    np.testing.assert_array_equal(quiet.visits, result.visits)


def test_the_improved_policy_is_better_than_the_prior_even_with_two_simulations() -> None:
    draw = np.random.default_rng(0)
    rewards, logits = draw.normal(size=(500, 10)), draw.normal(size=(500, 10))
    bandit = Bandit(rewards.tolist(), logits.tolist())
    prior = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    roots = bandit.roots(values=(prior * rewards).sum(axis=1).astype(np.float32))
    settings = SearchSettings(num_simulations=2, root="gumbel", discount=1.0)
    result = search(bandit, roots, settings, rng())
    gain = (result.policies * rewards).sum(axis=1) - (prior * rewards).sum(axis=1)
    assert gain.mean() > 0.1
    chosen = rewards[np.arange(500), result.choices]
    assert chosen.mean() - (prior * rewards).sum(axis=1).mean() > 0.3


def test_a_typical_target_of_a_gumbel_root_is_not_certain() -> None:
    """Values fill 0..1 in every tree, however little they differ: with a weight of 1 often the best is all there is."""
    certain, highest = {}, {}
    for scale in (SearchSettings().gumbel_c_scale, 1.0):
        settings = SearchSettings(num_simulations=25, root="gumbel", gumbel_c_scale=scale)
        network = RandomNetwork(200, 4, 25, 7, legality="none said")
        best = search(network, network.roots(), settings, rng()).policies.max(axis=1)
        certain[scale], highest[scale] = float((best > 0.99).mean()), float(best.mean())
    assert certain[0.1] < 0.1 < 0.3 < certain[1.0]
    assert 0.6 < highest[0.1] < 0.85


# -- acting -----------------------------------------------------------------------------------------


def result_with(visits: list[list[int]]) -> SearchResult:
    counts = np.array(visits, np.int32)
    nothing = np.zeros(len(visits), np.float32)
    return SearchResult(counts, counts / counts.sum(), nothing, nothing, nothing, nothing, nothing, nothing, None)


def test_temperature_one_draws_in_proportion_to_visits() -> None:
    result = result_with([[10, 0, 30, 60]] * 4000)
    counts = np.bincount(choose_actions(result, 1.0, rng(2)), minlength=4)
    assert counts[1] == 0
    np.testing.assert_allclose(counts / 4000, [0.1, 0.0, 0.3, 0.6], atol=0.03)
    half = np.bincount(choose_actions(result, 0.5, rng(2)), minlength=4) / 4000
    np.testing.assert_allclose(half, np.array([1, 0, 9, 36]) / 46, atol=0.03)


def test_temperature_zero_takes_the_most_visited_and_decides_equals_by_lot() -> None:
    result = result_with([[7, 20, 3, 20]] * 1000)
    chosen = choose_actions(result, 0.0, rng())
    assert set(chosen.tolist()) == {1, 3}
    assert 400 < (chosen == 1).sum() < 600
    np.testing.assert_array_equal(chosen, choose_actions(result, 0.0, rng()))
    assert chosen.dtype == np.int32
    assert set(choose_actions(result, 1e-3, rng()).tolist()) == {1, 3}


def test_each_root_may_have_its_temperature_and_its_legal_actions() -> None:
    result = result_with([[1, 9]] * 300 + [[1, 9]] * 300)
    temperature = np.repeat([0.0, 100.0], 300)
    chosen = choose_actions(result, temperature, rng())
    assert (chosen[:300] == 1).all()
    assert 100 < chosen[300:].sum() < 200
    assert not choose_actions(result, 0.0, rng(), legal=np.tile([True, False], (600, 1))).any()
    with pytest.raises(ValueError, match="temperature must not be negative"):
        choose_actions(result, -1.0, rng())


# -- on what is known -------------------------------------------------------------------------------


class SmallWorld:
    """A random Markov decision process of a few states, known exactly: the latent of a node is its state."""

    def __init__(self, num_simulations: int, num_states: int = 6, num_actions: int = 3, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self.next = draw.integers(num_states, size=(num_states, num_actions))
        self.gain = draw.random((num_states, num_actions)).astype(np.float32)
        self.states = np.zeros((num_simulations + 1, num_states), np.int64)
        self.states[0] = np.arange(num_states)  # a root in every state

    def best_values(self, discount: float) -> np.ndarray:
        values = np.zeros(len(self.next))
        for _ in range(200):
            values = (self.gain + discount * values[self.next]).max(axis=1)
        return values

    def leaves(self, rewards: np.ndarray) -> Leaves:
        return Leaves(rewards, np.zeros_like(rewards), np.zeros((len(rewards), self.next.shape[1]), np.float32))

    def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
        states = self.states[parents, np.arange(len(parents))]
        self.states[simulation + 1] = self.next[states, actions]
        return self.leaves(self.gain[states, actions])


@pytest.mark.parametrize("root", ["puct", "gumbel"])
def test_root_values_converge_to_the_best_ones(root: Any) -> None:
    discount, errors = 0.6, []
    for num in (50, 500, 5000):
        world = SmallWorld(num)
        settings = SearchSettings(num_simulations=num, discount=discount, root=root)
        result = search(world, world.leaves(np.zeros(6, np.float32)), settings, rng(), noise=False)
        best = world.best_values(discount)
        found = result.values if result.choices is None else result.q[np.arange(6), result.choices]
        errors.append(float(np.abs(found - best).max()))
        if num == 5000:
            action_values = world.gain + discount * best[world.next]
            np.testing.assert_array_equal(result.visits.argmax(axis=1), action_values.argmax(axis=1))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.1


def test_the_rules_as_the_model_find_wins_and_stop_losses_in_tic_tac_toe() -> None:
    positions = {  # moves so far: the only good answers
        (0, 3, 1, 4): {2},  # x wins at once (o would win at 5)
        (0, 4, 1): {2},  # o must stop 0 1 2
        (4, 0, 8): {2, 6},  # o: anything but a corner loses to a double threat
        (0, 1, 4): {8},  # o must stop 0 4 8
        (0, 4, 8): {1, 3, 5, 7},  # o: a corner loses
        (0, 1, 3, 6): {4},  # x: the middle threatens twice (5 and 8)
    }
    games = BoardGames("tic_tac_toe", len(positions))
    for index, moves in enumerate(positions):
        games.play(index, moves)
    for rollouts in (None, 3):
        for root in ("puct", "gumbel"):
            settings = SearchSettings(num_simulations=600, discount=1.0, players=2, root=root)  # type: ignore[arg-type]
            model = RulesModel(games, 600, rollouts=rollouts)
            result = search(model, model.roots(), settings, rng(), noise=False)
            chosen = choose_actions(result, 0.0, rng()).tolist()
            for action, (moves, good) in zip(chosen, positions.items(), strict=True):
                assert action in good, (moves, action, rollouts, root)


@pytest.mark.parametrize("rollouts", [None, 1])
def test_the_rules_as_the_model_keep_the_value_of_any_position_in_the_middle_of_a_game(rollouts: int | None) -> None:
    games, anyone = BoardGames("tic_tac_toe", 400), random_player(400, seed=1)
    for _ in range(4):
        games.step(anyone(games))
    model = RulesModel(games, 400, rollouts=rollouts)
    settings = SearchSettings(num_simulations=400, discount=1.0, players=2)
    result = search(model, model.roots(), settings, rng(), noise=False, active=~games.ended)
    chosen = choose_actions(result, 0.0, rng())
    values = np.empty(9, np.int64)
    for index in np.flatnonzero(~games.ended):
        mover = games.to_play[index]
        values_of(games.stones[index, mover], games.stones[index, 1 - mover], 9, *games.game.numbers, values)
        assert np.sign(values[chosen[index]]) == np.sign(values.max()), games.text(index)


def test_a_searching_player_does_not_lose_to_the_perfect_one_when_it_begins() -> None:
    def searching(games: BoardGames, asked: np.ndarray) -> np.ndarray:
        model = RulesModel(games, 400, rollouts=1)
        settings = SearchSettings(num_simulations=400, discount=1.0, players=2)
        result = search(model, model.roots(), settings, rng(), noise=False, active=asked)
        return choose_actions(result, 0.0, rng())

    results = play_match("tic_tac_toe", searching, perfect_player(12, seed=1), 12)
    assert not results[:6].any()
