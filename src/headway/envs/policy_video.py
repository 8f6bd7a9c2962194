"""Films a policy: episodes one after another in one file, through Gymnasium's RecordVideo.

A file that is there is whole: it is written in a folder beside its place, and moved.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gymnasium as gym
from gymnasium.wrappers import RecordVideo

from headway.envs.policy_env_policy import EnvPolicy, PlayedEpisode

ENDING = ".mp4"
PICTURES = "rgb_array"
MOST_FRAMES = 1_000_000


def record_video(
    policy: EnvPolicy,
    to: str | Path,
    *,
    episodes: int = 1,
    seed: int = 0,
    max_steps: int = 10_000,
    deterministic: bool = True,
) -> list[PlayedEpisode]:
    """Lets the policy play and leaves what is seen in the file `to`, which ends in .mp4."""
    file = Path(to)
    if file.suffix != ENDING:
        raise ValueError(f"a video is a file that ends in {ENDING}, received {str(to)!r}")
    if not file.parent.is_dir():
        raise ValueError(f"no folder at {file.parent}")
    _require_moviepy()
    env = policy.make_env(PICTURES)
    if PICTURES not in env.metadata.get("render_modes", ()):
        env.close()
        known = ", ".join(env.metadata.get("render_modes", ())) or "none"
        raise ValueError(f"{policy.facts.env} draws no pictures: its render modes are {known}")
    with tempfile.TemporaryDirectory(prefix=f".{file.stem}-", dir=file.parent) as folder:
        with warnings.catch_warnings(), _without_a_screen():
            warnings.simplefilter("ignore")  # of Gymnasium and moviepy about each other
            filmed: gym.Env = RecordVideo(
                env, folder, step_trigger=lambda step: step == 0, video_length=MOST_FRAMES, disable_logger=True
            )
            try:
                played = policy.play(episodes, env=filmed, seed=seed, max_steps=max_steps, deterministic=deterministic)
            except gym.error.DependencyNotInstalled as error:
                raise ValueError(f"{policy.facts.env} cannot be drawn: {str(error).splitlines()[0]}") from None
            finally:
                filmed.close()
        found = sorted(Path(folder).glob(f"*{ENDING}"))
        if not found:
            raise ValueError(f"{policy.facts.env} gave no picture to film")
        found[0].replace(file)
    return played


@contextmanager
def _without_a_screen() -> Iterator[None]:
    """SDL is told so where there is none: it is drawn into memory, and it would look for a screen and complain."""
    if any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")):
        yield
        return
    os.environ["SDL_VIDEODRIVER"] = "dummy"
    try:
        yield
    finally:
        del os.environ["SDL_VIDEODRIVER"]


def _require_moviepy() -> None:
    try:
        import moviepy  # noqa: F401
    except ModuleNotFoundError as error:
        raise ValueError(f"a video needs {error.name}: pip install 'headway[video]'") from None
