"""`samples.jsonl`: some of what was generated, as text, so that what a reward pays for can be seen.

    rollout.info[SAMPLES] --learned from--> train    a line each: split, update, version, and what the collector said:
    score.samples         --evaluated-----> eval     uid, prompt, reply, truth, reward, finish, tokens, versions

Whoever makes samples says what is in one; here it is known only that `reward` is a number and `versions` the oldest and
the newest whose weights had a part in it. An episode that was played says its `steps` in place of tokens. One that has
`turns` is a whole conversation: of each turn the reply, what
the environment said to it (which nobody learns from), the reward, and the versions that drew it. Lines are written by
the driver, all of an update or evaluation at once and whole. The file is bounded: when it grows beyond its limit only
every second update and version stays in it, or every fourth, and so on. So a long run is seen as a whole, and of its
end more than of its beginning.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headway.coordinator.state_files_whole_files import written_beside
from headway.core.text_messages import Say, to_stderr
from headway.core.text_one_line import visible
from headway.core.types import SAMPLES, Batch, Score
from headway.core.types_opaque import JsonObject
from headway.runs.log_worker import Worker
from headway.runs.parsed_json import parsed

TRAIN, EVAL = "train", "eval"
LIMIT_BYTES = 16 * 2**20
MAX_PENDING = 10_000  # updates and evaluations
CLOSE_WITHIN_S = 30.0
Sample = JsonObject


class SampleLog:
    """The file of one run. It appears with its first line.

    A thread writes it, so that nobody waits for the disk. A disk that is full or does not answer is said once, and the
    log is off from then on.
    """

    def __init__(self, path: Path, *, limit_bytes: int = LIMIT_BYTES, say: Say = to_stderr) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._say = say
        self._worker: Worker[list[Sample]] = Worker("samples", self._write_or_turn_off)

    def __enter__(self) -> SampleLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """Everything is written, or the time is up."""
        self._worker.close()
        if not self._worker.has_ended(within_s):
            self._turn_off(f"the disk has not answered within {within_s:g} s")

    def go_on(self, updates: int, evaluated: Collection[int]) -> None:
        """Cut off what came after a checkpoint with so many updates and these versions evaluated: it comes again."""
        if self._path.exists():
            self._keep(lambda one: one["update"] <= updates if one["split"] == TRAIN else one["version"] in evaluated)

    def learned(self, update: int, batch: Batch) -> None:
        """What an update has learned from, as far as its rollouts show it."""
        lines = []
        for rollout in batch.rollouts:
            for sample in rollout.info.get(SAMPLES, ()):
                age = batch.version - min(sample["versions"])
                lines.append({"split": TRAIN, "update": update, "version": batch.version, "age": age, **sample})
        self._put(lines)

    def evaluated(self, score: Score) -> None:
        self._put([{"split": EVAL, "version": score.version, "age": 0, **sample} for sample in score.samples])

    def _put(self, lines: list[Sample]) -> None:
        if not lines:
            return
        try:
            self._worker.put(lines)
        except RuntimeError as error:  # no further thread
            self._turn_off(str(error))
        if len(self._worker) > MAX_PENDING:
            self._turn_off("the disk does not answer")

    def _write_or_turn_off(self, lines: list[Sample]) -> None:
        try:
            self._write(lines)
        except OSError as error:
            self._turn_off(error.strerror or str(error))

    def _turn_off(self, why: str) -> None:
        if self._worker.turn_off() is not None:
            self._say(f"{self._path} is off, the run goes on without it: {why}")

    def _write(self, lines: Sequence[Mapping[str, object]]) -> None:
        with open(self._path, "ab", buffering=0) as file:
            text = b"".join(_line(one) for one in lines)
            while text:  # a disk that becomes full takes a part first, and refuses the rest
                text = text[file.write(text) :]
            size = file.tell()
        if size > self._limit_bytes:
            kept = _thinned(read_samples(self._path), self._limit_bytes // 2)
            self._keep(lambda one: _moment(one) in kept)

    def _keep(self, is_kept: Callable[[Sample], bool]) -> None:
        """Write the file anew, beside it, with these lines only."""
        with written_beside(self._path) as beside, open(beside, "wb") as file:
            file.writelines(_line(one) for one in read_samples(self._path) if is_kept(one))


def _line(sample: Mapping[str, object]) -> bytes:
    return json.dumps(sample, separators=(",", ":"), default=str).encode() + b"\n"


def _moment(sample: Sample) -> tuple[str, int]:
    return sample["split"], sample["update"] if sample["split"] == TRAIN else sample["version"]


def _thinned(samples: Iterator[Sample], num_bytes: int) -> set[tuple[str, int]]:
    """Every second, fourth, eighth update and version, so that theirs fit; and the newest of both."""
    sizes: dict[tuple[str, int], int] = {}
    for one in samples:
        sizes[_moment(one)] = sizes.get(_moment(one), 0) + len(_line(one))
    kept, newest = set(sizes), {split: (split, number) for split, number in sizes}.values()
    stride = 1
    while sum(sizes[moment] for moment in kept) > num_bytes and kept != set(newest):
        stride *= 2
        kept = {moment for moment in sizes if moment[1] % stride == 0 or moment in newest}
    return kept


# -- reading ----------------------------------------------------------------------------------------


def read_samples(path: Path) -> Iterator[Sample]:
    """In the order they were written. A last line that a crash, or a run that goes on, has not finished is left out."""
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                sample = parsed(line)
            except ValueError:
                continue
            if isinstance(sample, dict) and _has_its_place(sample):
                yield sample


def _has_its_place(sample: Sample) -> bool:
    return {"split", "version"} <= set(sample) and (sample["split"] != TRAIN or "update" in sample)


def choose(samples: Iterable[Sample], *, at_most: int, split: str | None = None, by: str = "newest") -> list[Sample]:
    """The newest of them, or those with the best or the worst reward; the first is the most so."""
    found = [one for one in samples if split is None or one["split"] == split][::-1]
    if by != "newest":
        found.sort(key=lambda one: number(one.get("reward")), reverse=by == "best")
    return found[:at_most]


def number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


# -- in words ---------------------------------------------------------------------------------------


class InWords(NamedTuple):
    """A sample for people. What would move a terminal is spelt out."""

    where: str
    reward: str
    how: str
    prompt: str
    reply: str


def in_words(sample: Sample) -> InWords:
    is_train = sample["split"] == TRAIN
    when = f"update {sample['update']}" if is_train else f"version {sample['version']}"
    parts = ", ".join(f"{name} {number(value):.4g}" for name, value in sample.get("parts", {}).items())
    versions = sample.get("versions", (sample["version"],))
    oldest, newest = min(versions), max(versions)
    made = f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"
    age = f", {sample['age']} old" if sample.get("age") else ""
    truth = "" if sample.get("truth") is None else f"; truth: {sample['truth']}"
    return InWords(
        where=visible(f"{sample['split']}, {when}, {sample.get('uid', '')}"),
        reward=f"reward {number(sample.get('reward')):.4g}" + (f" ({parts})" if parts else ""),
        how=visible(f"{_length(sample)} of {made}{age}{truth}"),
        prompt=visible(str(sample.get("prompt", ""))),
        reply=visible(str(sample.get("reply", ""))),
    )


def _length(sample: Sample) -> str:
    """Of what a model wrote, or of an episode in which nothing was written."""
    if "steps" in sample:
        return f"{sample['steps']} steps"
    return f"{sample.get('tokens', '?')} tokens ({sample.get('finish', '?')})"


class TurnWords(NamedTuple):
    """One turn of a conversation for people."""

    reply: str
    how: str
    observation: str


def turns_in_words(sample: Sample) -> list[TurnWords]:
    """The turns of a sample that is a conversation; none where it is a single reply."""
    return [_turn_in_words(turn) for turn in sample.get("turns", ())]


def _turn_in_words(turn: JsonObject) -> TurnWords:
    oldest, newest = turn.get("versions", ("?", "?"))
    made = f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"
    how = f"reward {number(turn.get('reward')):.4g}, {turn.get('tokens', '?')} tokens of {made}"
    if turn.get("read"):
        how += f"; then {turn['read']} tokens read, not trained on"
    return TurnWords(visible(str(turn.get("reply", ""))), visible(how), visible(str(turn.get("observation", ""))))
