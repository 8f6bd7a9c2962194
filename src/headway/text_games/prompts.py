"""What a language model is asked about a scene, in words."""

from __future__ import annotations

from collections.abc import Sequence

from headway.text_games.story_interface import Scene

QUESTION = "What do you do next?"
EXAMPLES = "You see a coin. Action: take coin\nYou see a closed box. Action: open box"
"""What actions look like, for a language model that has never played. Without them a small one finds `go` likelier than
anything else wherever it is (docs/lab.md)."""


def situation_prompt(
    objective: str, scene: Scene, history: Sequence[tuple[str, str]] = (), *, with_candidates: bool = False
) -> str:
    """Returns the objective, two examples, the last actions and what came of each, the scene, and the question.

    It ends with a line's end: `Action: take key` follows. A history's last text is the scene's own, and is not said
    twice. Candidates are listed in alphabetical order, so that a scene has one prompt however they are shown.
    """
    parts = ["You are playing a text game."]
    if objective:
        parts.append(f"Your goal: {objective}")
    parts.append(EXAMPLES)
    if history:
        steps = [f"> {action}\n{text.strip()}" for action, text in history[:-1]]
        parts.append("\n".join([*steps, f"> {history[-1][0]}"]))
    parts.append(scene.text.strip())
    if with_candidates:
        parts.append(f"You can: {'; '.join(sorted(scene.candidates))}.")
    parts.append(QUESTION)
    return "\n".join(parts) + "\n"
