"""Names of parallel PPO with a prioritized replay that count training steps, as rows. Its others are in `flat.py`."""

from __future__ import annotations

from headway.core.types_opaque import SettingValue
from headway.tools.names.rows import Meaning
from headway.tools.names.rows_peer_rows import Beside, Translate, number, said, table


def _in_versions(name: str, ours: str) -> Translate:
    """To the nearest version, each of weight_sync_interval training steps, and never to none."""

    def translate(value: SettingValue, beside: Beside) -> Meaning:
        versions = number(name, value) / beside.number("publish_every", "weight_sync_interval")
        return {ours: max(1, round(versions)) if versions else 0}

    return translate


NAMES = table(
    said(
        "eval_interval",
        "evaluate_every (over weight_sync_interval)",
        100,
        _in_versions("eval_interval", "evaluate_every"),
    ),
    said("save_interval", "save_every (over weight_sync_interval)", 500, _in_versions("save_interval", "save_every")),
)
