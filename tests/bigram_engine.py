"""An engine process without vLLM: the same loop and the same messages around a table of bigrams.

The model is one table of logits, [V, V]: what comes next depends on the last token alone, so every number can be
checked by hand, and the process starts in the time that numpy takes to import. `trouble` makes it misbehave on purpose.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headway.llm.engine.engine_host import Layout, News, serve

if TYPE_CHECKING:
    from headway.llm.engine.engine_process_hosted_engine import HostedEngine

VOCABULARY = 40
STOPS = (7, 31)
WEIGHT = "table"


class Letters:
    """A tokenizer: tokens are letters."""

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(ord("A") + token) for token in tokens)


def table(seed: int) -> np.ndarray:
    """Logits of the next token, [V, V] float32."""
    values: np.ndarray = np.random.default_rng(seed).normal(0, 1, (VOCABULARY, VOCABULARY)).astype(np.float32)
    return values


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum())
    return result


def cut(log_probs: np.ndarray, top_k: int, top_p: float) -> np.ndarray:
    """The log-probabilities of what is left when only the k most likely tokens may be drawn, and of those only the
    fewest that have the share `top_p`; -inf for the others."""
    order = np.argsort(-log_probs, kind="stable")[: top_k or None]
    mass = np.exp(log_probs[order]).cumsum()
    order = order[: int(np.searchsorted(mass, top_p * mass[-1])) + 1] if top_p < 1 else order
    left = np.full_like(log_probs, -np.inf)
    left[order] = log_probs[order]
    return left if len(order) == len(left) else log_softmax(left)


class BigramStepper:
    """The first `rows` samples under way get a token each a step."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._trouble: str = spec["trouble"]
        self._fuse: str = spec["fuse"]
        self._rows: int = spec["rows"]
        self._step_s: float = spec["step_s"]
        self._table = table(spec["seed"])
        self._samples: dict[str, tuple[list[int], int, dict[str, Any], int]] = {}
        self._known: dict[str, tuple[int, Sequence[int]]] = {}  # the prompt's last token, the continuation
        self._steps = self._loads = 0
        if self._strikes("does not start"):
            raise RuntimeError("no such device\nand a long story")

    def add(self, key: str, prompt: Sequence[int], seed: int, sampling: dict[str, Any], salt: str) -> None:
        if max(prompt) >= VOCABULARY:
            raise ValueError(f"token {max(prompt)} is not in the vocabulary")
        self._samples[key] = list(prompt), seed, sampling, len(prompt)

    def add_known(self, key: str, prompt: Sequence[int], continuation: Sequence[int], salt: str) -> None:
        if max(continuation) >= VOCABULARY:
            raise ValueError(f"token {max(continuation)} is not in the vocabulary")
        self._known[key] = prompt[-1], continuation

    def step(self) -> Iterable[News]:
        time.sleep(self._step_s)
        self._steps += 1
        if self._strikes(f"raises at step {self._steps}"):
            raise RuntimeError("out of memory")
        news: list[News] = []
        for key, (tokens, seed, sampling, length) in list(self._samples.items())[: self._rows]:
            token, log_prob = self._draw(tokens[-1], sampling, np.random.default_rng([seed, len(tokens) - length]))
            tokens.append(token)
            is_longest = len(tokens) - length == sampling["max_tokens"]
            if is_longest:
                del self._samples[key]
            news.append((key, [token], [log_prob], is_longest))
        for key in list(self._known)[: self._rows]:
            last, continuation = self._known.pop(key)
            before = [last, *continuation[:-1]]
            log_probs = [float(log_softmax(self._table[b])[c]) for b, c in zip(before, continuation, strict=True)]
            news.append((key, list(continuation), log_probs, True))
        return news

    def drop(self, keys: list[str]) -> None:
        for key in keys:
            self._samples.pop(key, None)
            self._known.pop(key, None)

    def check(self, layout: Layout) -> None:
        if self._strikes("refuses weights"):
            raise ValueError("not today")

    def load(self, path: str, layout: Layout) -> None:
        ((_, dtype, shape, offset),) = layout
        with open(path, "rb") as file:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        given = np.frombuffer(memory, dtype, int(np.prod(shape)), offset).reshape(shape)
        self._loads += 1
        if self._strikes(f"tears load {self._loads}"):
            self._table[:3] = given[:3]
            raise RuntimeError("torn in the middle")
        if self._strikes(f"freezes at load {self._loads}"):
            os.kill(os.getpid(), signal.SIGSTOP)
        self._table = given.copy()

    def forget(self, running_too: bool) -> None:
        pass

    def decode(self, tokens: Sequence[int]) -> str:
        return Letters().decode(tokens)

    def close(self) -> None:
        pass

    def _draw(self, last: int, sampling: dict[str, Any], random: np.random.Generator) -> tuple[int, float]:
        logits = self._table[last]
        if sampling["temperature"] == 0:
            return int(logits.argmax()), 0.0
        log_probs = log_softmax(logits / sampling["temperature"])
        log_probs = cut(log_probs, sampling["top_k"], sampling["top_p"])
        sums = np.exp(log_probs).cumsum()
        token = min(int(np.searchsorted(sums, random.random() * sums[-1], side="right")), VOCABULARY - 1)
        return token, float(log_probs[token])

    def _strikes(self, what: str) -> bool:
        """Is this the trouble that was asked for? With a fuse it comes once, whoever meets it first."""
        if self._trouble != what:
            return False
        if self._fuse:
            try:
                os.unlink(self._fuse)
            except FileNotFoundError:
                return False
        return True


def bigram_engine(
    *,
    seed: int = 0,
    rows: int = 8,
    context: int = 128,
    step_s: float = 0.0,
    trouble: str = "",
    fuse: Path | None = None,
    deadline_s: float = 20.0,
    start_s: float = 30.0,
    restarts: int = 5,
    **options: Any,
) -> HostedEngine:
    """An engine in a process of its own around the table of this seed.

    `trouble`: "does not start", "refuses weights", "raises at step N", "tears load N" or "freezes at load N"; in every
    process, or once if there is a file `fuse`.
    """
    from headway.llm.engine.engine_process_host_process import HostSettings
    from headway.llm.engine.engine_process_hosted_engine import HostedEngine

    program = f"import sys; sys.path[:] = {sys.path!r}; from bigram_engine import main; main(sys.argv[1])"
    spec = {"seed": seed, "rows": rows, "step_s": step_s, "trouble": trouble, "fuse": str(fuse or "")}
    return HostedEngine(
        HostSettings((sys.executable, "-c", program), spec, {}, deadline_s, start_s, restarts),
        Letters(),
        STOPS,
        context=context,
        shapes={WEIGHT: (VOCABULARY, VOCABULARY)},
        own_weights=lambda: {WEIGHT: table(seed)},
        **options,
    )


def main(fd: str) -> None:
    serve(int(fd), BigramStepper)
