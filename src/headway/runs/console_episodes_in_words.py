"""Episodes in a few words, for a status: `success 24 %, 3.1 turns, 60 % cut by max_turns, steps of 0.31 s, ...`"""

from __future__ import annotations

from collections.abc import Mapping

CUTS = {"end_turns": "max_turns", "end_tokens": "tokens", "end_deadline": "a deadline"}
WORTH_SAYING = 0.1


def in_words(metrics: Mapping[str, float | None]) -> str:
    """What an update says of the episodes it learned from; nothing where it learned from none."""
    if metrics.get("end_done") is None or metrics.get("turns") is None:
        return ""
    parts = [f"success {100 * (metrics.get('success') or 0.0):.0f} %", f"{metrics['turns']:.1f} turns"]
    for name, limit in CUTS.items():
        share = metrics.get(name) or 0.0
        if share >= WORTH_SAYING:
            parts.append(f"{100 * share:.0f} % cut by {limit}")
    if metrics.get("step_s") is not None:
        slowest = metrics.get("step_max_s") or metrics["step_s"]
        parts.append(f"steps of {metrics['step_s']:.3g} s (slowest of a group {slowest:.3g} s)")
    for name, what in (
        ("engine_idle", "environments keep the engine waiting"),
        ("last_episode_share", "groups wait for their last episode"),
    ):
        share = metrics.get(name) or 0.0
        if share >= WORTH_SAYING:
            parts.append(f"{what} {100 * share:.0f} % of the time")
    if metrics.get("environments_lost"):
        parts.append(f"{metrics['environments_lost']:.2g} environments lost in a group")
    return ", ".join(parts)
