"""The memory of B trees, allocated once and searched again and again.

    edges [B, S + 1, A]   prior, q, visits, child           what choosing reads: one line of 16 bytes per action
    nodes [B, S + 1]      value_sum, visits, reward, ...    what backing up walks along, from the leaf to the root
    roots [B]             low, high, state of the draws     one per tree

Fields of one edge lie side by side, so that choosing among four actions reads one cache line; `tree.edges["q"]` is the
plain array [B, S + 1, A]. Nothing is cleared between searches: a node's row is written when the node is made.

Invariants after every simulation, for a node and the edge that leads to it: edge.visits == node.visits,
edge.q == node.reward + node.discount * node.value_sum / node.visits, and, but at the end of a game, a node's visits are
one (its own evaluation) plus those of its edges.
"""

from __future__ import annotations

import numpy as np

MAX_ACTIONS = 32767
EDGE = np.dtype(
    [
        ("prior", np.float32),  # -1 where the action is illegal
        ("q", np.float32),  # seen by the player who moves here; only where visited
        ("visits", np.int32),
        ("child", np.int32),  # -1: not made yet
    ]
)
NODE = np.dtype(
    [
        ("value_sum", np.float32),
        ("visits", np.int32),
        ("reward", np.float32),  # of the step into this node
        ("discount", np.float32),  # of that step: negative where the player changes
        ("evaluation", np.float32),  # the model's value, the first of those in the sum
        ("parent", np.int32),
        ("action", np.int32),
        ("player", np.int16),
        ("num_legal", np.int16),  # 0: the end of a game
    ]
)
ROOT = np.dtype(
    [
        ("draws", np.uint64),  # state of the generator that breaks ties
        ("low", np.float32),  # of all values q of this tree so far
        ("high", np.float32),  # below `low` as long as there are none
        ("depth_sum", np.int32),
        ("depth_max", np.int32),
        ("is_active", np.int32),
        ("to_play", np.int32),  # at the new node, as the model says
        ("first_legal", np.int32),  # what a root that is not searched asks about
    ]
)


class Tree:
    """Room for `num_roots` trees of `num_simulations` new nodes each; smaller searches fit too.

    Not for two searches at the same time: every thread has its own.
    """

    __slots__ = (
        "actions", "active", "answers", "edges", "everything", "legal", "logits", "nodes", "noise", "parents", "prior",
        "prior_weight", "rewards", "roots", "scores", "seeds", "to_play", "values",
    )  # fmt: skip

    def __init__(self, num_roots: int, num_simulations: int, num_actions: int) -> None:
        for name, value in (("roots", num_roots), ("simulations", num_simulations), ("actions", num_actions)):
            if value < 1:
                raise ValueError(f"a tree needs at least one of its {name}, received {value!r}")
        if num_actions > MAX_ACTIONS:
            raise ValueError(f"a tree takes at most {MAX_ACTIONS} actions, received {num_actions}")
        each, table = (num_roots,), (num_roots, num_actions)
        self.edges = np.zeros((num_roots, num_simulations + 1, num_actions), EDGE)
        self.nodes = np.zeros((num_roots, num_simulations + 1), NODE)
        self.roots = np.zeros(each, ROOT)
        # What the search asks in the simulation that is under way.
        self.parents, self.actions = np.zeros(each, np.int32), np.zeros(each, np.int32)
        # What the model answered, in arrays of one kind whatever kind the model has: they are compiled for.
        self.answers = np.zeros((num_roots, 2 + num_actions), np.float32)
        self.rewards, self.values, self.logits = self.answers[:, 0], self.answers[:, 1], self.answers[:, 2:]
        self.to_play, self.legal = self.roots["to_play"], np.zeros(table, np.bool_)
        self.everything = np.ones(table, np.bool_)  # is legal, where the model does not say
        # Of the roots alone.
        self.active, self.seeds = np.zeros(each, np.bool_), np.zeros(each)  # uniform; their bits are the seeds
        self.prior, self.prior_weight = np.zeros(table, np.float32), np.zeros(each, np.float32)
        self.noise = np.zeros(table)
        self.scores = np.zeros(table, np.float32)  # Gumbel root: noise + log prior

    def for_search(self, num_roots: int, num_simulations: int, num_actions: int) -> Tree:
        """This memory, or the first `num_roots` of it."""
        roots, nodes, actions = self.edges.shape
        if num_roots > roots or num_simulations + 1 > nodes or num_actions != actions:
            raise ValueError(
                f"a tree for {roots} roots, {nodes - 1} simulations and {actions} actions cannot hold "
                f"{num_roots} roots, {num_simulations} simulations and {num_actions} actions"
            )
        if num_roots == roots:
            return self
        part = object.__new__(Tree)
        for name in self.__slots__:
            setattr(part, name, getattr(self, name)[:num_roots])
        return part

    @property
    def num_bytes(self) -> int:
        arrays = (getattr(self, name) for name in self.__slots__)
        return sum(array.nbytes for array in arrays if array.base is None)
