"""The search of `headway.zero.search_package`, slow and obvious: one object per node, one root after another,
recursion.

It reads its generator in the same order and computes in float32 in the same order, so on any model its visits are the
same and its values are the same to the last bit. That is what it is for; it is several hundred times as slow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from headway.zero.search_interface import Leaves, SearchModel, SearchResult, SearchSettings

F = np.float32
ZERO = F(0)
_WORD = 2**64 - 1


@dataclass(slots=True, eq=False)
class Node:
    number: int
    evaluation: np.float32
    priors: dict[int, np.float32]  # of the legal actions
    player: int
    parent: Node | None = None
    action: int = -1
    reward: np.float32 = ZERO
    discount: np.float32 = ZERO
    value_sum: np.float32 = ZERO
    visits: int = 0
    children: dict[int, Node] = field(default_factory=dict)

    @property
    def num_below(self) -> int:
        return self.visits - 1

    @property
    def q(self) -> np.float32:
        """Of the step into this node, seen by the one who makes it."""
        return self.reward + self.discount * (self.value_sum / F(self.visits))


class Lots:
    """splitmix64, as in the trees."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def below(self, n: int) -> int:
        self._state = z = (self._state + 0x9E3779B97F4A7C15) & _WORD
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
        z ^= z >> 31
        return ((z >> 32) * n) >> 32

    def best(self, scores: dict[int, np.float32]) -> int:
        """The action with the highest score; of k equal ones the last takes over with a chance of 1 / k."""
        chosen, num_best, best = -1, 0, F(-math.inf)
        for action, score in scores.items():
            if score > best:
                chosen, num_best, best = action, 1, score
            elif score == best:
                num_best += 1
                if self.below(num_best) == 0:
                    chosen = action
        return chosen


class SlowTree:
    def __init__(
        self,
        settings: SearchSettings,
        seed: int,
        value: np.float32,
        priors: dict[int, np.float32],
        player: int,
        gumbels: dict[int, float] | None,
    ) -> None:
        self.settings, self.lots = settings, Lots(seed)
        self.root = Node(0, value, priors, player, value_sum=value, visits=1)
        self.low, self.high = F(math.inf), F(-math.inf)
        self.scores: dict[int, np.float32] | None = None
        if gumbels is not None:
            self.scores = {a: F(gumbels[a] + math.log(max(float(p), 1e-30))) for a, p in priors.items()}
            self.low = self.high = value
        self.asked: list[tuple[int, int]] = []
        self.depths: list[int] = []

    # -- select

    def select(self, simulation: int) -> tuple[Node, int]:
        """The node and the action to ask the model about."""
        parent, action, depth = self._descend(self.root, F(0), simulation, 0)
        self.asked.append((parent.number, action))
        self.depths.append(depth)
        return parent, action

    def _descend(self, node: Node, estimate: np.float32, simulation: int, depth: int) -> tuple[Node, int, int]:
        if not node.priors:
            assert node.parent is not None
            return node.parent, node.action, depth
        tried = [node.children[a].q for a in sorted(node.children)]
        known = tried if node is self.root else [estimate, *tried]
        fill = _sum(known) / F(len(known)) if known else F(0)
        if node is self.root and self.scores is not None:
            action = self._halve(self._wanted(simulation))
        else:
            action = self.lots.best({a: self._score(node, a, fill) for a in node.priors})
        child = node.children.get(action)
        if child is None:
            return node, action, depth + 1
        return self._descend(child, fill if child.player == node.player else -fill, simulation, depth + 1)

    def _score(self, node: Node, action: int, fill: np.float32) -> np.float32:
        base, init = self.settings.pb_c_base, self.settings.pb_c_init
        num_below = node.num_below
        exploring = F((np.log((num_below + base + 1) / base) + init) * np.sqrt(max(num_below, 1)))
        child = node.children.get(action)
        visits, q = (0, fill) if child is None else (child.visits, child.q)
        return node.priors[action] * exploring / F(1 + visits) + self._norm(q)

    def _norm(self, q: np.float32) -> np.float32:
        if self.high < self.low:
            return F(0)
        floor = F(self.settings.value_norm_floor)
        return min(max((q - self.low) / max(self.high - self.low, floor), F(0)), F(1))

    # -- expand and backup

    def expand_and_backup(
        self,
        parent: Node,
        action: int,
        number: int,
        reward: np.float32,
        value: np.float32,
        priors: dict[int, np.float32],
        player: int,
    ) -> None:
        node = parent.children.get(action)
        if node is None:
            discount = F(self.settings.discount) if player == parent.player else -F(self.settings.discount)
            node = Node(number, value, priors, player, parent, action, reward, discount)
            parent.children[action] = node
        self._backup(node, node.evaluation)

    def _backup(self, node: Node, gained: np.float32) -> None:
        node.value_sum += gained
        node.visits += 1
        if node.parent is not None:
            self.low, self.high = min(self.low, node.q), max(self.high, node.q)
            self._backup(node.parent, node.reward + node.discount * gained)

    # -- the Gumbel root

    def _wanted(self, simulation: int) -> int:
        """How many visits the action tried in this simulation has had: played through from the beginning."""
        num = self.settings.num_simulations
        considered = min(self.settings.max_considered_actions, len(self.root.priors))
        rounds = max(1, math.ceil(math.log2(considered)))
        visits, running, tried = [0] * considered, considered, 0
        while True:
            for _ in range(max(1, num // (rounds * running))):
                for place in range(running):
                    if tried == simulation:
                        return visits[place]
                    visits[place] += 1
                    tried += 1
            running = 1 if considered == 1 else max(2, running // 2)

    def _completed(self) -> tuple[dict[int, np.float32], np.float32]:
        """The value of every action, tried or not; and how much values weigh."""
        root, settings = self.root, self.settings
        mixed = root.evaluation
        tried = sorted(root.children)
        likely = _sum([root.priors[a] for a in tried])
        if likely > 0:
            mean = _sum([root.priors[a] * root.children[a].q for a in tried]) / likely
            mixed = (root.evaluation + F(root.num_below) * mean) / (F(root.num_below) + F(1))
        q = {a: root.children[a].q if a in root.children else mixed for a in root.priors}
        most = max((child.visits for child in root.children.values()), default=0)
        return q, (F(settings.gumbel_c_visit) + F(most)) * F(settings.gumbel_c_scale)

    def _halve(self, wanted: int) -> int:
        assert self.scores is not None
        q, sharpness = self._completed()
        return self.lots.best(
            {
                a: self.scores[a] + sharpness * self._norm(q[a])
                for a in self.root.priors
                if (self.root.children[a].visits if a in self.root.children else 0) == wanted
            }
        )

    def improved(self) -> tuple[dict[int, float], int]:
        """The policy after the search, and the action that won."""
        q, sharpness = self._completed()
        most = max(child.visits for child in self.root.children.values())
        choice = self._halve(most)
        logits = {
            a: F(math.log(max(float(p), 1e-30))) + sharpness * self._norm(q[a]) for a, p in self.root.priors.items()
        }
        return _softmax(logits), choice


def _sum(values: list[np.float32]) -> np.float32:
    """From the left, in float32."""
    total = F(0)
    for value in values:
        total = total + value
    return total


def _softmax(logits: dict[int, np.float32]) -> dict[int, float]:
    highest = max(map(float, logits.values()), default=0.0)
    powers = {a: float(F(math.exp(float(logit) - highest))) for a, logit in logits.items()}
    total = 0.0  # not sum(), which is more exact than a loop from Python 3.12 on
    for power in powers.values():
        total += power
    return {a: power / total for a, power in powers.items()}


def _priors(leaves: Leaves, b: int) -> dict[int, np.float32]:
    num_actions = np.shape(leaves.logits)[1]
    legal = range(num_actions) if leaves.legal is None else np.flatnonzero(leaves.legal[b]).tolist()
    return {a: F(p) for a, p in _softmax({a: leaves.logits[b, a] for a in legal}).items()}


def _mix(priors: dict[int, np.float32], other: np.ndarray, weight: float) -> dict[int, float]:
    total = 0.0
    for a in priors:
        total += float(other[a])
    if total <= 0:
        return {a: float(p) for a, p in priors.items()}
    return {a: (1.0 - weight) * float(p) + weight * (float(other[a]) / total) for a, p in priors.items()}


def slow_search(
    model: SearchModel,
    roots: Leaves,
    settings: SearchSettings,
    rng: np.random.Generator,
    noise: bool = True,
    prior: np.ndarray | None = None,
    prior_weight: float | np.ndarray = 0.0,
    active: np.ndarray | None = None,
) -> SearchResult:
    """`headway.zero.search_package.search`, without its checks."""
    num_roots, num_actions = np.shape(roots.logits)
    is_gumbel = settings.root == "gumbel"
    shape = (num_roots, num_actions)
    seeds: list[int] = np.asarray(rng.random(num_roots)).view(np.uint64).tolist()  # their bits
    draws = np.zeros(shape)
    if noise:
        scale, alpha = settings.gumbel_scale, settings.root_dirichlet_alpha
        draws = rng.gumbel(scale=scale, size=shape) if is_gumbel else rng.standard_gamma(alpha, shape)
    known = np.zeros(shape, F) if prior is None else np.asarray(prior, F)
    weights = np.broadcast_to(np.asarray(prior_weight, F), (num_roots,))
    trees: list[SlowTree | None] = []
    idle = [min(_priors(roots, b), default=0) for b in range(num_roots)]  # what rows ask that are not searched
    for b in range(num_roots):
        if active is not None and not active[b]:
            trees.append(None)
            continue
        mixed = _mix(_priors(roots, b), known[b], float(weights[b]))
        if not is_gumbel:
            mixed = _mix(mixed, draws[b], settings.root_noise_weight)  # type: ignore[arg-type]
        priors = {a: F(p) for a, p in mixed.items()}
        player = 0 if roots.to_play is None else int(roots.to_play[b])
        gumbels = {a: draws[b, a] for a in priors} if is_gumbel else None
        trees.append(SlowTree(settings, seeds[b], F(roots.values[b]), priors, player, gumbels))

    for simulation in range(settings.num_simulations):
        chosen = [None if tree is None else tree.select(simulation) for tree in trees]
        parents = np.array([0 if pair is None else pair[0].number for pair in chosen], np.int32)
        actions = np.array([idle[b] if pair is None else pair[1] for b, pair in enumerate(chosen)], np.int32)
        leaves = model.expand(simulation, parents, actions)
        for b, (tree, pair) in enumerate(zip(trees, chosen, strict=True)):
            if tree is None or pair is None:
                continue
            parent, action = pair
            player = parent.player
            if settings.players == 2:
                player = 1 - parent.player if leaves.to_play is None else int(leaves.to_play[b])
            answer = F(leaves.rewards[b]), F(leaves.values[b]), _priors(leaves, b), player
            tree.expand_and_backup(parent, action, simulation + 1, *answer)
    return _result(trees, idle, settings, num_actions)


def _result(trees: list[SlowTree | None], idle: list[int], settings: SearchSettings, num_actions: int) -> SearchResult:
    num_roots, num = len(trees), settings.num_simulations
    result = SearchResult(
        visits=np.zeros((num_roots, num_actions), np.int32),
        policies=np.zeros((num_roots, num_actions), F),
        values=np.zeros(num_roots, F),
        q=np.zeros((num_roots, num_actions), F),
        parents=np.zeros((num_roots, num + 1), np.int32),
        actions=np.zeros((num_roots, num + 1), np.int32),
        mean_depths=np.zeros(num_roots, F),
        max_depths=np.zeros(num_roots, np.int32),
        choices=np.zeros(num_roots, np.int32) if settings.root == "gumbel" else None,
    )
    result.parents[:, 0] = result.actions[:, 0] = -1
    for b, tree in enumerate(trees):
        if tree is None:
            result.actions[b, 1:] = idle[b]
            continue
        root = tree.root
        for a, child in root.children.items():
            result.visits[b, a], result.q[b, a] = child.visits, child.q
        result.values[b] = root.value_sum / F(root.visits)
        result.parents[b, 1:], result.actions[b, 1:] = zip(*tree.asked, strict=True)
        result.mean_depths[b], result.max_depths[b] = F(sum(tree.depths)) / F(num), max(tree.depths)
        result.policies[b] = result.visits[b].astype(F) / F(num)
        if result.choices is not None:
            policy, result.choices[b] = tree.improved()
            for a, p in policy.items():
                result.policies[b, a] = p
    return result
