"""What runs in an engine's own process: one loop that answers messages between two steps of a model.

      socket ---> messages, all there are ---> one step, if anything runs and nothing is paused ---> socket
                     ask, score, drop, cut, apply, pause, resume        tokens, each with the version it was made by

One thread, so a message and a step never overlap. Weights are replaced by a message: every token of a step was made by
the weights that the last `apply` before it brought, and by no others. (vLLM's asynchronous scheduling would return the
tokens of the step before, so it is off.) When the socket ends, this process ends; when its parent dies, the kernel ends
it.

What is said are plain values, which any two versions of Python agree on. This file is also used where Headway is not
installed (vllm_host.py): it needs the standard library and children/ alone.

A continuation that is to be scored is a sample whose tokens are known: it comes back as a sample, whole, after the step
that has read it.

      parent -> host   start spec | ask key prompt seed sampling salt | score key prompt continuation
                       drop keys | cut keys
                       apply number ... | pause number | resume number
      host -> parent   ready | broken why | sample key ... | failed key why | done number | refused number why | beat
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
import traceback
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from headway.core.types_opaque import JsonObject
from headway.runtimes.child_process_channel import Channel, HungUp, not_lost
from headway.runtimes.child_process_in_child import begin

PICKLE = 4
Layout = list[tuple[str, str, tuple[int, ...], int]]
"""Name, dtype, shape and offset of each tensor in a file of weights."""
News = tuple[str, list[int], list[float], bool]
"""New tokens of one sample with their log-probabilities, and whether it has reached its longest length."""

UNTOUCHED = {"temperature": 1.0, "min_tokens": 0, "stop": ()}
"""How a sample is treated that is only scored."""


def pack(message: tuple[Any, ...]) -> bytes:
    return pickle.dumps(message, PICKLE)


class Stepper(Protocol):
    """A model that makes one step for all samples under way."""

    def add(self, key: str, prompt: Sequence[int], seed: int, sampling: JsonObject, salt: str) -> None: ...

    def add_known(self, key: str, prompt: Sequence[int], continuation: Sequence[int], salt: str) -> None:
        """Read a sample whose tokens are known: one of the next steps tells all of them, as its last news."""
        ...

    def step(self) -> Iterable[News]: ...

    def drop(self, keys: list[str]) -> None: ...

    def check(self, layout: Layout) -> None:
        """Refuse weights that cannot be taken, before anything is changed."""
        ...

    def load(self, path: str, layout: Layout) -> None: ...

    def forget(self, running_too: bool) -> None:
        """Let no later sample use what earlier weights left in the cache."""
        ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def close(self) -> None: ...


class _Sample:
    """One sample under way; `known` are its tokens, if it is only to be scored."""

    def __init__(
        self, prompt: Sequence[int], seed: int, sampling: JsonObject, salt: str, known: Sequence[int] = ()
    ) -> None:
        self.known = known
        self.prompt = prompt
        self.seed = seed
        self.sampling = sampling
        self.salt = salt
        self.tokens = array("i")
        self.log_probs = array("f")
        self.versions = array("i")


class EngineHost:
    """Samples under way, and the version that makes their tokens."""

    def __init__(self, channel: Channel, stepper: Stepper, spec: JsonObject) -> None:
        self._channel = channel
        self._stepper = stepper
        self._stops = frozenset(spec["stop_tokens"])
        self._recompute: bool = spec["recompute"]
        self._beat_s: float = spec["beat_s"]
        self._version: int = spec["version"]
        self._applied = 0  # how often; what a sample's cache is salted with
        self._samples: dict[str, _Sample] = {}
        self._has_sessions = False
        self._is_paused = False
        self._tokens = self._steps = 0
        self._said_at = time.monotonic()

    @property
    def is_idle(self) -> bool:
        return self._is_paused or not self._samples

    def handle(self, message: tuple[Any, ...], fds: list[int]) -> None:
        kind, *rest = message
        try:
            getattr(self, f"_on_{kind}")(*rest, *fds)
        finally:
            for fd in fds:
                os.close(fd)

    def step(self) -> None:
        """One token, or a few, for all who have a place; what is whole goes out."""
        whole = []
        for key, tokens, log_probs, is_longest in self._stepper.step():
            if key not in self._samples:
                continue
            sample = self._samples[key]
            finish = self._extend(sample, tokens, log_probs)
            if finish or is_longest:
                self._send_sample(key, sample, finish or "length")
                if not is_longest:
                    whole.append(key)
        self._stepper.drop(whole)
        self._steps += 1
        if time.monotonic() - self._said_at > self._beat_s:
            self.say("beat")

    def say(self, kind: str, *rest: Any) -> None:
        self._said_at = time.monotonic()
        self._channel.send(pack((kind, (self._tokens, self._steps, len(self._samples)), *rest)))

    # -- messages -----------------------------------------------------------------------------------

    def _on_ask(self, key: str, prompt: Sequence[int], seed: int, sampling: JsonObject, salt: str) -> None:
        self._has_sessions = self._has_sessions or bool(salt)
        self._take_on(key, _Sample(prompt, seed, sampling, salt))

    def _on_score(self, key: str, prompt: Sequence[int], continuation: Sequence[int]) -> None:
        self._take_on(key, _Sample(prompt, 0, UNTOUCHED, "", continuation))

    def _take_on(self, key: str, sample: _Sample) -> None:
        self._samples[key] = sample
        try:
            self._begin(key)
        except ValueError as error:  # this one cannot be; the others go on
            self._fail(key, _first_line(error))

    def _on_drop(self, keys: list[str]) -> None:
        here = [key for key in keys if self._samples.pop(key, None) is not None]
        self._stepper.drop(here)

    def _on_cut(self, keys: list[str]) -> None:
        """What there is of these samples is the samples; one without a token is lost."""
        here = [key for key in keys if key in self._samples]
        self._stepper.drop(here)
        for key in here:
            sample = self._samples[key]
            if sample.tokens:
                self._send_sample(key, sample, "deadline")
            else:
                self._fail(key, "")

    def _on_apply(self, number: int, version: int, layout: Layout, fd: int) -> None:
        try:
            self._stepper.check(layout)
        except ValueError as error:
            return self.say("refused", number, f"{type(error).__name__}: {error}")
        # By its name in /proc, so that a worker of vLLM in another process can open it as well.
        self._stepper.load(f"/proc/{os.getpid()}/fd/{fd}", layout)
        self._version = version
        self._applied += 1
        self._begin_again()
        self.say("done", number)
        return None

    def _on_pause(self, number: int) -> None:
        self._is_paused = True
        self.say("done", number)

    def _on_resume(self, number: int) -> None:
        self._is_paused = False
        self.say("done", number)

    # -- samples ------------------------------------------------------------------------------------

    def _begin(self, key: str) -> None:
        sample = self._samples[key]
        now = f"{self._version}/{self._applied}"  # a version may come back, but not its cache: others have used it
        if sample.known:
            self._stepper.add_known(key, sample.prompt, sample.known, now)
        else:
            self._stepper.add(key, sample.prompt, sample.seed, sample.sampling, sample.salt or now)

    def _begin_again(self) -> None:
        """Samples without a token read their prompts with the new weights; the others go on, or read again as well."""
        unread = [key for key, sample in self._samples.items() if not sample.tokens]
        self._stepper.drop(unread)
        if self._recompute or not self._has_sessions:  # a salt of their own keeps their prefixes over new weights
            self._stepper.forget(running_too=self._recompute)
        for key in unread:
            self._begin(key)

    def _extend(self, sample: _Sample, tokens: list[int], log_probs: list[float]) -> str:
        """Take tokens up to the end of the sample, if it is among them."""
        sampling = sample.sampling
        for token, log_prob in zip(tokens, log_probs, strict=True):
            sample.tokens.append(token)
            sample.log_probs.append(log_prob if sampling["temperature"] > 0 else 0.0)
            sample.versions.append(self._version)
            if sample.known:
                continue
            self._tokens += 1
            if len(sample.tokens) >= sampling["min_tokens"] and (token in self._stops or self._says_stop(sample)):
                return "stop"
        return ""

    def _says_stop(self, sample: _Sample) -> bool:
        stop = sample.sampling["stop"]
        if not stop:
            return False
        tail = self._stepper.decode(sample.tokens[-max(map(len, stop)) - 4 :].tolist())
        return any(text in tail for text in stop)

    def _fail(self, key: str, why: str) -> None:
        del self._samples[key]
        self.say("failed", key, why)

    def _send_sample(self, key: str, sample: _Sample, finish: str) -> None:
        del self._samples[key]
        parts = (sample.tokens.tobytes(), sample.log_probs.tobytes(), sample.versions.tobytes())
        self.say("sample", key, *parts, finish)


def serve(fd: int, build: Callable[[JsonObject], Stepper]) -> None:
    """The whole life of the process."""
    channel = begin(fd, ignored=(signal.SIGINT, signal.SIGTERM))
    stepper: Stepper | None = None
    try:
        start = next(channel.frames(), None)  # nothing else is said before it is answered
        if start is None:
            return
        _, spec = pickle.loads(start[0])
        stepper = build(spec)
        host = EngineHost(channel, stepper, spec)
        host.say("ready")
        while True:
            while channel.wait(None if host.is_idle else 0.0):
                for body, fds in channel.receive():
                    host.handle(pickle.loads(body), not_lost(fds))
            host.step()
    except HungUp:
        pass  # the parent is gone, or needs this process no longer
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent says it, and replaces this process
        traceback.print_exc()
        channel.send(pack(("broken", (0, 0, 0), f"{type(error).__name__}: {_first_line(error)}")))
    finally:
        if stepper is not None:
            stepper.close()
        sys.stderr.flush()
        os._exit(0)  # threads of the libraries below have nothing to save


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or "no message").splitlines()[0]
