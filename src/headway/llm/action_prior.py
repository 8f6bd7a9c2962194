"""STUB of SCORE's file."""
from __future__ import annotations
from collections.abc import Sequence
from dataclasses import dataclass
import numpy as np
from headway.llm.engine import Engine, ScoreRequest

@dataclass(frozen=True, slots=True)
class Situation:
    prompt: str
    actions: tuple[str, ...]

@dataclass(frozen=True, slots=True)
class Opinion:
    probabilities: np.ndarray
    log_probs: tuple[np.ndarray, ...]
    version: int
    is_late: bool

class ActionPrior:
    def __init__(self, engine: Engine, chat, *, temperature=2.0, floor=0.0, cache_size=20000, deadline_s=None):
        self._engine, self._chat, self._t, self._floor = engine, chat, temperature, floor
        self._cache: dict = {}
        self._counts = dict.fromkeys(("asked", "cached", "late", "scored_actions"), 0)
    @property
    def version(self): return self._engine.version
    def apply(self, version, weights):
        self._engine.apply(version, weights); self._cache.clear()
    def tokens(self, situation):
        return self._chat(situation)
    def opinions(self, situations: Sequence[Situation]) -> list[Opinion]:
        return [self._one(s) for s in situations]
    def _one(self, s):
        self._counts["asked"] += 1
        key = (s.prompt, tuple(sorted(s.actions)))
        if key not in self._cache:
            self._counts["scored_actions"] += len(s.actions)
            prompt, actions = self._chat(Situation(s.prompt, key[1]))
            found = self._engine.score([ScoreRequest(tuple(prompt), tuple(map(tuple, actions)))])[0]
            self._cache[key] = dict(zip(key[1], found.log_probs))
        else:
            self._counts["cached"] += 1
        logs = tuple(self._cache[key][a] for a in s.actions)
        scores = np.array([l.mean() for l in logs]) / self._t
        p = np.exp(scores - scores.max()); p /= p.sum()
        p = (1 - self._floor * len(p)) * p + self._floor
        return Opinion(p.astype(np.float32), logs, self.version, False)
    def statistics(self): return dict(self._counts)
    def close(self): self._engine.close()
