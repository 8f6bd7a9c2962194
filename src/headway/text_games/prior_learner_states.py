"""What a batch of segments gives a prior to learn from, each distinct state read once.

    steps      s0        s1     s2        s3          the same prompt and candidates: s0 and s2
    state      0         1      0         2
    candidate  a b c     d e    b a c     f g         by their tokens, in any order

`SearchedStates` are for imitation: all candidates of a state, and how often the search visited each, on average over
its steps. `TakenActions` are for ppo: prompts with the actions that were executed there, and for each step which one.

A prompt with its actions is a group of replies (llm/train/replies.py), so both are read in trees like those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headway.llm.rollouts_group import Group
from headway.llm.train.ragged import Ragged
from headway.llm.train.replies import Replies
from headway.text_games.prior_learner_returns import step_advantages
from headway.text_games.segment import TextSegment


@dataclass(frozen=True, slots=True)
class TextStep:
    """Holds one step of a game as a language model saw it."""

    prompt: np.ndarray  # [P] tokens
    actions: tuple[np.ndarray, ...]  # tokens of the K slots; empty where no candidate stood
    taken: int  # the slot that was executed
    visits: np.ndarray  # [K]: the search's policy
    log_probs: np.ndarray  # of the executed action's tokens; empty: the prior was not asked
    spread: float
    advantage: float  # nan: not known


def text_steps(segments: Sequence[TextSegment], td_steps: int = 1, gamma: float = 1.0) -> Iterator[TextStep]:
    """Yields the steps that are experience and of which the text was kept, segment by segment."""
    for segment in segments:
        for name in ("policies", "values", "rewards"):
            if not np.isfinite(getattr(segment, name)).all():
                where = f"segment {segment.serial} of stream {segment.stream}"
                raise ValueError(f"{where} has {name} that are no finite numbers: nothing can be learned from it")
        slots = segment.num_slots
        prompts, actions = segment.prompt_tokens.rows(), segment.action_tokens.rows()
        logs, taken = segment.action_log_probs.rows(), segment.actions.reshape(-1)
        visits, spreads = segment.policies.reshape(-1, slots), segment.spreads.reshape(-1)
        advantages = step_advantages(segment, td_steps, gamma).reshape(-1)
        for step in np.flatnonzero(segment.valid.reshape(-1) & (segment.prompt_tokens.lengths > 0)):
            yield TextStep(
                prompts[step],
                tuple(actions[step * slots : (step + 1) * slots]),
                int(taken[step]),
                visits[step],
                logs[step],
                float(spreads[step]),
                float(advantages[step]),
            )


# -- imitation --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SearchedStates:
    """Holds G distinct states with S candidates in all."""

    replies: Replies  # groups are states, replies are candidates
    candidates: Ragged  # which state each candidate belongs to
    visits: Tensor  # [S] float32: shares that add up to 1 in a state
    counts: Tensor  # [G] float32: steps in that state


@dataclass(slots=True)
class _Searched:
    prompt: np.ndarray
    actions: dict[bytes, np.ndarray]
    visits: dict[bytes, float]
    count: int = 0


def searched_states(steps: Sequence[TextStep], min_spread: float) -> tuple[SearchedStates | None, dict[str, int]]:
    """Gathers states whose search saw a spread of values, among two candidates or more; None: there is none such.

    Returned with it: how many steps were skipped, by the reason.
    """
    found: dict[tuple[bytes, frozenset[bytes]], _Searched] = {}
    skipped = {"flat": 0, "forced": 0}
    for step in steps:
        actions = {action.tobytes(): action for action in step.actions if len(action)}
        visits = dict.fromkeys(actions, 0.0)
        for action, share in zip(step.actions, step.visits.astype(np.float64), strict=True):
            if len(action):
                visits[action.tobytes()] += float(share)
        total = sum(visits.values())
        if len(actions) < 2:
            skipped["forced"] += 1
        elif step.spread < min_spread or not total > 0:
            skipped["flat"] += 1
        else:
            new = _Searched(step.prompt, actions, dict.fromkeys(actions, 0.0))
            state = found.setdefault((step.prompt.tobytes(), frozenset(actions)), new)
            state.count += 1
            for key, share in visits.items():
                state.visits[key] += share / total
    if not found:
        return None, skipped
    states = list(found.values())
    shares = [[state.visits[key] / state.count for key in state.actions] for state in states]
    gathered = SearchedStates(
        _as_replies([(state.prompt, list(state.actions.values())) for state in states]),
        Ragged.of([len(state.actions) for state in states]),
        torch.tensor([share for some in shares for share in some], dtype=torch.float32),
        torch.tensor([state.count for state in states], dtype=torch.float32),
    )
    return gathered, skipped


# -- ppo --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakenActions:
    """Holds R steps, ordered by their prompts, that took S distinct actions (M tokens, counted step by step)."""

    replies: Replies  # groups are prompts, replies are actions that were executed there
    group: np.ndarray  # [R], never falling
    tokens: Ragged  # the tokens of each step
    places: np.ndarray  # [M]: where a token stands in the line of the replies
    advantages: Tensor  # [R], not normalised
    log_probs: Tensor  # [M] of the engine that scored the action; nan where it was not asked


def taken_actions(steps: Sequence[TextStep]) -> tuple[TakenActions | None, dict[str, int]]:
    """Gathers the steps whose advantage is known; None: there is none such. The others are counted."""
    kept = [step for step in steps if not np.isnan(step.advantage)]
    skipped = {"open": len(steps) - len(kept)}
    if not kept:
        return None, skipped
    prompts: dict[bytes, tuple[int, np.ndarray, dict[bytes, int], list[np.ndarray]]] = {}
    rows: list[tuple[int, int, TextStep]] = []
    for step in kept:
        key, action = step.prompt.tobytes(), step.actions[step.taken]
        number, _, known, actions = prompts.setdefault(key, (len(prompts), step.prompt, {}, []))
        place = known.setdefault(action.tobytes(), len(actions))
        if place == len(actions):
            actions.append(action)
        rows.append((number, place, step))
    rows.sort(key=lambda row: row[0])
    replies = _as_replies([(prompt, actions) for _, prompt, _, actions in prompts.values()])
    numbers = [int(replies.first[group]) + place for group, place, _ in rows]
    lengths = [len(step.actions[step.taken]) for *_, step in rows]
    starts = [int(replies.starts[number]) for number in numbers]
    logs = [
        step.log_probs if len(step.log_probs) else np.full(length, np.nan, np.float32)
        for length, (*_, step) in zip(lengths, rows, strict=True)
    ]
    gathered = TakenActions(
        replies,
        np.array([group for group, *_ in rows], np.int64),
        Ragged.of(lengths),
        np.concatenate([np.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)]),
        torch.tensor([step.advantage for *_, step in rows], dtype=torch.float32),
        torch.from_numpy(np.concatenate(logs)),
    )
    return gathered, skipped


def _as_replies(states: Sequence[tuple[np.ndarray, Sequence[np.ndarray]]]) -> Replies:
    """Makes groups of prompts and their actions; nothing else is known of them."""
    groups = []
    for prompt, actions in states:
        tokens = np.concatenate(actions)
        nothing = np.zeros(len(tokens), np.float32)
        groups.append(
            Group(
                prompt,
                tokens,
                np.array([len(action) for action in actions], np.int64),
                nothing,
                nothing.astype(np.int32),
                np.zeros(len(actions), np.float32),
            )
        )
    return Replies.of(groups)
