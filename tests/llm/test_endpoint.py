"""The endpoint for agents: conversations that are appended or forked, as plain HTTP clients and real ones see it."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from waiting import patient, wait_until

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from headway.agents.chat_api import ChatMessage, FunctionCall, Refused, read_reply, read_request  # noqa: E402
from headway.agents.endpoint import AgentRun, Endpoint, RunRules  # noqa: E402
from headway.agents.endpoint_server import EndpointServer  # noqa: E402
from headway.agents.endpoint_tokens import ChatTokens  # noqa: E402
from headway.llm.engine.protocol_engine import Overdue, Reply, Sampling, Session  # noqa: E402
from headway.llm.engine.transformers_engine import TransformersEngine, build_decoder  # noqa: E402
from headway.runs.local_server_strangers import Strangers  # noqa: E402
from headway.testing.tiny_models import tiny_model, tiny_tokenizer  # noqa: E402

CONTEXT = 2048
Chat = list[dict[str, Any]]
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


class Scripted:
    """Draws what is written here in place of what the model would, so that a test can say what it calls.

    The tokens are forced through the real session, whose engine has read everything else.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)

    def __call__(self, session: Session, sampling: Sampling, seed: int) -> Reply:
        reply = session.reply(sampling, seed=seed)
        text = self.texts.pop(0)
        tokens = np.array([*tiny_tokenizer().encode(text), 0], np.int32)
        count = len(tokens)
        session.say(tokens.tolist())
        return Reply(tokens, np.full(count, -0.5, np.float32), np.zeros(count, np.int32), "stop", text, reply.read_by)


class Served:
    """A server with a tiny model, and the runs that were begun on it."""

    def __init__(self, client_s: float = 20.0, tokenizer: Any = None) -> None:
        tokenizer = tokenizer or tiny_tokenizer()
        engine = TransformersEngine(
            build_decoder(tiny_model(context=CONTEXT), rows=8, context=CONTEXT), tokenizer, (0,)
        )
        self.engine = engine
        self.tokens = ChatTokens(tokenizer)
        self.endpoint = Endpoint(engine, self.tokens, model="tiny")
        self.server = EndpointServer(self.endpoint, client_s=client_s)

    def begin(self, texts: Sequence[str] | None = None, **changes: Any) -> tuple[str, AgentRun]:
        given: dict[str, Any] = {
            "sampling": Sampling(max_tokens=6),
            "draw": _draw if texts is None else Scripted(texts),
            "seed_of": lambda branch, turn: 100 * branch + turn,
            "room": lambda opening, behind: CONTEXT - opening - behind,
            **changes,
        }
        return self.endpoint.open("run", RunRules(**given))

    def close(self) -> None:
        self.server.close()
        self.engine.close()

    def ask(
        self,
        key: str,
        path: str = "/v1/chat/completions",
        body: Any = None,
        *,
        method: str = "POST",
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        status, text = self.ask_raw(key, path, body, method=method, headers=headers)
        return status, json.loads(text)

    def ask_raw(
        self, key: str, path: str, body: Any = None, *, method: str = "POST", headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_address[1], timeout=patient(30))
        try:
            sent = {"Authorization": f"Bearer {key}"} if key else {}
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {**sent, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def chat(self, key: str, messages: Chat, **more: Any) -> dict[str, Any]:
        status, answer = self.ask(key, body={"model": "any", "messages": messages, **more})
        assert status == 200, answer
        found: dict[str, Any] = answer
        return found


def _draw(session: Session, sampling: Sampling, seed: int) -> Reply:
    return session.reply(sampling, seed=seed, deadline_s=patient(30))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def message(answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = answer["choices"][0]["message"]
    return found


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


# -- tokens -----------------------------------------------------------------------------------------


def test_what_extends_a_conversation_is_appended_and_nothing_is_tokenised_again(served: Served) -> None:
    key, run = served.begin()
    read = served.engine.health().details["tokens_read"]
    chat: Chat = [{"role": "system", "content": "be brief"}, user("one")]
    for text in ("two", "three", "four"):
        chat += [message(served.chat(key, chat)), user(text)]
    (branch,) = run.branches
    assert branch.opening == served.tokens.opening([ChatMessage("system", "be brief"), ChatMessage("user", "one")], ())
    assert [len(turn.said) > 0 for turn in branch.turns] == [False, True, True]
    assert branch.turns[1].said == tuple(tiny_tokenizer().encode("<|user|>two<|assistant|>"))
    once = len(branch.tokens(3)) - sum(len(turn.reply.tokens) for turn in branch.turns)
    assert served.engine.health().details["tokens_read"] - read <= once + 3  # and the last token of each reply


def test_replies_are_those_of_the_session_itself(served: Served) -> None:
    key, run = served.begin()
    first = message(served.chat(key, [user("hello")]))
    second = message(served.chat(key, [user("hello"), first, user("go on")]))
    (session,) = served.engine.open("by hand", tiny_tokenizer().encode("<|user|>hello<|assistant|>"))
    one = session.reply(Sampling(max_tokens=6), seed=0)
    session.say(tiny_tokenizer().encode("<|user|>go on<|assistant|>"))
    two = session.reply(Sampling(max_tokens=6), seed=1)
    session.close()
    assert [first["content"], second["content"]] == [one.text, two.text]
    for turn, reply in zip(run.branches[0].turns, (one, two), strict=True):
        np.testing.assert_array_equal(turn.reply.tokens, reply.tokens)


def test_a_conversation_that_breaks_its_prefix_becomes_a_fork_of_the_tokens_that_it_shares(served: Served) -> None:
    key, run = served.begin()
    chat: Chat = [user("one")]
    chat += [message(served.chat(key, chat)), user("two")]
    chat += [message(served.chat(key, chat)), user("three")]
    served.chat(key, [*chat[:2], user("something else")])
    served.chat(key, [user("summary"), user("three")])
    edited = [chat[0], {"role": "assistant", "content": "I never said that"}, user("two")]
    served.chat(key, edited)
    root, fork, summary, other = run.branches
    assert fork.opening[: len(root.tokens(1))] == root.tokens(1)
    assert fork.opening[len(root.tokens(1)) :] == tuple(tiny_tokenizer().encode("<|user|>something else<|assistant|>"))
    assert summary.opening != root.opening
    assert "I never said that" in tiny_tokenizer().decode(list(other.opening))
    assert [len(branch.turns) for branch in run.branches] == [2, 1, 1, 1]
    served.chat(key, [*chat[:2], user("something else"), fork_reply(run, 1), user("and on")])
    served.chat(key, chat)
    assert [len(branch.turns) for branch in run.branches] == [3, 2, 1, 1]  # each goes on by itself


def fork_reply(run: AgentRun, number: int) -> dict[str, Any]:
    return {"role": "assistant", "content": run.branches[number].messages[-1].text}


def test_the_same_asked_twice_is_drawn_twice_unless_the_client_has_no_answer(served: Served) -> None:
    key, run = served.begin()
    first = served.chat(key, [user("again")])
    served.chat(key, [user("again")])
    assert len(run.branches) == 2
    body = {"messages": [user("again")]}
    status, once_more = served.ask(key, body=body, headers={"X-Stainless-Retry-Count": "1"})
    assert status == 200 and message(once_more) == message(first) and once_more["id"] == first["id"]
    assert run.num_turns == 2


def test_white_space_that_an_agent_strips_breaks_nothing(served: Served) -> None:
    key, run = served.begin([" padded \n", "x"])
    chat = [user("one"), {"role": "assistant", "content": "padded"}, user("two")]
    assert message(served.chat(key, chat[:1]))["content"] == " padded \n"
    served.chat(key, chat)
    assert len(run.branches) == 1


def test_requests_at_once_on_one_conversation_fork_and_sessions_do_not_meet(served: Served) -> None:
    keys = [served.begin() for _ in range(2)]
    answers: list[dict[str, Any]] = []

    def ask(key: str) -> None:
        answers.append(served.chat(key, [user("at once")]))

    threads = [threading.Thread(target=ask, args=(key,)) for key, _ in keys for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patient(60))
    assert len(answers) == 6
    contents = [[branch.messages[-1].text for branch in run.branches] for _, run in keys]
    assert len(contents[0]) == 3 and contents[0] == contents[1]  # the seeds are those of branch and turn


# -- what a request can ask for ---------------------------------------------------------------------


def test_log_probs_and_usage_are_those_of_the_record(served: Served) -> None:
    key, run = served.begin()
    answer = served.chat(key, [user("numbers")], logprobs=True)
    (turn,) = run.branches[0].turns
    content = answer["choices"][0]["logprobs"]["content"]
    assert [one["logprob"] for one in content] == [float(value) for value in turn.reply.log_probs]
    assert answer["usage"]["prompt_tokens"] == len(run.branches[0].opening)
    assert answer["usage"]["completion_tokens"] == len(content) == len(turn.reply.tokens)


def test_limits_temperature_and_stop_are_honoured_and_counted(served: Served) -> None:
    key, run = served.begin()
    assert served.chat(key, [user("a")], max_tokens=2)["usage"]["completion_tokens"] <= 2
    assert served.chat(key, [user("a")], max_completion_tokens=100)["usage"]["completion_tokens"] <= 6
    cold = [message(served.chat(key, [user("a")], temperature=0.0, seed=n))["content"] for n in (1, 2)]
    assert cold[0] == cold[1] and run.num_resampled == 2
    key, _ = served.begin(["one STOP two"])
    assert message(served.chat(key, [user("a")], stop="STOP"))["content"] == "one "


def test_a_stream_says_the_same_in_pieces(served: Served) -> None:
    key, run = served.begin(["three small words", "next"])
    body = {"messages": [user("hi")], "stream": True, "stream_options": {"include_usage": True}}
    status, text = served.ask_raw(key, f"/s/{key}/v1/chat/completions", body)
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert status == 200 and events[-1] == "[DONE]"
    pieces = [json.loads(event) for event in events[:-1]]
    deltas = [piece["choices"][0]["delta"] for piece in pieces if piece["choices"]]
    assert deltas[0]["role"] == "assistant" and len(deltas) == 5
    assert "".join(delta.get("content", "") for delta in deltas) == "three small words"
    assert pieces[-2]["choices"][0]["finish_reason"] == "stop" and pieces[-1]["usage"]["completion_tokens"] == 18
    served.chat(key, [user("hi"), {"role": "assistant", "content": "three small words"}, user("more")])
    assert len(run.branches) == 1


def test_calls_of_tools_are_read_and_their_results_appended(served: Served) -> None:
    said = 'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"b": 2, "a": 1}}\n</tool_call>'
    key, run = served.begin([said, "It is 3."])
    answer = served.chat(key, [user("1 + 2?")], tools=[ADD])
    (call,) = message(answer)["tool_calls"]
    assert answer["choices"][0]["finish_reason"] == "tool_calls" and message(answer)["content"] == "Let me see."
    assert call["function"]["name"] == "add" and json.loads(call["function"]["arguments"]) == {"a": 1, "b": 2}
    call["function"]["arguments"] = '{"b":2,"a":1}'  # as another client would write it
    result = {"role": "tool", "tool_call_id": call["id"], "content": "3"}
    again = served.chat(key, [user("1 + 2?"), message(answer), result], tools=[ADD])
    assert message(again)["content"] == "It is 3."
    (branch,) = run.branches
    assert '"name": "add"' in tiny_tokenizer().decode(list(branch.opening))
    assert "<tool_response>\n3\n</tool_response>" in tiny_tokenizer().decode(list(branch.turns[1].said))
    served.chat(served.begin(["x"])[0], [user("1 + 2?")], tools=[ADD], tool_choice="none")


def test_a_template_that_knows_tools_says_them_itself() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
        "{% for call in m.tool_calls or [] %}call {{ call.function.arguments.a }}{% endfor %}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    tokens = ChatTokens(tokenizer)
    calls = (FunctionCall("add", '{"a": 7}', "c"),)
    written = [ChatMessage("user", "hi"), ChatMessage("assistant", "", calls), ChatMessage("tool", "3")]
    text = tokenizer.decode(list(tokens.opening(written, [ADD])))
    assert text == f"{json.dumps([ADD])}<|user|>hi<|end|><|assistant|>call 7<|end|><|tool|>3<|end|><|assistant|>"
    ended = tokenizer.decode(list(tokens.following(written[2:], [ADD], ended=True)))
    assert ended == "<|tool|>3<|end|><|assistant|>"


def test_a_template_that_drops_a_role_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{{ tools or '' }}{% for m in messages if m.role != 'tool' %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    with pytest.raises(Refused, match="drops messages of the role 'tool'"):
        ChatTokens(tokenizer).following([ChatMessage("tool", "3")], (), ended=False)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>not JSON</tool_call>",
        '<tool_call>{"name": "add", "arguments": "a"}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert read_reply(text, may_call=True) == ChatMessage("assistant", text)


def test_several_calls_are_read_in_order_also_without_the_last_end() -> None:
    one, two = '{"name": "a", "arguments": {}}', '{"name": "b"}'
    found = read_reply(f"<tool_call>{one}</tool_call>\n<tool_call>{two}", may_call=True)
    assert [call.name for call in found.calls] == ["a", "b"] and found.text == ""


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ([], "must be a JSON object"),
        ({}, "messages must be a list"),
        ({"messages": [{"role": "usr", "content": "x"}]}, "unknown role 'usr'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only text is read"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "nothing to reply to"),
        ({"messages": [user("x")], "n": 2}, "n=2 is not supported"),
        ({"messages": [user("x")], "temperature": -1}, "temperature must be a number >= 0, received -1"),
        ({"messages": [user("x")], "max_tokens": 0}, "max_tokens must be a whole number >= 1, received 0"),
        ({"messages": [user("x")], "stop": [""]}, "stop must be"),
        ({"messages": [user("x")], "tools": [{}]}, r"tools\[0\] must be a function"),
        ({"messages": [user("x")], "response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_in_one_line(body: Any, line: str) -> None:
    with pytest.raises(Refused, match=line) as found:
        read_request(body)
    assert "\n" not in str(found.value)


# -- who may ask, and for how long ------------------------------------------------------------------


def test_a_key_is_needed_and_must_be_known(served: Served) -> None:
    key, _ = served.begin()
    assert served.ask("", body={})[0] == 401
    status, answer = served.ask("sk-guessed", body={"messages": [user("x")]})
    assert status == 401 and answer["error"]["code"] == "invalid_api_key"
    assert served.ask("", "/v1/models", method="GET")[0] == 401
    assert served.ask(key, "/s/other/v1/models", method="GET")[0] == 401
    status, answer = served.ask("", f"/s/{key}/v1/models", method="GET")
    assert status == 200 and answer["data"][0]["id"] == "tiny"


def test_another_host_path_method_or_body_is_refused(served: Served) -> None:
    key, _ = served.begin()
    assert served.ask(key, "/v1/models", method="GET", headers={"Host": "evil.example"})[0] == 421
    assert served.ask(key, "/v1/completions", body={})[0] == 404
    assert served.ask(key, method="GET")[0] == 405
    assert served.ask(key, headers={"Content-Length": str(2**40)})[0] == 413
    status, answer = served.ask(key, body={"messages": []})
    assert status == 400 and "at least one message" in answer["error"]["message"]


def asked(content: str = "x", **more: Any) -> str:
    return json.dumps({"messages": [user(content)], **more})


def deeply(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    ("body", "headers", "status", "line"),
    [
        ("[" * 100_000, {}, 400, "nested too deeply"),
        (deeply(50_000), {}, 400, "nested too deeply"),
        ('{"messages": [' + deeply(20_000) + "]}", {}, 400, "nested too deeply"),
        ("{}", {"Content-Length": "9" * 5_000}, 413, "999... (5000 digits)"),
        ("{}", {"Content-Length": "²"}, 411, "needs a Content-Length"),
        (asked(max_tokens=10**400), {}, 400, "max_tokens"),
        (asked(temperature=10**400), {}, 400, "temperature"),
        (asked(content="\ud800"), {}, 400, ""),
        ("{}", {"X-Stainless-Retry-Count": "9" * 5_000}, 400, "messages must be a list"),
    ],
)
def test_a_body_that_no_parser_can_take_is_answered_in_one_line(
    served: Served, capfd: pytest.CaptureFixture[str], body: str, headers: dict[str, str], status: int, line: str
) -> None:
    key, _ = served.begin()
    connection = http.client.HTTPConnection("127.0.0.1", served.server.server_address[1], timeout=patient(30))
    try:
        connection.putrequest("POST", "/v1/chat/completions")
        sent = {"Authorization": f"Bearer {key}", "Content-Length": str(len(body)), **headers}
        for name, value in sent.items():
            connection.putheader(name, value.encode("latin-1"))
        connection.endheaders(body.encode())
        answer = connection.getresponse()
        told = json.loads(answer.read())["error"]["message"]
    finally:
        connection.close()
    assert answer.status == status and line in told and "\n" not in told and len(told) < 200
    assert capfd.readouterr().err == ""


def test_calls_with_arguments_too_deep_to_read_stay_text(served: Served) -> None:
    assert served.ask(served.begin()[0], "/v1/models", method="GET")[0] == 200
    text = '<tool_call>{"name": "add", "arguments": {"a": ' + deeply(20_000) + "}}</tool_call>"
    assert read_reply(text, may_call=True).text == text
    called = {"id": "c", "type": "function", "function": {"name": "add", "arguments": deeply(20_000)}}
    request = read_request({"messages": [{"role": "assistant", "content": "", "tool_calls": [called]}, user("x")]})
    assert request.messages[0].calls[0].arguments == deeply(20_000)


class Watched(type(tiny_tokenizer())):  # type: ignore[misc]
    """Says how long the longest text was that it made tokens of, and waits before long ones."""

    longest = 0
    held: threading.Event | None = None
    go_on: threading.Event | None = None

    def apply_chat_template(self, conversation: Chat, **options: Any) -> Any:
        size = sum(len(one["content"]) for one in conversation)
        Watched.longest = max(Watched.longest, size)
        if Watched.held is not None and size > 20_000:
            Watched.held.set()
            assert Watched.go_on is not None and Watched.go_on.wait(patient(30))
        return super().apply_chat_template(conversation, **options)


@pytest.fixture
def watched() -> Iterator[Served]:
    tokenizer = tiny_tokenizer()
    tokenizer.__class__ = Watched
    Watched.longest, Watched.held, Watched.go_on = 0, None, None
    made = Served(tokenizer=tokenizer)
    yield made
    if Watched.go_on is not None:
        Watched.go_on.set()
    made.close()


def test_a_request_too_large_for_the_conversation_is_refused_before_tokens_are_made_of_it(watched: Served) -> None:
    """A token has at most some tens of bytes, so a megabyte cannot fit into 2,048 of them."""
    key, run = watched.begin()
    status, answer = watched.ask(key, body={"messages": [user("word " * 200_000)]})
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
    assert "1000" in answer["error"]["message"] and run.refused == "tokens"
    assert 0 < Watched.longest < 1000
    told = watched.ask(key, body={"messages": [user("word " * 9_000)]})[1]["error"]["message"]
    assert told.startswith("the conversation has 450"), "what may fit is counted in tokens"
    assert message(watched.chat(key, [user("short")])) and not run.refused


def test_agents_are_served_while_another_one_waits_for_the_tokens_of_a_long_message(watched: Served) -> None:
    Watched.held, Watched.go_on = threading.Event(), threading.Event()
    long, short = watched.begin()[0], watched.begin()[0]
    found: list[int] = []
    body = {"messages": [user("x" * 30_000)]}
    thread = threading.Thread(target=lambda: found.append(watched.ask(long, body=body)[0]))
    thread.start()
    assert Watched.held.wait(patient(30))
    assert watched.chat(short, [user("hello")]) and not found
    Watched.go_on.set()
    thread.join(patient(30))
    assert found == [400]


def test_rewards_go_to_the_reply_that_was_last(served: Served) -> None:
    key, run = served.begin()
    path = f"/v1/sessions/{key}/reward"
    assert served.ask(key, path, {"reward": 1.0})[0] == 400  # nothing could have earned it
    first = message(served.chat(key, [user("a")]))
    assert served.ask(key, path, {"reward": 0.25})[0] == 200
    served.chat(key, [user("a"), first, user("b")])
    assert served.ask(key, path, {"reward": 0.5})[0] == 200
    assert served.ask(key, path, {"reward": float("nan")})[0] == 400
    assert served.ask(key, path, {"reward": 10**400})[0] == 400
    assert served.ask(key, path, {"reward": 0.25, "done": True})[0] == 200
    assert [turn.reward for turn in run.branches[0].turns] == [0.25, 0.75]
    status, answer = served.ask(key, body={"messages": [user("c")]})
    assert status == 409 and answer["error"]["code"] == "session_closed"


def test_closing_gives_up_the_reply_under_way(served: Served) -> None:
    drawing = threading.Event()

    def slowly(session: Session, sampling: Sampling, seed: int) -> Reply:
        drawing.set()
        return session.reply(Sampling(max_tokens=CONTEXT - 64, min_tokens=CONTEXT - 64), seed=seed)

    key, run = served.begin(draw=slowly)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(served.ask(key, body={"messages": [user("x")]})[0]))
    thread.start()
    assert drawing.wait(patient(20))
    served.endpoint.forget(key)
    thread.join(patient(20))
    assert found == [409] and run.num_turns == 0
    assert served.ask(key, body={"messages": [user("x")]})[0] == 409
    wait_until(lambda: served.engine.health().running == 0)


def test_time_turns_and_tokens_are_limits_with_names(served: Served) -> None:
    def too_late(session: Session, sampling: Sampling, seed: int) -> None:
        return None

    def broken(session: Session, sampling: Sampling, seed: int) -> Reply:
        raise Overdue("not whole")

    for changes, why, code in (
        ({"draw": too_late}, "deadline", "episode_deadline"),
        ({"max_turns": 0}, "turns", "episode_turns"),
        ({"room": lambda opening, behind: 0}, "tokens", "context_length_exceeded"),
    ):
        key, run = served.begin(**changes)
        status, answer = served.ask(key, body={"messages": [user("x")]})
        assert (status, run.refused, answer["error"]["code"]) == (400, why, code)
    key, run = served.begin(draw=broken)
    assert served.ask(key, body={"messages": [user("x")]})[0] == 500
    assert isinstance(run.fault, Overdue)


def test_a_client_that_says_nothing_is_hung_up_on_and_holds_no_row() -> None:
    served = Served(client_s=0.2)
    try:
        key, _ = served.begin()
        connection = http.client.HTTPConnection("127.0.0.1", served.server.server_address[1], timeout=patient(20))
        connection.putrequest("POST", "/v1/chat/completions")
        connection.putheader("Authorization", f"Bearer {key}")
        connection.putheader("Content-Length", "100")
        connection.endheaders(b"{")
        with pytest.raises((http.client.BadStatusLine, ConnectionError)):
            connection.getresponse()
        assert served.engine.health().running == 0
        served.chat(key, [user("others are served")])
    finally:
        served.close()


def test_who_has_a_key_is_served_beside_a_crowd_that_says_nothing() -> None:
    served = Served()
    served.server.strangers = Strangers(4)
    where = "127.0.0.1", served.server.server_address[1]
    key, _ = served.begin()
    client = http.client.HTTPConnection(*where, timeout=patient(20))
    shown = {"Authorization": f"Bearer {key}"}
    try:
        client.request("GET", "/v1/models", headers=shown)
        assert client.getresponse().read()
        with ExitStack() as crowd:
            strangers = [crowd.enter_context(socket.create_connection(where, patient(20))) for _ in range(12)]
            for stranger in strangers[:8]:
                assert stranger.recv(1) == b"", "hung up on for those who came later"
            client.request("GET", "/v1/models", headers=shown)
            assert client.getresponse().read(), "over the connection it had"
    finally:
        client.close()
        served.close()


def test_closing_the_server_ends_connections_that_are_open() -> None:
    served = Served()
    key, _ = served.begin()
    connection = http.client.HTTPConnection("127.0.0.1", served.server.server_address[1], timeout=patient(20))
    connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
    assert connection.getresponse().read()
    served.close()
    assert connection.sock.recv(1) == b""
    connection.close()


# -- real clients -----------------------------------------------------------------------------------


def test_the_client_of_openai_talks_to_it(served: Served) -> None:
    openai = pytest.importorskip("openai", reason="needs openai: it is in headway[dev]")
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    key, run = served.begin(["hello there", call, "streamed words"])
    with openai.OpenAI(base_url=served.server.address, api_key=key, max_retries=0) as client:
        chat: list[Any] = [user("hi")]
        first = client.chat.completions.create(model="tiny", messages=chat, logprobs=True)
        assert first.choices[0].message.content == "hello there" and first.usage.completion_tokens == 12
        assert {one.logprob for one in first.choices[0].logprobs.content} == {-0.5}
        chat += [first.choices[0].message, user("add")]
        served_tools: list[Any] = [ADD]
        with client.chat.completions.stream(model="tiny", messages=chat, tools=served_tools) as stream:
            called = stream.get_final_completion().choices[0].message
        assert called.tool_calls[0].function.name == "add"
        pieces = client.chat.completions.create(model="tiny", messages=[*chat[:1]], stream=True)
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == "streamed words"
        assert [model.id for model in client.models.list()] == ["tiny"]
        served.endpoint.run_of(key).close()
        with pytest.raises(openai.ConflictError, match="this session is closed"):
            client.chat.completions.create(model="tiny", messages=chat[:1])
    assert [len(branch.turns) for branch in run.branches] == [1, 1, 1]  # other tools are another conversation


def test_an_agent_of_pydantic_ai_calls_tools_in_one_conversation(served: Served) -> None:
    openai = pytest.importorskip("openai", reason="needs openai: it is in headway[dev]")
    pytest.importorskip("pydantic_ai", reason="needs pydantic-ai-slim[openai]: it is in headway[dev]")
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    call = '<tool_call>{"name": "roll", "arguments": {"sides": 6}}</tool_call>'
    key, run = served.begin([f"I roll.\n{call}", call, "You win."])

    def roll(sides: int) -> int:
        """Roll a die."""
        return sides - 2

    async def play() -> str:
        async with openai.AsyncOpenAI(base_url=served.server.address, api_key=key, max_retries=0) as client:
            model = OpenAIChatModel("tiny", provider=OpenAIProvider(openai_client=client))
            agent = Agent(model, instructions="Play dice.", tools=[roll])
            return (await agent.run("Roll twice.")).output

    assert asyncio.run(play()) == "You win."
    (branch,) = run.branches
    assert len(branch.turns) == 3
    assert "Roll a die." in tiny_tokenizer().decode(list(branch.opening))
    assert "<tool_response>\n4\n</tool_response>" in tiny_tokenizer().decode(list(branch.turns[2].said))
