"""samples.jsonl: whole lines, a bound, what a resumed run keeps, and how samples are shown."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headway.cli.samples_sample_view import show
from headway.core.text_one_line import visible
from headway.core.types import SAMPLES, Batch, Rollout, Score
from headway.runs.samples import EVAL, TRAIN, SampleLog, choose, in_words, read_samples


def sample(reward: float = 0.5, **more: Any) -> dict[str, Any]:
    about = {"uid": "q/1", "prompt": "Why?", "reply": "Because.", "truth": "so", "finish": "stop", "tokens": 3}
    return {**about, "reward": reward, "versions": [4, 5], **more}


def batch(version: int, *samples: dict[str, Any]) -> Batch:
    return Batch(version, (Rollout(None), Rollout(None, info={SAMPLES: list(samples)})))


def moments(path: Path) -> list[tuple[str, int]]:
    found = [(one["split"], one["update"] if one["split"] == TRAIN else one["version"]) for one in read_samples(path)]
    return list(dict.fromkeys(found))


# -- writing ----------------------------------------------------------------------------------------


def test_what_was_learned_from_and_evaluated_is_written_a_line_each(tmp_path: Path) -> None:
    with SampleLog(tmp_path / "samples.jsonl") as log:
        log.learned(7, batch(6, sample(0.5), sample(1.0, uid="q/2")))
        log.evaluated(Score(6, 0.1, samples=(sample(0.25, versions=[6, 6]),)))
    first, second, third = (json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines())
    assert first == {"split": TRAIN, "update": 7, "version": 6, "age": 2, **sample(0.5)}
    assert (second["uid"], second["reward"]) == ("q/2", 1.0)
    assert third == {"split": EVAL, "version": 6, "age": 0, **sample(0.25, versions=[6, 6])}


def test_a_full_disk_turns_the_log_off_and_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "samples.jsonl").symlink_to("/dev/full")
    with SampleLog(tmp_path / "samples.jsonl", say=said.append) as log:
        for update in range(1, 4):
            log.learned(update, batch(update, sample()))
    expected = f"{tmp_path / 'samples.jsonl'} is off, the run goes on without it: No space left on device"
    assert said == [expected]


def test_without_samples_there_is_no_file(tmp_path: Path) -> None:
    log = SampleLog(tmp_path / "samples.jsonl")
    log.learned(1, Batch(0, (Rollout(None), Rollout(None, info={"uid": "q"}))))
    log.evaluated(Score(1, 0.5))
    log.go_on(1, [1])
    assert list(tmp_path.iterdir()) == []


def test_a_truth_of_any_kind_can_be_written(tmp_path: Path) -> None:
    with SampleLog(tmp_path / "samples.jsonl") as log:
        log.learned(1, batch(0, sample(truth={"a": Path("b")}, reply="\ud800 \u2028 \x1b[31m")))
    (read,) = read_samples(tmp_path / "samples.jsonl")
    assert read["truth"] == {"a": "b"}
    assert read["reply"] == "\ud800 \u2028 \x1b[31m"


def test_the_file_is_bounded_and_shows_the_whole_run(tmp_path: Path) -> None:
    path, limit = tmp_path / "samples.jsonl", 20_000
    for update in range(1, 1001):
        with SampleLog(path, limit_bytes=limit) as log:
            log.learned(update, batch(update - 1, *[sample(update)] * 2))
            if update % 10 == 0:
                log.evaluated(Score(update, 0.0, samples=(sample(update),)))
        assert path.stat().st_size <= limit
    updates = [number for split, number in moments(path) if split == TRAIN]
    assert updates == sorted(updates)
    assert updates[-1] == 1000
    gaps = [after - before for before, after in pairwise(updates)]
    assert updates[0] <= 64
    assert max(gaps) <= 64
    assert gaps[0] > gaps[-2]
    assert all(len([one for one in read_samples(path) if one.get("update") == u]) == 2 for u in updates[::7])
    assert (EVAL, 1000) in moments(path)
    assert list(tmp_path.iterdir()) == [path]


def test_one_update_beyond_the_limit_is_kept_alone(tmp_path: Path) -> None:
    with SampleLog(tmp_path / "samples.jsonl", limit_bytes=10) as log:
        for update in (1, 2, 3):
            log.learned(update, batch(0, sample(), sample()))
    assert moments(tmp_path / "samples.jsonl") == [(TRAIN, 3)]


def test_a_resumed_run_goes_on_after_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with SampleLog(path) as log:
        for update in range(1, 7):
            log.learned(update, batch(update - 1, sample()))
            if update % 2 == 0:
                log.evaluated(Score(update, 0.0, samples=(sample(),)))
    path.write_bytes(path.read_bytes() + b'{"split":"train","upd')  # killed in the middle of a line
    again = SampleLog(path)
    again.go_on(4, [2])  # the evaluation of version 4 was under way
    assert moments(path) == [(TRAIN, 1), (TRAIN, 2), (EVAL, 2), (TRAIN, 3), (TRAIN, 4)]
    again.evaluated(Score(4, 0.0, samples=(sample(),)))
    again.learned(5, batch(4, sample()))
    again.close()
    assert moments(path)[-2:] == [(EVAL, 4), (TRAIN, 5)]
    assert path.read_bytes().endswith(b"}\n")


# -- choosing and showing ---------------------------------------------------------------------------


def test_the_newest_the_best_and_the_worst_are_found(tmp_path: Path) -> None:
    with SampleLog(tmp_path / "samples.jsonl") as log:
        for update, reward in enumerate((3.0, 1.0, 2.0), 1):
            log.learned(update, batch(0, sample(reward)))
        log.evaluated(Score(3, 0.0, samples=(sample(9.0),)))

    def rewards(**options: Any) -> list[float]:
        return [one["reward"] for one in choose(read_samples(tmp_path / "samples.jsonl"), **options)]

    assert rewards(at_most=2) == [9.0, 2.0]
    assert rewards(at_most=9, split=TRAIN) == [2.0, 1.0, 3.0]
    assert rewards(at_most=2, by="best") == [9.0, 3.0]
    assert rewards(at_most=2, split=TRAIN, by="best") == [3.0, 2.0]
    assert rewards(at_most=1, by="worst") == [1.0]


def test_a_sample_in_words() -> None:
    parts = {"task": 1.0, "length": -0.5}
    words = in_words({"split": TRAIN, "update": 7, "version": 6, "age": 2, **sample(0.5, parts=parts)})
    assert words.where == "train, update 7, q/1"
    assert words.reward == "reward 0.5 (task 1, length -0.5)"
    assert words.how == "3 tokens (stop) of versions 4 to 5, 2 old; truth: so"
    words = in_words({"split": EVAL, "version": 6, "age": 0, **sample(versions=[6, 6], truth=None)})
    assert (words.where, words.how) == ("eval, version 6, q/1", "3 tokens (stop) of version 6")
    played = {"uid": "both", "reply": "go east > take key", "reward": 0.5, "steps": 2, "versions": [6]}
    words = in_words({"split": EVAL, "version": 6, "age": 0, **played})
    assert (words.where, words.reply) == ("eval, version 6, both", "go east > take key")
    assert words.how == "2 steps of version 6"


@pytest.mark.parametrize("text", ["[bold red]x[/] [/nothing] [link=http://a]b[/link]", "100 %", ":warning:"])
def test_what_a_model_wrote_is_never_markup(text: str) -> None:
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=False)
    show([{"split": EVAL, "version": 1, **sample(reply=text, prompt=text, truth=text, uid=text)}], console)
    assert out.getvalue().count(text) == 4


def test_what_would_move_a_terminal_is_spelt_out() -> None:
    assert visible("a\x1b[2Jb\r\x07\u202ec\td\ne é 漢") == "a\\x1b[2Jb\\r\\x07\\u202ec\td\ne é 漢"
    out = io.StringIO()
    show([{"split": EVAL, "version": 1, **sample(reply="\x1b]0;title\x07")}], Console(file=out, width=80))
    assert "\x1b" not in out.getvalue()
    assert "\\x1b]0;title\\x07" in out.getvalue()


def test_long_lines_are_wrapped_and_rewards_are_coloured() -> None:
    out = io.StringIO()
    console = Console(file=out, width=40, force_terminal=True, color_system="standard", highlight=False, soft_wrap=True)
    some = [{"split": EVAL, "version": 1, **sample(reward, reply="word " * 50)} for reward in (0.0, 0.5, 1.0)]
    show(some, console)
    text = out.getvalue()
    for reward, colour in (("0", 31), ("0.5", 33), ("1", 32)):
        assert f";{colour}mreward {reward}" in text
    assert max(len(Console(file=io.StringIO()).render_str(line, markup=False)) for line in text.split("\n")) < 80
