"""The loops of a search, compiled. Each goes through all roots in one call, without the GIL.

    plant ──> advance: select ──> [ model ──> advance: expand and backup, select ] x S ──> improve (Gumbel root only)

All arithmetic that decides anything is float32 in a fixed order, priors apart (float64, rounded once), so that the slow
search in `headway.testing` can make the same decisions bit for bit. Nothing is checked here but what the model says.

Trap: numba makes float32 times int64 a float64. Counts are turned into float32 by hand.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

FINE, NO_LEGAL_ACTION, NOT_FINITE, NOT_A_PRIOR, WRONGS = 0, 1, 2, 3, 4
ONE_PLAYER, TAKING_TURNS, AS_TOLD = 0, 1, 2  # who is to play at a new node

_ZERO, _ONE, _HIGHEST = np.float32(0), np.float32(1), np.float32(math.inf)
_LEAST_PRIOR = 1e-30  # its logarithm is finite
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_U27, _U30, _U31, _U32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


def _kernel(function):
    return njit(cache=True, nogil=True, error_model="numpy")(function)


@_kernel
def _below(root, n):
    """A number in 0..n-1 from the root's own generator (splitmix64)."""
    root.draws += _GOLDEN
    z = root.draws
    z = (z ^ (z >> _U30)) * _MIX_1
    z = (z ^ (z >> _U27)) * _MIX_2
    z ^= z >> _U31
    return np.int64(((z >> _U32) * np.uint64(n)) >> _U32)


@_kernel
def _open(edges, node, logits, legal):
    """Give a new node its edges: edges [A], the prior a softmax over the legal logits [A]. Whether that is a number."""
    highest, num_legal = -math.inf, 0
    for a in range(edges.size):
        edges[a].q, edges[a].visits, edges[a].child = _ZERO, 0, -1
        if legal[a]:
            num_legal += 1
            highest = max(highest, float(logits[a]))
    node.num_legal = num_legal
    total = 0.0
    for a in range(edges.size):
        edges[a].prior = math.exp(float(logits[a]) - highest) if legal[a] else 0.0
        total += edges[a].prior
    for a in range(edges.size):
        edges[a].prior = edges[a].prior / total if legal[a] else -1.0
    return num_legal == 0 or math.isfinite(total)


@_kernel
def plant(edges, nodes, roots, answers, legal, active, prior, prior_weight, noise, noise_weight, seeds):
    """Make the roots; FINE, or what is wrong and where.

    The prior is mixed first with `prior` [B, A], any non-negative numbers, by `prior_weight` [B], then with `noise`
    [B, A], likewise, by `noise_weight`; each is taken over the legal actions, and left out of a row where it is zero.
    """
    num_actions = edges.shape[2]
    for b in range(seeds.size):
        root, node, value = roots[b], nodes[b, 0], answers[b, 1]
        root.draws, root.low, root.high = seeds[b], _HIGHEST, -_HIGHEST
        root.depth_sum, root.depth_max, root.is_active = 0, 0, active[b]
        node.value_sum, node.visits, node.evaluation, node.player = value, 1, value, root.to_play
        node.reward, node.discount, node.parent, node.action = _ZERO, _ZERO, -1, -1
        fine = _open(edges[b, 0], node, answers[b, 2:], legal[b])
        root.first_legal = 0
        for a in range(num_actions - 1, -1, -1):
            if legal[b, a]:
                root.first_legal = a
        if not active[b]:
            continue
        if node.num_legal == 0:
            return NO_LEGAL_ACTION + b * WRONGS
        if not (fine and math.isfinite(value)):
            return NOT_FINITE + b * WRONGS
        known, drawn = 0.0, 0.0
        for a in range(num_actions):
            if not (prior[b, a] >= 0.0 and math.isfinite(prior[b, a])):
                return NOT_A_PRIOR + b * WRONGS
            if legal[b, a]:
                known += prior[b, a]
                drawn += noise[b, a]
        for a in range(num_actions):
            if legal[b, a]:
                p = float(edges[b, 0, a].prior)
                if known > 0.0:
                    p = (1.0 - prior_weight[b]) * p + prior_weight[b] * (prior[b, a] / known)
                if drawn > 0.0:
                    p = (1.0 - noise_weight) * p + noise_weight * (noise[b, a] / drawn)
                edges[b, 0, a].prior = p
    return FINE


@_kernel
def hang_gumbels(edges, nodes, roots, gumbels, scores):
    """Noise and log prior of the root's actions, which a Gumbel root adds its values to; gumbels [B, A] float64. The
    root's own value belongs to the range of values from the beginning: the completed ones lie around it."""
    for b in range(roots.size):
        roots[b].low = roots[b].high = nodes[b, 0].evaluation
        for a in range(edges.shape[2]):
            scores[b, a] = gumbels[b, a] + math.log(max(float(edges[b, 0, a].prior), _LEAST_PRIOR))


@_kernel
def _norm(q, low, high, floor):
    """q between the lowest and the highest value of the tree, as 0..1; 0 if there is none yet."""
    if high < low:
        return _ZERO
    return min(max((q - low) / max(high - low, floor), _ZERO), _ONE)


@_kernel
def _puct(edges, root, num_below, fill, explore, floor):
    """The best action by prior, visits and value. `fill` stands for the value of actions never tried."""
    low, high = root.low, root.high
    worth = _norm(fill, low, high, floor)
    exploring = explore[num_below]
    best, chosen, num_best = -_HIGHEST, -1, 0
    for a in range(edges.size):
        edge = edges[a]
        if edge.prior < _ZERO:
            continue
        score = edge.prior * exploring / np.float32(1 + edge.visits)
        score += _norm(edge.q, low, high, floor) if edge.visits else worth
        if score > best:
            best, chosen, num_best = score, a, 1
        elif score == best:  # by lot: of k equal ones so far the last takes over with a chance of 1 / k
            num_best += 1
            if _below(root, num_best) == 0:
                chosen = a
    return chosen


@_kernel
def _completed(edges, node):
    """What actions never tried are worth at a Gumbel root: the model's value, mixed with those of the tried ones by how
    likely they were; and the most visits any action has."""
    likely, total, most = _ZERO, _ZERO, 0
    for a in range(edges.size):
        if edges[a].visits:
            likely += edges[a].prior
            total += edges[a].prior * edges[a].q
            most = max(most, edges[a].visits)
    num_below = np.float32(node.visits - 1)
    if likely <= _ZERO:
        return node.evaluation, most
    return (node.evaluation + num_below * (total / likely)) / (num_below + _ONE), most


@_kernel
def _halve(edges, node, root, scores, wanted, floor, c_visit, c_scale):
    """The best of those actions that have had `wanted` visits, by noise, prior and completed value; scores [A]."""
    mixed, most = _completed(edges, node)
    sharpness = (c_visit + np.float32(most)) * c_scale
    best, chosen, num_best = -_HIGHEST, -1, 0
    for a in range(edges.size):
        if edges[a].prior < _ZERO or edges[a].visits != wanted:
            continue
        q = edges[a].q if edges[a].visits else mixed
        score = scores[a] + sharpness * _norm(q, root.low, root.high, floor)
        if score > best:
            best, chosen, num_best = score, a, 1
        elif score == best:
            num_best += 1
            if _below(root, num_best) == 0:
                chosen = a
    return chosen


@_kernel
def _select(edges, nodes, roots, scores, parents, actions, explore, knobs, halving, simulation):
    """Walk down every tree to an edge without a child; where it hangs goes into parents [B] and actions [B]."""
    floor, c_visit, c_scale = knobs[1], knobs[2], knobs[3]
    for b in range(parents.size):
        root = roots[b]
        at, action, depth, fill = 0, root.first_legal, 0, _ZERO
        while root.is_active:
            node = nodes[b, at]
            if node.num_legal == 0:  # the end of a game: come again
                action, at = node.action, node.parent
                break
            here = edges[b, at]
            if at == 0 and halving.shape[0] > 1:
                wanted = halving[min(halving.shape[0] - 1, node.num_legal), simulation]
                action = _halve(here, node, root, scores[b], wanted, floor, c_visit, c_scale)
            total, num_tried = (fill, 1) if at else (_ZERO, 0)
            for a in range(here.size):
                if here[a].visits:
                    total += here[a].q
                    num_tried += 1
            if num_tried:
                fill = total / np.float32(num_tried)
            if at or halving.shape[0] == 1:
                action = _puct(here, root, node.visits - 1, fill, explore, floor)
            depth += 1
            child = here[action].child
            if child < 0:
                break
            if nodes[b, child].player != node.player:
                fill = -fill
            at = child
        parents[b], actions[b] = at, action
        root.depth_sum += depth
        root.depth_max = max(root.depth_max, depth)


@_kernel
def _expand_and_backup(edges, nodes, roots, parents, actions, answers, legal, discount, simulation, turns):
    """Hang what the model said at the edges that were selected, and carry its values up to the roots.

    FINE, or what is wrong and where. A selected edge that has a child leads to the end of a game: its value counts once
    more, and the answer of the model is not read.
    """
    for b in range(parents.size):
        root = roots[b]
        made = nodes[b, simulation + 1]
        made.parent, made.action = parents[b], actions[b]  # as asked, whether it hangs there or not
        if not root.is_active:
            continue
        edge = edges[b, parents[b], actions[b]]
        at = edge.child
        if at < 0:
            at = simulation + 1
            reward, value = answers[b, 0], answers[b, 1]
            fine = _open(edges[b, at], made, answers[b, 2:], legal[b])
            if not (fine and math.isfinite(value) and math.isfinite(reward)):
                return NOT_FINITE + b * WRONGS
            edge.child = at
            above = nodes[b, parents[b]].player
            made.player = above if turns == ONE_PLAYER else 1 - above if turns == TAKING_TURNS else root.to_play
            made.reward, made.discount = reward, discount if made.player == above else -discount
            made.evaluation, made.value_sum, made.visits = value, _ZERO, 0
        gained = nodes[b, at].evaluation
        low, high = root.low, root.high
        while True:
            node = nodes[b, at]
            node.value_sum += gained
            node.visits += 1
            if at == 0:
                break
            q = node.reward + node.discount * (node.value_sum / np.float32(node.visits))
            edge = edges[b, node.parent, node.action]
            edge.q, edge.visits = q, node.visits
            low, high = min(low, q), max(high, q)
            gained = node.reward + node.discount * gained
            at = node.parent
        root.low, root.high = low, high
    return FINE


@_kernel
def advance(edges, nodes, roots, scores, parents, actions, answers, legal, explore, knobs, halving, simulation, turns):
    """Take in what the model said in a simulation (-1: nothing yet), then select for the next, if there is one.

    One call for both, because handing twelve arrays over takes as long as a simulation of a few roots.

    :param answers: [B, 2 + A] float32: reward, value, logits
    :param explore: [S + 1] float32, the weight of a prior at a node by the visits below it
    :param knobs: discount, floor, c_visit, c_scale as float32
    :param halving: [M + 1, S] int32, for a Gumbel root: how many visits the next action has had, by the number of
        actions in the running and by simulation; [1, 0] for PUCT
    :return: FINE, or what is wrong plus `WRONGS` times the root where it is
    """
    if simulation >= 0:
        wrong = _expand_and_backup(edges, nodes, roots, parents, actions, answers, legal, knobs[0], simulation, turns)
        if wrong:
            return wrong
    if simulation + 2 < explore.size:
        _select(edges, nodes, roots, scores, parents, actions, explore, knobs, halving, simulation + 1)
    return FINE


@_kernel
def improve(edges, nodes, roots, scores, knobs, policies, choices):
    """What a Gumbel root came to: the improved policy [B, A] float32, and the action [B] int32 that won."""
    num_actions = edges.shape[2]
    floor, c_visit, c_scale = knobs[1], knobs[2], knobs[3]
    for b in range(choices.size):
        root, node, here = roots[b], nodes[b, 0], edges[b, 0]
        if not root.is_active:
            policies[b], choices[b] = _ZERO, 0
            continue
        mixed, most = _completed(here, node)
        choices[b] = _halve(here, node, root, scores[b], most, floor, c_visit, c_scale)
        sharpness = (c_visit + np.float32(most)) * c_scale
        highest, total = -math.inf, 0.0
        for a in range(num_actions):
            policies[b, a] = -_HIGHEST
            if here[a].prior >= _ZERO:
                q = here[a].q if here[a].visits else mixed
                policies[b, a] = math.log(max(float(here[a].prior), _LEAST_PRIOR))
                policies[b, a] += sharpness * _norm(q, root.low, root.high, floor)
                highest = max(highest, float(policies[b, a]))
        for a in range(num_actions):
            policies[b, a] = math.exp(float(policies[b, a]) - highest)
            total += policies[b, a]
        for a in range(num_actions):
            policies[b, a] /= total
