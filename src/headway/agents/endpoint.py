"""Conversations of agents that own their loop: they send whole conversations, and only what is new is read.

    [system, user]                            a branch: the messages as tokens, one engine session
    [system, user, REPLY, user]               the same with more: appended, nothing is tokenised again
    [system, user, REPLY, user, REPLY, tool]  appended
    [system, user, REPLY, another user]       breaks its prefix: a fork from REPLY on, with a session of its own
    [another system, user]                    shares nothing: a fork from the beginning (a sub-agent, a summary)

A run is what an agent does for one episode; its key is the password of its requests. A branch is one conversation of
it: opening, reply, what was said, reply, ... as tokens, in the form in which they were drawn and read. A fork's opening
holds what it shares with the branch that it left, as it was drawn there; the fork itself has drawn only its replies.

    idle --complete--> asked --> idle         one reply at a time; a second request meanwhile forks
                             --> spent        the reply failed: nothing is appended any more

    open --close--> closed                    from any thread; a reply under way is given up

Invariants: tokens of a branch only grow. A reply belongs to one branch. Between two replies a branch holds no place in
the engine that others could not have (its row is parked), however slow its agent is.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from headway.agents.chat_api import ChatMessage, ChatRequest, Completion, Refused, read_reply
from headway.agents.endpoint_tokens import ChatTokens
from headway.llm.engine.protocol_engine import Aborted, Engine, EngineError, EngineOver, Reply, Sampling, Session

AGAIN_S = 60.0
"""How long a client that asks the same again waits for the answer that is under way."""
MAX_REPLIES = 2**15 - 1
"""Of one run: a record counts its turns in 16 bits."""
ROOM_FOR_ALL, BYTES_A_TOKEN = 2**16, 64
"""A request of more bytes than the first is refused unread if its conversation would not even fit with this many bytes
in each token: several times what they have in texts, with JSON around them."""
REMEMBERED = 1024
"""Closed sessions whose key is told to be one; older ones are unknown."""


@dataclass(frozen=True, slots=True)
class RunRules:
    """Says what the requests of a run may have."""

    sampling: Sampling
    """How replies are drawn where a request says nothing; its `max_tokens` is the most that one may have."""
    draw: Callable[[Session, Sampling, int], Reply | None]
    """Draws a reply with a seed, within the time of the run; None: the time is over."""
    seed_of: Callable[[int, int], int]
    """The seed of a reply, by the numbers of its branch and of its turn in it."""
    room: Callable[[int, int], int]
    """Tokens that a reply may have behind so many of the opening, and so many behind that; below 1: none."""
    max_turns: int = MAX_REPLIES
    """Replies in all branches together."""


@dataclass(slots=True)
class AgentTurn:
    """Holds one reply, and what was said before it."""

    said: tuple[int, ...]
    """Since the reply before; nothing where the opening stands before it."""
    reply: Reply
    num_messages: int
    """Of the conversation, with this reply."""
    text: str
    heard: str
    """What was said, for people."""
    reward: float = 0.0


@dataclass(slots=True)
class AgentBranch:
    """Holds one conversation of a run."""

    number: int
    session: Session
    opening: tuple[int, ...]
    tools: str
    messages: tuple[ChatMessage, ...] = ()
    turns: list[AgentTurn] = field(default_factory=list)
    asked: tuple[ChatMessage, ...] | None = None
    """What is being replied to; None: idle."""
    is_spent: bool = False
    answer: Completion | None = None
    """The last one."""

    def tokens(self, num_turns: int) -> tuple[int, ...]:
        """Everything up to the end of so many turns."""
        parts = [token for turn in self.turns[:num_turns] for token in (*turn.said, *turn.reply.tokens.tolist())]
        return (*self.opening, *parts)

    def shared_turns(self, request: ChatRequest) -> int:
        """So many turns of it stand in the request, which says more than them."""
        if self.tools != request.tools_key:
            return 0
        pairs = zip(self.messages, request.messages[:-1], strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a.says() != b.says()), None)
        same = min(len(self.messages), len(request.messages) - 1) if same is None else same
        return sum(turn.num_messages <= same for turn in self.turns)

    def is_same(self, messages: Sequence[ChatMessage], request: ChatRequest) -> bool:
        said = [message.says() for message in messages]
        return self.tools == request.tools_key and said == [message.says() for message in request.messages]


class AgentRun:
    """One episode of an agent: its conversations with the model, and what it earned. For many threads."""

    def __init__(self, uid: str, engine: Engine, tokens: ChatTokens, rules: RunRules) -> None:
        self.uid = uid
        self.branches: list[AgentBranch] = []
        self.refused = ""
        """Why the last request was refused that had no room any more: tokens, turns or deadline."""
        self.fault: EngineError | None = None
        """Why the engine could not give the last reply that was asked for."""
        self.num_rewards = 0
        self.num_resampled = 0
        """Replies that were asked for with another temperature or top_p than those of the run."""
        self._engine, self._tokens, self._rules = engine, tokens, rules
        self._changed = threading.Condition()
        self._last: AgentTurn | None = None
        self._num_begun = 0
        self._closed = ""

    @property
    def num_turns(self) -> int:
        return sum(len(branch.turns) for branch in self.branches)

    def check_size(self, num_bytes: int) -> None:
        """Raises Refused if a request of this many bytes cannot fit."""
        if num_bytes > ROOM_FOR_ALL and self._rules.room(num_bytes // BYTES_A_TOKEN, 0) < 1:
            with self._changed:
                self._need_open()
                raise self._out_of("tokens", f"the request has {num_bytes} bytes: no room for a reply is left")

    def complete(self, request: ChatRequest) -> Completion:
        """Replies to a conversation. Raises Refused."""
        with self._changed:
            if request.is_again and (found := self._answered(request)) is not None:
                return found
            self._need_open()
            if self._num_begun >= self._rules.max_turns:
                raise self._out_of("turns", f"the episode may have {self._rules.max_turns} replies")
            branch, said = self._place(request)
            sampling = self._sampling(request, branch, said)
            branch.asked = request.messages
            self._num_begun += 1
            seed = self._rules.seed_of(branch.number, len(branch.turns))
        reply, failed = None, None
        try:
            if branch.turns:
                branch.session.say(said)
            reply = self._rules.draw(branch.session, sampling, seed)
        except EngineError as error:
            failed = error
        with self._changed:  # the reply is noted in the moment in which the branch is idle again
            branch.asked, branch.is_spent = None, reply is None
            self._changed.notify_all()
            if failed is not None:
                raise self._failed(failed) from failed
            if reply is None:
                raise self._out_of("deadline", "the time of the episode is over")
            self.refused, self.fault = "deadline" if reply.finish == "deadline" else "", None
            return self._note(branch, said, request, reply, sampling.stop)

    def reward(self, value: float, *, done: bool = False) -> None:
        """Adds to what the last reply has earned. `done`: the run asks for nothing more."""
        with self._changed:
            self._need_open()
            if self._last is None:
                raise Refused("a reward before the first reply: there is nothing that could have earned it")
            self._last.reward += value
            self.num_rewards += 1
            if done:
                self._closed = "the agent said that it is done"

    def close(self, why: str = "its episode is over") -> None:
        """Ends all its conversations. Nothing of it changes after that."""
        with self._changed:
            self._closed = self._closed or why
            branches = list(self.branches)
        for branch in branches:
            branch.session.close()

    # -- where a request belongs ----------------------------------------------------------------------

    def _answered(self, request: ChatRequest) -> Completion | None:
        """The answer to a request that a client makes once more because it has not heard of the first one."""
        ends = AGAIN_S
        for branch in self.branches:
            if branch.asked is not None and branch.is_same(branch.asked, request):
                self._changed.wait_for(lambda: branch.asked is None, ends)  # noqa: B023 - waited for here and now
            if branch.turns and branch.is_same(branch.messages[:-1], request):
                return branch.answer
        return None

    def _place(self, request: ChatRequest) -> tuple[AgentBranch, tuple[int, ...]]:
        """The branch that replies, and what is said to it before that. Where none can go on, a new one is opened."""
        found = [(branch.shared_turns(request), branch) for branch in self.branches]
        shared = max((turns for turns, _ in found), default=0)
        those = [branch for turns, branch in found if turns == shared]
        if not shared:
            return self._opened(self._tokens.opening(request.messages, request.tools), request), ()
        idle = (branch for branch in those if len(branch.turns) == shared and branch.asked is None)
        branch = next((branch for branch in idle if not branch.is_spent), None)
        before = (branch or those[0]).turns[shared - 1]
        ended = int(before.reply.tokens[-1]) == self._tokens.end_token
        said = self._tokens.following(request.messages[before.num_messages :], request.tools, ended=ended)
        if branch is not None:
            return branch, said
        return self._opened((*those[0].tokens(shared), *said), request), ()

    def _opened(self, opening: tuple[int, ...], request: ChatRequest) -> AgentBranch:
        if self._rules.room(len(opening), 0) < 1:
            raise self._out_of("tokens", f"the conversation has {len(opening)} tokens: no room for a reply is left")
        number = len(self.branches)
        try:
            (session,) = self._engine.open(f"{self.uid}/{number}", opening, 1)
        except EngineError as error:
            raise self._failed(error) from error
        self.branches.append(AgentBranch(number, session, opening, request.tools_key))
        return self.branches[-1]

    def _sampling(self, request: ChatRequest, branch: AgentBranch, said: tuple[int, ...]) -> Sampling:
        own = self._rules.sampling
        behind = len(branch.tokens(len(branch.turns))) - len(branch.opening) + len(said)
        room = self._rules.room(len(branch.opening), behind)
        if room < 1:
            told = f"the conversation has {len(branch.opening) + behind} tokens: no room for a reply is left"
            raise self._out_of("tokens", told)
        try:
            sampling = replace(
                own,
                temperature=own.temperature if request.temperature is None else request.temperature,
                top_p=own.top_p if request.top_p is None else request.top_p,
                max_tokens=int(min(room, own.max_tokens, request.max_tokens or math.inf)),
                stop=tuple(dict.fromkeys((*own.stop, *request.stop))),
            )
        except ValueError as error:
            raise Refused(str(error)) from None
        self.num_resampled += sampling.choice != own.choice
        return sampling

    def _note(
        self, branch: AgentBranch, said: tuple[int, ...], request: ChatRequest, reply: Reply, stops: Sequence[str]
    ) -> Completion:
        """Appends a reply to its branch, and makes the answer."""
        self._need_open()  # what was drawn for nobody is not learned from
        cut = min((place for stop in stops if (place := reply.text.find(stop)) >= 0), default=None)
        may_call = request.may_call and bool(request.tools)
        message = read_reply(reply.text[:cut], may_call=may_call, number=self.num_turns)
        heard = request.messages[branch.turns[-1].num_messages if branch.turns else 0 :]
        in_words = "\n".join(one.text for one in heard)
        num_prompt = len(branch.tokens(len(branch.turns))) + len(said)
        branch.messages = (*request.messages, message)
        self._last = AgentTurn(said, reply, len(branch.messages), reply.text, in_words)
        branch.turns.append(self._last)
        finish = "tool_calls" if message.calls else "stop" if reply.finish == "stop" else "length"
        log_probs = tuple(float(value) for value in reply.log_probs) if request.wants_log_probs else ()
        branch.answer = Completion(
            f"chatcmpl-{self.uid}-{self.num_turns}",
            message,
            finish,
            num_prompt,
            len(reply.tokens),
            self._tokens.texts_of(reply.tokens.tolist()) if request.wants_log_probs else (),
            log_probs,
        )
        return branch.answer

    def _need_open(self) -> None:
        if self._closed:
            raise Refused(f"this session is closed: {self._closed}", status=409, code="session_closed")

    def _out_of(self, what: str, line: str) -> Refused:
        self.refused = what
        return Refused(line, code="context_length_exceeded" if what == "tokens" else f"episode_{what}")

    def _failed(self, error: EngineError) -> Refused:
        if self._closed and isinstance(error, Aborted):
            return Refused(f"this session is closed: {self._closed}", status=409, code="session_closed")
        self.fault = error
        return Refused(f"the engine could not reply: {error}", status=503 if isinstance(error, EngineOver) else 500)


class Endpoint:
    """Knows the runs that are open by their keys."""

    def __init__(self, engine: Engine, tokens: ChatTokens, *, model: str = "policy") -> None:
        self.engine = engine
        self.model = model
        """Under which name clients know it; they may ask for any."""
        self._tokens = tokens
        self._lock = threading.Lock()
        self._runs: dict[str, AgentRun] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()  # keys of the last ones that were closed

    def open(self, uid: str, rules: RunRules) -> tuple[str, AgentRun]:
        """Begins a run. Its key cannot be guessed, and is good until `forget`."""
        key, run = f"hw-{secrets.token_urlsafe(24)}", AgentRun(uid, self.engine, self._tokens, rules)
        with self._lock:
            self._runs[key] = run
        return key, run

    def run_of(self, key: str) -> AgentRun:
        with self._lock:
            run, is_gone = self._runs.get(key), key in self._gone
        if is_gone:
            raise Refused("this session is closed: its episode is over", status=409, code="session_closed")
        if run is None:
            raise Refused("unknown key: a session's own is its API key", status=401, code="invalid_api_key")
        return run

    def forget(self, key: str) -> None:
        """Closes a run; its key is good for nothing any more."""
        with self._lock:
            run = self._runs.pop(key, None)
            if run is not None:
                self._gone[key] = None
            while len(self._gone) > REMEMBERED:
                self._gone.popitem(last=False)
        if run is not None:
            run.close()

    def doing(self) -> list[str]:
        """Says which replies are under way."""
        with self._lock:
            runs = list(self._runs.values())
        asked = [(run, branch) for run in runs for branch in list(run.branches) if branch.asked is not None]
        return [f"{run.uid}: reply {len(branch.turns) + 1} of branch {branch.number}" for run, branch in asked]

    def close(self) -> None:
        with self._lock:
            keys = list(self._runs)
        for key in keys:
            self.forget(key)
