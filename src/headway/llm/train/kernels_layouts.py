"""How a model is given a group of replies, and whether what it says of them is what it would say by itself.

    tree    the prompt once, all replies behind it (llm/train/trees.py): masks and positions of ours
    rows    each reply behind the prompt again, by the model's own rules: every model can, for more tokens

A model may ignore a mask, count places by itself, remember by other means than attention, or do more to its logits than
we know (llm/train/heads.py). Whether it does is seen at once: two short made-up replies, read in the layout and by the
model's own forward pass. A sliding window is made short for that moment, so that it matters within a few dozen tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from headway.llm.model.types import CausalModel
from headway.llm.train.heads import chosen_log_probs, logit_transform_of
from headway.llm.train.trees import FULL, SLIDING, Windows, hidden_states, lay_out, pack_trees

Layout = Literal["tree", "rows"]
LAYOUTS = ("auto", "tree", "rows")
PROMPT, REPLIES = 8, (5, 6)
"""Tokens of the made-up group."""
WINDOW = 4
"""Of a sliding window while the group is read."""
OTHER_WINDOWS = ("window_size", "attention_window_size", "attention_window", "sliding_window_size", "local_attention")
"""Names of windows that a model cuts by itself, by places in the row; too wide to be seen in a short group."""


def choose_layout(model: CausalModel, wanted: str = "auto") -> Layout:
    """Returns the layout that is wanted, or the better one of those that fit; ValueError, one line, where none does."""
    with short_window(model), torch.no_grad(), torch.random.fork_rng(devices=[]):  # some roll dice for nothing
        try:
            own = _own_log_probs(model)
        except Exception as error:  # whatever a model of somebody else does where it cannot be read
            raise ValueError(f"{name_of(model)} cannot be trained: {first_line(error)}") from error
        if wanted != "rows":
            why = _why_no_tree(model, own)
            if not why:
                return "tree"
            if wanted == "tree":
                raise ValueError(f"layout='tree' does not fit {name_of(model)}: {why}; allowed: 'rows', 'auto'")
            print(f"headway: {name_of(model)} is trained in rows, not in trees: {why}", file=sys.stderr, flush=True)
        why = _difference(model, own, apart=True)
        if why:
            raise ValueError(f"{name_of(model)} cannot be trained: {why}")
        return "rows"


def fits_trees(model: CausalModel) -> bool:
    """Says whether a model reads trees as it reads sequences; ValueError, one line, where it cannot be read at all."""
    with short_window(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            own = _own_log_probs(model)
        except Exception as error:  # as above
            raise ValueError(f"{name_of(model)} cannot be read: {first_line(error)}") from error
        return not _why_no_tree(model, own)


def _why_no_tree(model: CausalModel, own: Tensor) -> str:
    config = model.config.get_text_config()
    others = set(getattr(config, "layer_types", None) or ()) - {FULL, SLIDING}
    if others:
        return f"it has layers of the kind {', '.join(map(repr, sorted(others)))}"
    for name in OTHER_WINDOWS:
        if getattr(config, name, None):
            return f"it attends through {name}={getattr(config, name)!r}"
    return _difference(model, own, apart=False)


def _difference(model: CausalModel, own: Tensor, *, apart: bool) -> str:
    """Says what is wrong with the log-probabilities in this layout, or nothing."""
    try:
        found = log_probs_of_group(model, apart=apart)
    except Exception as error:  # noqa: BLE001 - as above: a mask of four dimensions is enough for some
        return first_line(error)
    gap, limit = float((found - own).abs().mean()), _tolerance(model)
    return "" if gap <= limit else f"log-probabilities differ from its own by {gap:.2g} (at most {limit:g} is rounding)"


def log_probs_of_group(
    model: CausalModel,
    *,
    apart: bool,
    windows: Windows | None = None,
    length: int = 0,
    sizes: tuple[int, ...] = (PROMPT, *REPLIES),
    fused: bool = False,
) -> Tensor:
    """Returns the log-probabilities of the made-up replies, [N], in the layout; with `windows` in a row of a length."""
    prompt, replies = _group(model, sizes)
    found: dict[int, Tensor] = {}
    for trees in pack_trees([prompt], [replies], sum(sizes) * len(replies), apart=apart):
        batch = lay_out(trees, apart=apart, windows=windows, length=length).to(next(model.parameters()).device)
        head = model.get_output_embeddings()
        hidden, transform = hidden_states(model, batch), logit_transform_of(model)
        logs, _ = chosen_log_probs(head, hidden, batch.targets, transform=transform, fused=fused)
        found |= dict(zip(batch.replies, logs.split([len(replies[number]) for number in batch.replies]), strict=True))
    return torch.cat([found[number] for number in sorted(found)])


def _own_log_probs(model: CausalModel) -> Tensor:
    """Returns the same by the model's forward pass over one sequence at a time."""
    prompt, replies = _group(model)
    found = []
    for reply in replies:
        whole = torch.from_numpy(np.concatenate([prompt, reply])).to(next(model.parameters()).device)
        logits = model(input_ids=whole[None], use_cache=False).logits[0, len(prompt) - 1 : -1]
        logs = torch.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), -1)
        found.append(logs.gather(1, whole[len(prompt) :, None])[:, 0])
    return torch.cat(found)


def _group(model: CausalModel, sizes: tuple[int, ...] = (PROMPT, *REPLIES)) -> tuple[np.ndarray, list[np.ndarray]]:
    random = np.random.default_rng(0)  # its own: the run's dice stay where they are
    words = model.get_input_embeddings().weight.shape[0]
    prompt, *replies = (random.integers(0, max(2, words // 2), size) for size in sizes)
    return prompt, replies


@contextmanager
def short_window(model: CausalModel) -> Iterator[None]:
    """Makes a sliding window so short that it matters in the made-up group."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    if not window or window <= WINDOW:
        yield
        return
    config.sliding_window = WINDOW
    try:
        yield
    finally:
        config.sliding_window = window


def _tolerance(model: CausalModel) -> float:
    """Says how far two ways to compute the same may differ by rounding."""
    head = model.get_output_embeddings().weight
    if head.dtype not in (torch.float32, torch.float64):
        return 0.3
    return 1e-2 if head.is_cuda and torch.get_float32_matmul_precision() != "highest" else 1e-4


def name_of(model: CausalModel) -> str:
    return f"a model of type {model.config.model_type!r}"


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]
