"""An episode that was played: its record for learning, and what was said in it for people to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from headway.llm.rollouts_episode import Episodes

GROUP = "group"
"""Of a sample: when the turns of all episodes of its group were (`agents/episodes_turn_times.py`)."""


class TurnText(TypedDict):
    """Is one turn for people: a reply, what the environment said to it and gave for it, and whose weights drew it."""

    reply: str
    observation: str
    """What came back; of the last turn too, where no policy read it."""
    reward: float
    tokens: int
    """Tokens that the policy drew."""
    read: int
    """Tokens that it was told after them, none of which is trained on."""
    versions: list[int]
    """The oldest and the newest that drew a token of it."""


class ConversationText(TypedDict):
    """Is one line of a run's samples: a whole conversation."""

    uid: str
    prompt: str
    reply: str
    """All that follows the first message, in plain text."""
    turns: list[TurnText]
    reward: float
    parts: NotRequired[dict[str, float]]
    finish: str
    tokens: int
    versions: list[int]


@dataclass(frozen=True, slots=True)
class Transcript:
    """Holds one episode from its first message to its end."""

    record: Episodes
    """Of this one episode."""
    first: str
    """What was said first, the system prompt included."""
    turns: Sequence[TurnText]

    @property
    def end(self) -> str:
        return self.record.end[0]

    def for_people(self) -> ConversationText:
        """Writes the episode down as a sample of the run."""
        record = self.record
        values = zip(record.part_names, record.parts[:, 0].tolist() if record.part_names else (), strict=True)
        parts = dict(values)
        text: dict[str, Any] = {
            "uid": record.uid,
            "prompt": self.first,
            "reply": in_plain_text(self.turns),
            "turns": list(self.turns),
            "reward": float(record.returns[0]),
            **({"parts": parts} if parts else {}),
            "finish": self.end,
            "tokens": int(record.num_trained[0]),
            "versions": [record.span.oldest, record.span.newest],
        }
        return text  # type: ignore[return-value]


def in_plain_text(turns: Sequence[TurnText]) -> str:
    """Writes turns one below the other: replies behind `>`, what was said to them as it is."""
    lines = []
    for turn in turns:
        lines.append(f"> {turn['reply']}")
        if turn["observation"]:
            lines.append(turn["observation"])
    return "\n".join(lines)
