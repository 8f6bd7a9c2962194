"""What a search among texts needs between a body's answers, compiled: which action a slot holds, and which to offer.

    parents, slots --take--> tokens --> body --> queries --> [product] --> offer --> slots of the new node

All functions are compiled on first use, release the GIL, and check nothing: their caller does.
"""

from __future__ import annotations

import numpy as np
from numba import njit

ZERO, ONE = np.float32(0), np.float32(1)

_compiled = njit(cache=True, nogil=True, error_model="numpy")


@_compiled
def take(parents, slots, root, known, offered, tokens):
    """tokens [B, D] of what is in `slots` [B] of nodes `parents` [B].

    root [B, K, D] are those of the candidates, known [M, D] those of the table, offered [S, B, K] which of them a node
    was offered.
    """
    for b in range(tokens.shape[0]):
        parent, slot = parents[b], slots[b]
        if parent == 0:
            for d in range(tokens.shape[1]):
                tokens[b, d] = root[b, slot, d]
        else:
            action = offered[parent, b, slot]
            for d in range(tokens.shape[1]):
                tokens[b, d] = known[action, d]


@_compiled
def offer(answers, is_used, least, offered, logits, legal):
    """The likeliest actions [B, K] of the table that can probably be done, best first, of equals the first.

    answers [B, 2, M]: how good, and how possible; least: the smallest answer of the second kind that will do. logits
    [B, K] are the logarithm of what both say together.
    """
    num_slots = logits.shape[1]
    for b in range(logits.shape[0]):
        found = 0
        for m in range(is_used.size):
            possible = answers[b, 1, m]
            if not is_used[m] or possible < least:
                continue
            score = answers[b, 0, m]
            if possible > ZERO:
                score -= np.log(ONE + np.exp(-possible))
            else:
                score += possible - np.log(ONE + np.exp(possible))
            if found == num_slots and not score > logits[b, num_slots - 1]:
                continue
            at = found if found < num_slots else num_slots - 1
            while at > 0 and score > logits[b, at - 1]:
                logits[b, at], offered[b, at] = logits[b, at - 1], offered[b, at - 1]
                at -= 1
            logits[b, at], offered[b, at] = score, m
            found = min(found + 1, num_slots)
        for k in range(num_slots):
            legal[b, k] = k < found
            if k >= found:
                logits[b, k], offered[b, k] = ZERO, 0
