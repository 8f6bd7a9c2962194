"""What a user's agent did with the model, as episodes to learn from.

    run 0   branch 0   [opening | reply | said | reply]           an episode
            branch 1   [what it shares, opening | reply]          a fork: another episode, untrained up to its reply
    run 1   branch 0   [opening | reply]

    prompt = what all openings of the group begin with; the rest of an opening stands in its episode, untrained

Every episode of a run has the return of the whole run: rewards that were given by a call stand at the reply that they
were given for, and what the rest of the run has earned is added to the last reply of the branch. Where returns are
compared a run counts once, however many branches it has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headway.agents.endpoint import AgentBranch, AgentRun, AgentTurn
from headway.agents.env import BadEnvironment, finite
from headway.llm.rollouts_episode import EpisodeBuilder, Episodes
from headway.llm.rollouts_transcript import Transcript, TurnText
from headway.runs.user_code_user_functions import load_function

AgentReturn = float | Mapping[str, object] | None
AgentFunction = Callable[[str, str, int], AgentReturn | Awaitable[AgentReturn]]
"""agent(base_url, api_key, seed), asynchronous or not: the reward of the run; or {"reward": 1.0, "success": True, other
numbers to be measured}; or None where it gave rewards by calls. Rewards by calls and the returned one are added."""


def load_agent(spec: str) -> AgentFunction:
    """Loads a user's agent, after checking that it can be called."""
    return load_function(spec, "agent", ["base_url", "api_key", "seed"], by_name=False)


@dataclass(frozen=True, slots=True)
class EndedRun:
    """Holds a run that is over, and what it was worth."""

    run: AgentRun
    end: str
    reward: float = 0.0
    """Besides those that were given by calls."""
    success: bool | None = None
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def branches(self) -> list[AgentBranch]:
        """Those in which something was drawn."""
        return [branch for branch in self.run.branches if branch.turns]


def ended_run(run: AgentRun, value: object, name: str) -> EndedRun:
    """Checks what an agent returned. Raises BadEnvironment in a line for its author."""
    if not run.num_turns:
        why = f" (its request was refused: {run.refused})" if run.refused else ""
        raise BadEnvironment(f"agent {name} returned without one reply of the model{why}: nothing can be learned")
    said = dict(value) if isinstance(value, Mapping) else {"reward": value}
    reward, success = said.pop("reward", None), said.pop("success", None)
    if reward is None and not run.num_rewards:
        raise BadEnvironment(f"agent {name} returned no reward and gave none by a call: allowed is a finite number")
    parts = {str(key): finite(number, f"agent {name}: {key!r} of what it returned") for key, number in said.items()}
    worth = 0.0 if reward is None else finite(reward, f"agent {name}: what it returned")
    return EndedRun(run, run.refused or "done", worth, None if success is None else bool(success), parts)


def transcripts(runs: Mapping[int, EndedRun], uid: str) -> dict[int, Transcript]:
    """The runs of a group, by their numbers: records that can be joined, and texts for people."""
    openings = [branch.opening for one in runs.values() for branch in one.branches]
    first, last = min(openings), max(openings)  # what these two begin with, all begin with
    size = next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    if not size:
        raise BadEnvironment(
            f"{uid}: the conversations of a group share not even their first token, so they cannot be compared; "
            "name a chat_template"
        )
    return {number: _transcript(one, size, uid) for number, one in runs.items()}


def _transcript(one: EndedRun, size: int, uid: str) -> Transcript:
    branches = one.branches
    record = Episodes.join([_episode(one, branch, size, uid) for branch in branches]).as_one_run()
    turns = [turn for branch in branches for turn in _in_words(branch)]
    earned: list[TurnText] = [
        {**turn, "reward": float(reward)} for turn, reward in zip(turns, record.rewards, strict=True)
    ]
    return Transcript(record, branches[0].turns[0].heard, earned)


def _episode(one: EndedRun, branch: AgentBranch, size: int, uid: str) -> Episodes:
    record = EpisodeBuilder(branch.opening[:size], uid)
    elsewhere = sum(turn.reward for other in one.branches if other is not branch for turn in other.turns)
    for number, turn in enumerate(branch.turns):
        if number:
            record.add_observation(turn.said, turn.reply.read_by)
        elif len(branch.opening) > size:
            record.add_prefix(branch.opening[size:], turn.reply.read_by)
        is_last = number == len(branch.turns) - 1
        reward = turn.reward + (one.reward + elsewhere if is_last else 0.0)
        record.add_reply(turn.reply.tokens, turn.reply.log_probs, turn.reply.versions, reward)
    return record.finish(one.end, one.success, one.parts)


def _in_words(branch: AgentBranch) -> list[TurnText]:
    after: Sequence[AgentTurn | None] = [*branch.turns[1:], None]
    return [
        {
            "reply": turn.text,
            "observation": "" if then is None else then.heard,
            "reward": turn.reward,
            "tokens": len(turn.reply.tokens),
            "read": 0 if then is None else len(then.said),
            "versions": [int(turn.reply.versions.min()), int(turn.reply.versions.max())],
        }
        for turn, then in zip(branch.turns, after, strict=True)
    ]
