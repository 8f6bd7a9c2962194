"""What an environment for agents is: it says a text, gets a reply, and says what came of it.

                    +--------------------------------------------+
                    v                                            |
    reset(seed) -> text -> [the policy replies] -> step(reply) -> Step(text, reward) -> ... -> Step(..., done=True)

One seed is one game: the same texts for the same replies, in whatever thread or process it is played. After the end
only `reset` may be called. An environment is used by one thread at a time.

What the policy can cause (a malformed reply, a forbidden move) is answered with text. What it cannot cause is raised:
`BadEnvironment` where the author of the environment must mend something, `EnvironmentLost` where it may work next time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, SupportsFloat, SupportsIndex, cast

from headway.core.text_one_line import shortened
from headway.core.types import MAX_REWARD
from headway.core.types_opaque import JsonObject


@dataclass(frozen=True, slots=True)
class Step:
    """Says what came of a reply."""

    text: str
    """What the environment says next. It is never empty, unless this is the end."""
    reward: float = 0.0
    """What the reply was worth; finite."""
    done: bool = False
    """Is this the end of the episode?"""
    success: bool | None = None
    """Was the episode a success? Said at the end by games that know. None: rewards of 1 or more in sum count as one."""
    info: Mapping[str, float] = field(default_factory=dict)
    """Other numbers to be measured: their means over episodes."""


class AgentEnv(Protocol):
    """Plays one episode after another, each begun by `reset`.

    An environment may have more than this protocol asks for; it is looked for with `getattr`:

    | name | what it is |
    |---|---|
    | `system_prompt: str` | is said before everything else, in the role `system` |
    | `reply_prefix: str` | begins every reply; the policy draws what follows it |
    | `tools: Sequence[Mapping]` | functions that the chat template is told of, as JSON schemas |
    | `state_key() -> str` | equal keys are equal states; without it equal texts are |
    | `random_reply(rng: random.Random) -> str` | what a player without a plan says next |
    | `expert_reply() -> str` | the best that can be said next |
    | `close()` | lets go of what the environment holds |
    | `seeds_globally: bool` | it seeds the random generator that all threads share, so it needs a process of its own |
    """

    max_turns: int
    """An episode has at most so many replies."""

    def reset(self, seed: int) -> str:
        """Begins the episode of this seed and returns what is said first."""
        ...

    def step(self, reply: str) -> Step:
        """Takes the policy's reply."""
        ...


@dataclass(frozen=True, slots=True)
class EnvFacts:
    """Holds what an environment says of itself before it is played."""

    max_turns: int
    system_prompt: str = ""
    reply_prefix: str = ""
    tools: Sequence[JsonObject] = ()

    @classmethod
    def of(cls, env: AgentEnv) -> EnvFacts:
        return cls(
            env.max_turns,
            in_unicode(str(getattr(env, "system_prompt", "") or "")),
            in_unicode(str(getattr(env, "reply_prefix", "") or "")),
            tuple(getattr(env, "tools", ()) or ()),
        )


EnvFactory = Callable[[], AgentEnv]
"""Makes an environment. It can be pickled: each process makes its own."""


class BadEnvironment(ValueError):
    """The author of the environment must mend it: it says nothing, its reward is no number, it goes on after the end.

    One line; trying again would not help.
    """


class EnvironmentLost(RuntimeError):
    """An environment crashed, hung, was killed or raised. The policy could not cause this; it may work next time."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        """What happened, in one line."""


def checked_env(value: object, env_name: str) -> AgentEnv:
    """Returns what a factory made, if it has what an environment needs."""
    for method in ("reset", "step"):
        if not callable(getattr(value, method, None)):
            raise BadEnvironment(f"environment {env_name} is a {type(value).__name__} without {method}()")
    turns = getattr(value, "max_turns", None)
    if isinstance(turns, bool) or not isinstance(turns, int) or turns < 1:
        raise BadEnvironment(f"environment {env_name}: max_turns must be a whole number >= 1, received {turns!r}")
    return cast("AgentEnv", value)


def checked_text(value: object, env_name: str) -> str:
    """Returns what `reset` returned, if it is a text that says something."""
    if not isinstance(value, str):
        raise BadEnvironment(f"environment {env_name}: reset must return a text, received {_described(value)}")
    if not value.strip():
        raise BadEnvironment(f"environment {env_name}: reset returned an empty text; the policy must be told something")
    return in_unicode(value)


def in_unicode(text: str) -> str:
    """Returns a text without lone surrogates, which no tokenizer and no file takes: each becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def checked_step(value: object, env_name: str) -> Step:
    """Returns what `step` returned, with plain Python numbers, if it is a `Step` that can be learned from."""
    if not isinstance(value, Step):
        what = "step must return headway.Step(text, reward, done)"
        raise BadEnvironment(f"environment {env_name}: {what}, received {_described(value)}")
    if not isinstance(value.text, str):
        raise BadEnvironment(f"environment {env_name}: the text of a step is {_described(value.text)}")
    if not value.text.strip() and not value.done:
        raise BadEnvironment(
            f"environment {env_name}: step returned an empty text; only the last one of an episode may be empty"
        )
    here = f"environment {env_name}:"
    reward = finite(value.reward, f"{here} the reward of a step")
    if not isinstance(value.info, Mapping):
        raise BadEnvironment(f"{here} the info of a step is {_described(value.info)}; allowed: a mapping of numbers")
    info = {str(name): finite(number, f"{here} info[{name!r}]") for name, number in value.info.items()}
    for name in ("done", "success"):
        if isinstance(getattr(value, name), str):  # every text but the empty one would be true
            raise BadEnvironment(
                f"{here} {name} of a step is {_described(getattr(value, name))}; allowed: True or False"
            )
    success = None if value.success is None else bool(value.success)
    return Step(in_unicode(value.text), reward, bool(value.done), success, info)


def is_success(rewards: float, success: bool | None) -> bool:
    """Says whether an episode with this sum of rewards was a success; the environment's own word counts first."""
    return rewards >= 1 - 1e-6 if success is None else success


def finite(value: object, what: str) -> float:
    """Returns a number that somebody's code has made, as Python's own, if it can be learned from."""
    try:
        number = float(value) if isinstance(value, SupportsFloat | SupportsIndex) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= MAX_REWARD:
        allowed = f"at most {MAX_REWARD:g}" if math.isfinite(number) else "a finite number"
        raise BadEnvironment(f"{what} is {_described(value)}; allowed: {allowed}")
    return number


def _described(value: object) -> str:
    return "None" if value is None else f"{shortened(repr(value), 60)} ({type(value).__name__})"
