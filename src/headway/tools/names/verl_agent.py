"""Names of verl-agent and SkyRL for environments and turns, as rows; the rest of their files is in `verl.py`."""

from __future__ import annotations

from collections.abc import Collection

from headway.tools.names import verl_meanings as by
from headway.tools.names.rows import Meaning, Theirs, by_path, only, row

GIGPO = "algorithm.gigpo"


def _steps_of_an_episode(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """Two systems have this path: of a conversation it counts the turns, of a story the steps."""
    return {"max_episode_steps" if "max_episode_steps" in fields else "max_turns": value}


PATHS = by_path(
    row("env.env_name", "env", "my_games.py:Guess"),
    row("env.max_steps", "max_turns; of PriorZero max_episode_steps", 15, _steps_of_an_episode),
    row("env.rollout.n", "group_size", 8),
    row(f"{GIGPO}.step_advantage_w", "step_reward_weight", 1.0),
    row(f"{GIGPO}.mode", "estimator (mean_norm: dr_grpo), credit", "mean_std_norm", by.gigpo_mode, by.ESTIMATOR),
    row(f"{GIGPO}.enable_similarity", "(only False)", False, only(False, why="equal states are compared, not similar")),
    row("environment.env_class", "env (of SkyRL-Gym)", "gsm8k_multi_turn", lambda value, *_: {"env": f"skyrl:{value}"}),
    row("generator.max_turns", "max_turns", 8),
    row("generator.n_samples_per_prompt", "group_size", 8),
    row("generator.sampling_params.max_generate_length", "max_turn_tokens", 512),
    row("generator.sampling_params.temperature", "temperature", 1.0),
    row("generator.sampling_params.top_p", "top_p", 1.0),
)
WITHOUT_EFFECT: dict[str, str] = {
    "env.seed": "`seed` decides everything",
    "env.history_length": "an episode is one conversation: all that was said in it is there",
    "env.resources_per_worker.*": "env_stepping says in how many threads or processes environments step",
}
"""Accepted, said to have no effect when the run begins, and why. `.*` is everything below."""
