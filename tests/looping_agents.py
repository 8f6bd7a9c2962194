"""Agents that have their own loop, with nothing but the standard library between them and the endpoint."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from counting_games import Counting


def call(url: str, key: str, body: dict[str, Any] | None = None) -> Any:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise RuntimeError(error.read().decode()) from None


def ask(base_url: str, key: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = call(f"{base_url}/chat/completions", key, {"messages": messages})["choices"][0]["message"]
    return message


def user(text: object) -> dict[str, Any]:
    return {"role": "user", "content": str(text)}


def short(base_url: str, api_key: str, seed: int) -> float:
    """Asks once: two lines."""
    text = ask(base_url, api_key, [user(f"say {random.Random(seed).randrange(100)}")])["content"]
    return len(set(text)) / (1 + len(text))


def count(base_url: str, api_key: str, seed: int) -> None:
    """Plays the counting game, and gives its rewards by calls."""
    game = Counting()
    messages, done = [user(game.reset(seed))], False
    while not done:
        reply = ask(base_url, api_key, messages)
        step = game.step(reply["content"])
        call(f"{base_url}/sessions/{api_key}/reward", api_key, {"reward": step.reward, "done": step.done})
        messages += [reply, user(step.text)]
        done = step.done


def fork(base_url: str, api_key: str, seed: int) -> float:
    """Says something else to the first reply, after the second one."""
    first = ask(base_url, api_key, [user("begin")])
    ask(base_url, api_key, [user("begin"), first, user("go on")])
    call(f"{base_url}/sessions/{api_key}/reward", api_key, {"reward": 0.5})
    ask(base_url, api_key, [user("begin"), first, user("or rather")])
    return 1.0


def forking(base_url: str, api_key: str, seed: int) -> float:
    """The same, for what is worth something else each time."""
    return fork(base_url, api_key, seed) + short(base_url, api_key, seed)


def paid(base_url: str, api_key: str, seed: int) -> dict[str, Any]:
    reply = ask(base_url, api_key, [user("work")])
    call(f"{base_url}/sessions/{api_key}/reward", api_key, {"reward": 0.25})
    ask(base_url, api_key, [user("work"), reply, user("more")])
    return {"reward": 2.0, "success": True, "calls": 2}


def unlike(base_url: str, api_key: str, seed: int) -> float:
    """Begins each run in its own way."""
    return float(bool(ask(base_url, api_key, [user(f"I am {api_key}")])))


def shaky(base_url: str, api_key: str, seed: int) -> float:
    """Raises, after it has asked, as often as there are files in a folder."""
    ask(base_url, api_key, [user("hello")])
    for fault in Path(os.environ["FAULTS"]).iterdir():
        try:
            fault.unlink()
        except FileNotFoundError:  # another one took it in this moment
            continue
        raise ConnectionError("the shop is closed")
    return 1.0


def broken(base_url: str, api_key: str, seed: int) -> float:
    ask(base_url, api_key, [user("hello")])
    raise ConnectionError("the shop is closed for good")


def endless(base_url: str, api_key: str, seed: int) -> float:
    """Goes on until it is refused."""
    messages = [user("go")]
    while True:
        messages += [ask(base_url, api_key, messages), user("on")]


def hanging(base_url: str, api_key: str, seed: int) -> float:
    """Gives a reward where the environment says so, and does not return before its session is closed."""
    ask(base_url, api_key, [user("hello")])
    reward = f"{base_url}/sessions/{api_key}/reward"
    if os.environ.get("PAID"):
        call(reward, api_key, {"reward": 0.5})
    while True:
        time.sleep(0.05)
        call(f"{base_url}/models", api_key)


def loser(base_url: str, api_key: str, seed: int) -> float:
    """The first one to come here does not return before its session is closed; the others do at once."""
    ask(base_url, api_key, [user("hello")])
    try:
        Path(os.environ["FAULTS"], "one").touch(exist_ok=False)
    except FileExistsError:
        return 1.0
    return hanging(base_url, api_key, seed)


def silent(base_url: str, api_key: str, seed: int) -> float:
    return 1.0


def worthless(base_url: str, api_key: str, seed: int) -> float:
    ask(base_url, api_key, [user("hello")])
    return float("nan")


def unpaid(base_url: str, api_key: str, seed: int) -> None:
    ask(base_url, api_key, [user("hello")])


async def later(base_url: str, api_key: str, seed: int) -> float:
    """The agent `short`, asynchronous, with a pause in which others go on."""
    await asyncio.sleep(0)
    return await asyncio.to_thread(short, base_url, api_key, seed)


async def sleeping(base_url: str, api_key: str, seed: int) -> float:
    """Does not return, and leaves a file when it is cancelled."""
    try:
        await asyncio.sleep(600)
    finally:
        Path(os.environ["FAULTS"], api_key).touch()
    return 1.0


async def leaving(base_url: str, api_key: str, seed: int) -> float:
    await asyncio.to_thread(ask, base_url, api_key, [user("hello")])
    raise SystemExit(3)


def interrupted(base_url: str, api_key: str, seed: int) -> float:
    ask(base_url, api_key, [user("hello")])
    raise KeyboardInterrupt


async def with_openai(base_url: str, api_key: str, seed: int) -> float:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        reply = await client.chat.completions.create(model="policy", messages=[user("say something")])
        return float(len(reply.choices[0].message.content))


async def with_pydantic_ai(base_url: str, api_key: str, seed: int) -> dict[str, Any]:
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        agent = Agent(OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=client)))
        said = await agent.run("say something")
        again = await agent.run("and more", message_history=said.all_messages())
    return {"reward": float(len(again.output)), "success": True}
