"""A reply for people to read: what goes into the run's samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from headway.llm.engine.protocol_engine import Sample
from headway.llm.tasks.rewards import parts_of
from headway.llm.tasks.tasks import Prompt, said_by, with_system_prompt


class SampleText(TypedDict):
    """Is one line of a run's samples, but for when it was trained on or evaluated."""

    uid: str
    prompt: str
    reply: str
    truth: Any
    reward: float
    parts: NotRequired[dict[str, float]]
    finish: str
    tokens: int
    versions: list[int]
    """The oldest and the newest that made a token of it."""


def sample_text(
    prompt: Prompt, sample: Sample, reward: float, more: Mapping[str, float] | None = None, *, system_prompt: str = ""
) -> SampleText:
    """Writes down a reply. Its parts are what the reward's function has measured besides, and `more`; `system_prompt`
    was said before."""
    parts = {**parts_of(reward), **(more or {})}
    return {
        "uid": prompt.uid,
        "prompt": said_by(with_system_prompt(prompt.messages, system_prompt), prompt.tools),
        "reply": sample.text,
        "truth": prompt.truth,
        "reward": float(reward),
        **({"parts": parts} if parts else {}),  # type: ignore[typeddict-item]
        "finish": sample.finish,
        "tokens": len(sample.tokens),
        "versions": [int(sample.versions.min()), int(sample.versions.max())],
    }
