"""Search from B roots at once, and act on what came out.

One simulation, in all trees together:

        (0)                 select: from the root along the best score to an action never tried
       /   \\
     (1)   (3)              the model, in one batch: reward, value, policy of what follows it
     / \\                    expand: a new node with its prior
   (2) [4] <── new          backup: G = r + discount * G along the way up; the root's visits say what is good

score(a) = P(a) (log((N + c_base + 1) / c_base) + c_init) sqrt(N) / (1 + n_a) + norm(Q(a))

N are the visits below the node. At a node where nothing has been tried yet all scores would be the same: there the
prior decides (N counts as 1). Q(a) = r_a + discount V_a if tried; otherwise the mean of the tried siblings' Q and the
parent's own such mean (the root has no parent). norm puts it between the lowest and the highest Q of this tree. What is
equal to the last bit is decided by lot.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from headway.zero import search_kernels as kernels
from headway.zero.search_interface import Leaves, SearchModel, SearchResult, SearchSettings
from headway.zero.search_tree import Tree


def search(
    model: SearchModel,
    roots: Leaves,
    settings: SearchSettings,
    rng: np.random.Generator,
    noise: bool = True,
    prior: np.ndarray | None = None,
    prior_weight: float | np.ndarray = 0.0,
    tree: Tree | None = None,
    active: np.ndarray | None = None,
) -> SearchResult:
    """Search from `roots`, in as many calls of the model as there are simulations.

    Draws from `rng`, in this order: a seed per root, from which that root's ties are broken, then, with `noise`, the
    noise [B, A]. The same generator state gives the same trees; what the other roots are changes nothing but that.

    :param roots: what the model says about the roots; its rewards are not read
    :param noise: explore: Dirichlet noise in the prior, or the noise of a Gumbel root. False to evaluate
    :param prior: [B, A] what somebody else thinks of the root's actions, as probabilities (not logarithms); a row of
        zeros leaves its root alone
    :param prior_weight: its share in the root's prior, 0..1, for all roots or [B] for each
    :param tree: memory to use again; without it, some is allocated
    :param active: [B] bool, which roots to search; None: all. A root that is searched must have a legal action
    """
    num_roots, num_actions = np.shape(roots.logits)
    if tree is None:
        tree = Tree(num_roots, settings.num_simulations, num_actions)
    tree = tree.for_search(num_roots, settings.num_simulations, num_actions)
    explore, knobs, halving = _tables(settings, num_actions)
    parents, actions = tree.parents, tree.actions
    trees = tree.edges, tree.nodes, tree.roots, tree.scores, parents, actions, tree.answers

    _plant(roots, tree, settings, rng, noise, prior, prior_weight, active)
    kernels.advance(*trees, tree.everything, explore, knobs, halving, -1, kernels.ONE_PLAYER)
    for simulation in range(settings.num_simulations):
        leaves = model.expand(simulation, parents, actions)
        if simulation == 0:
            _refuse_other_shapes(leaves, num_roots, num_actions)
        legal, turns = _read(leaves, tree, settings.players)
        wrong = kernels.advance(*trees, legal, explore, knobs, halving, simulation, turns)
        if wrong:
            raise ValueError(_said(wrong, f"simulation {simulation}"))
    return _result(tree, settings)


# -- the root ---------------------------------------------------------------------------------------


def _plant(
    roots: Leaves,
    tree: Tree,
    settings: SearchSettings,
    rng: np.random.Generator,
    noise: bool,
    prior: np.ndarray | None,
    prior_weight: float | np.ndarray,
    active: np.ndarray | None,
) -> None:
    _refuse_other_shapes(roots, *np.shape(roots.logits))
    legal, turns = _read(roots, tree, settings.players)
    if turns != kernels.AS_TOLD:
        tree.to_play[:] = 0
    tree.active[:] = True if active is None else active
    if prior is not None and np.shape(prior) != tree.prior.shape:
        raise ValueError(f"prior must have shape {list(tree.prior.shape)}, received {list(np.shape(prior))}")
    tree.prior[:] = 0 if prior is None else prior
    if prior is not None:
        tree.prior_weight[:] = prior_weight
        if not (tree.prior_weight.min() >= 0 and tree.prior_weight.max() <= 1):
            raise ValueError(f"prior_weight must lie in 0..1, received {prior_weight}")
    rng.random(out=tree.seeds)
    is_gumbel = settings.root == "gumbel"
    if is_gumbel or not noise:
        tree.noise[:] = 0
    else:
        rng.standard_gamma(settings.root_dirichlet_alpha, out=tree.noise)
    mixing = tree.prior, tree.prior_weight, tree.noise, settings.root_noise_weight, tree.seeds.view(np.uint64)
    wrong = kernels.plant(tree.edges, tree.nodes, tree.roots, tree.answers, legal, tree.active, *mixing)
    if wrong:
        raise ValueError(_said(wrong, "the roots"))
    if is_gumbel:
        if noise:
            tree.noise[:] = rng.gumbel(scale=settings.gumbel_scale, size=tree.noise.shape)
        kernels.hang_gumbels(tree.edges, tree.nodes, tree.roots, tree.noise, tree.scores)


def _said(code: int, where: str) -> str:
    root, wrong = divmod(code, kernels.WRONGS)
    if wrong == kernels.NO_LEGAL_ACTION:
        return f"root {root} has no legal action; leave a game that is over out of the search: active[{root}] = False"
    if wrong == kernels.NOT_A_PRIOR:
        return f"prior of root {root} must be probabilities, finite and not negative (are these logarithms?)"
    return f"the model's answer for root {root} in {where} is not finite"


# -- what the model says ----------------------------------------------------------------------------


def _refuse_other_shapes(leaves: Leaves, num_roots: int, num_actions: int) -> None:
    each, table = (num_roots,), (num_roots, num_actions)
    for name, value, wanted in zip(Leaves._fields, leaves, (each, each, table, table, each), strict=True):
        if value is not None and np.shape(value) != wanted:
            raise ValueError(f"{name} must have shape {list(wanted)}, received {list(np.shape(value))}")


def _read(leaves: Leaves, tree: Tree, players: int) -> tuple[np.ndarray, int]:
    """Copy the answer into the tree's arrays, which the kernels are compiled for; what is legal, and who is to play."""
    rewards, values, logits, legal, to_play = leaves
    tree.rewards[:], tree.values[:], tree.logits[:] = rewards, values, logits
    allowed = tree.everything
    if legal is not None:
        allowed = tree.legal
        allowed[:] = legal
    if players == 1:
        return allowed, kernels.ONE_PLAYER
    if to_play is None:
        return allowed, kernels.TAKING_TURNS
    tree.to_play[:] = to_play
    return allowed, kernels.AS_TOLD


# -- tables -----------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _tables(settings: SearchSettings, num_actions: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `advance` needs to know besides the trees: explore, knobs, halving."""
    considered = min(settings.max_considered_actions, num_actions) if settings.root == "gumbel" else 0
    knobs = settings.discount, settings.value_norm_floor, settings.gumbel_c_visit, settings.gumbel_c_scale
    return (
        explore_by_visits(settings.num_simulations, settings.pb_c_base, settings.pb_c_init),
        np.array(knobs, np.float32),
        halving_by_considered(considered, settings.num_simulations),
    )


def explore_by_visits(num_simulations: int, base: float, init: float) -> np.ndarray:
    """The weight of a prior at a node, by the visits N below it: [S + 1] float32."""
    below = np.arange(num_simulations + 1, dtype=np.float64)
    weight = (np.log((below + base + 1) / base) + init) * np.sqrt(np.maximum(below, 1))
    return weight.astype(np.float32)


def halving_by_considered(considered: int, num_simulations: int) -> np.ndarray:
    """Sequential halving: how many visits the action tried next has had, by how many are considered and by simulation:
    [considered + 1, S] int32. (Whoever has had that many is still in the running; the best of them is next.)"""
    table = np.zeros((considered + 1, num_simulations if considered else 0), np.int32)
    for row in range(1, considered + 1):
        rounds = max(1, math.ceil(math.log2(row)))
        running, had = row, 0
        plan: list[int] = []
        while len(plan) < num_simulations:
            for _ in range(max(1, num_simulations // (rounds * running))):
                plan += [had] * running
                had += 1
            running = max(min(2, row), running // 2)
        table[row] = plan[:num_simulations]
    return table


# -- the result -------------------------------------------------------------------------------------


def _result(tree: Tree, settings: SearchSettings) -> SearchResult:
    num, num_nodes = np.float32(settings.num_simulations), settings.num_simulations + 1
    edges, nodes, roots = tree.edges[:, 0], tree.nodes[:, :num_nodes], tree.roots
    visits = edges["visits"].copy()
    policies, choices = visits.astype(np.float32) / num, None
    if settings.root == "gumbel":
        choices = np.empty(len(edges), np.int32)
        _, knobs, _ = _tables(settings, tree.edges.shape[2])
        kernels.improve(tree.edges, tree.nodes, roots, tree.scores, knobs, policies, choices)
    values = nodes["value_sum"][:, 0] / nodes["visits"][:, 0].astype(np.float32)
    return SearchResult(
        visits=visits,
        policies=policies,
        values=values * roots["is_active"].astype(np.float32),
        q=edges["q"].copy(),
        parents=nodes["parent"].copy(),
        actions=nodes["action"].copy(),
        mean_depths=roots["depth_sum"].astype(np.float32) / num,
        max_depths=roots["depth_max"].copy(),
        choices=choices,
    )


def choose_actions(
    result: SearchResult,
    temperature: float | np.ndarray,
    rng: np.random.Generator,
    legal: np.ndarray | None = None,
) -> np.ndarray:
    """One action per root: [B] int32; 0 at roots that were not searched.

    A Gumbel root has chosen already. Otherwise actions are drawn in proportion to visits^(1 / temperature); 0 takes the
    most visited, of equal ones by lot. One draw from `rng` per root, whatever the temperature.

    :param temperature: not negative; for all roots, or [B] for each
    :param legal: [B, A] bool, to draw from no other actions than these
    """
    if result.choices is not None:
        return result.choices.copy()
    visits = result.visits if legal is None else result.visits * legal
    warm = np.broadcast_to(np.asarray(temperature, np.float64), (len(visits),))[:, None]
    if not (warm >= 0).all():
        raise ValueError(f"temperature must not be negative, received {temperature}")
    most = visits.max(axis=1, keepdims=True)
    share = visits / np.maximum(most, 1)
    with np.errstate(divide="ignore"):  # 0 ** inf and 1 ** inf are what is wanted of temperature 0
        weights = share ** (1 / warm)
    reached = weights.cumsum(axis=1)
    mass = rng.random(len(visits))[:, None] * reached[:, -1:]
    return ((reached <= mass).sum(axis=1) * (most[:, 0] > 0)).astype(np.int32)
