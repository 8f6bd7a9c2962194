"""`headway simulate` for large clusters: what it prints, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from headway.cli import main

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.cli.options_output.OUT", Console(highlight=False, soft_wrap=True, width=120))


def simulated(capsys: Output, words: str) -> str:
    assert main(["simulate", *words.split()]) == 0
    return capsys.readouterr().out


def cells(out: str, name: str) -> list[str]:
    """Of the row that begins so."""
    (row,) = [line for line in out.splitlines() if line.startswith(name + "  ")]
    return row.removeprefix(name).split()


SMALL = "--collect 1 --learn 0.5 --updates 20"


def test_sizes_are_compared_in_one_table_and_the_coordinator_is_seen_to_saturate(capsys: Output) -> None:
    words = "--collectors 10,50,400 --tickets_per_batch 10,50,400 --leads 2 --ticket_cost 0.01 --dispatch free"
    out = simulated(capsys, f"{SMALL} {words}")
    table = [line.split() for line in out.splitlines() if line.split()[:1] in (["10"], ["50"], ["400"])]
    assert [row[:2] for row in table] == [["10", "2"], ["50", "2"], ["400", "2"]]
    per_s = [float(row[3]) for row in table]
    assert 9 < per_s[0] < 10
    assert 85 < per_s[2] <= 100, "it can do a hundred"
    busy = [float(cell.removesuffix("%")) for cell in cells(out, "coordinator busy")]
    assert busy == sorted(busy)
    assert (busy[0] < 12, busy[2] > 90) == (True, True)
    assert "coordinator: at most 100 tickets/s; 100 collectors that are never held up would ask for that" in out
    assert "coordinator: it holds back runs of 400 collectors and more (busy over 90%)" in out
    assert "recommended" not in out


def test_what_failures_cost_is_told_for_each_lead(capsys: Output) -> None:
    words = "--collectors 8 --tickets_per_batch 8 --engines 2 --generate 0.5 --engine_slots 2 --leads 1,2 "
    words += "--dispatch free --collector_mtbf_s 60 --collector_repair_s 5 --engine_mtbf_s 90 --node_mtbf_s 1e2 "
    words += "--collectors_per_node 4 --learner_mtbf_s 40 --learner_repair_s 3 --save_every_s 5 --save 0.1 "
    words += "--weights_gb 2.5 --fanout tree:2"
    out = simulated(capsys, f"--collect 1 --learn 0.5 --updates 60 {words}")
    for name in ("failures of collectors", "failures of engines", "failures of nodes", "failures of learners"):
        assert all(int(cell) > 0 for cell in cells(out, name)), name
    for name in ("tickets flown again", "restarts of collectors", "most restarts of one", "resumes from a checkpoint"):
        assert all(int(cell) > 0 for cell in cells(out, name)), name
    assert all(int(cell) >= 0 for cell in cells(out, "updates made again"))
    for name in ("collecting for nothing", "collectors wait for weights"):
        assert all(0 < float(cell.removesuffix("%")) < 100 for cell in cells(out, name)), name
    assert "weights: the last of 2 engines has them after 2 s" in out
    assert "coordinator" not in out, "nobody asked what it costs"
    assert "recommended: max_lead=" in out


def test_only_what_was_asked_about_is_printed(capsys: Output) -> None:
    out = simulated(capsys, f"{SMALL} --leads 1 --engines 1 --generate 1")
    assert not any(word in out for word in ("failures", "weights", "coordinator", "of lead"))


def test_a_large_batch_is_simulated_for_fewer_updates(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.cli.simulate.MANY_TICKETS", 3000)
    out = simulated(capsys, "--collectors 4,100 --tickets_per_batch 4,100 --leads 0")
    (small, large) = [line.split() for line in out.splitlines() if line.split()[:1] in (["4"], ["100"])]
    assert (small[2], large[2]) == ("0.5", "0.5")


def test_weights_take_the_measured_speed_unless_told(capsys: Output) -> None:
    for words, seconds in (("", "4"), (" --publish_gb_per_s 10", "1"), (" --fanout chain", "1.019")):
        out = simulated(capsys, f"{SMALL} --leads 1 --collectors 4 --tickets_per_batch 4 --weights_gb 2.5{words}")
        assert f"weights: the last of 4 collectors has them after {seconds} s" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--collectors 1,x", "--collectors must be a whole number, or one a size such as 100,1000, received '1,x'"),
        ("--collectors 0", "--collectors must be at least 1, received 0"),
        ("--engines 1.5", "--engines must be a whole number, or one a size such as 100,1000, received 1.5"),
        (
            "--collectors 1,2 --tickets_per_batch 1,2,3",
            "--collectors has 2 sizes where another option has 3: one for all, or as many",
        ),
        ("--ticket_cost quick", "unknown ticket_cost 'quick'; allowed: "),
        ("--ticket_cost -1", "ticket_cost must be >= 0 seconds, received -1"),
        ("--generate 1", "--generate says nothing without --engines"),
        ("--engines 2 --generate fast", "duration 'fast' is not understood; allowed: "),
        ("--engines 2 --engine_slots 0", "engine_slots must be >= 1, received 0"),
        ("--engine_mtbf_s 5", "--engine_mtbf_s says nothing without --engines"),
        ("--collector_mtbf_s 0", "--collector_mtbf_s must be a number above 0, received 0"),
        ("--collector_mtbf_s often", "--collector_mtbf_s must be a number above 0, received 'often'"),
        ("--collector_repair_s 5", "--collector_repair_s says nothing without --collector_mtbf_s"),
        ("--node_mtbf_s 9 --node_repair_s -1", "--node_repair_s must be a number of at least 0, received -1"),
        ("--collectors_per_node 4", "--collectors_per_node says nothing without --node_mtbf_s"),
        ("--weights_gb -1", "--weights_gb must be a number above 0, received -1"),
        ("--fanout chain", "--fanout says nothing without --weights_gb"),
        ("--weights_gb 1 --fanout star", "unknown fanout 'star'; allowed: each, chain, tree:D with D of 2 or more"),
        ("--weights_gb 1 --publish_gb_per_s nan", "--publish_gb_per_s must be a number above 0, received "),
        ("--learner_mtbf_s 5 --save_every_s 0", "--save_every_s must be a number above 0, received 0"),
        ("--learner_mtbf_s 1 --learner_repair_s 1", "the learner fails too often to get beyond update "),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words: str, message: str, capsys: Output) -> None:
    assert main(["simulate", "--leads", "1", *words.split()]) != 0
    told = capsys.readouterr().err
    assert told.startswith(f"headway: {message}")
    assert told.count("\n") == 1


def test_a_recorded_run_can_be_put_on_a_cluster(capsys: Output, tmp_path: Path) -> None:
    assert main(["run", "functions", "--updates", "12", "--runs", str(tmp_path), "--quiet"]) == 0
    (folder,) = tmp_path.iterdir()
    capsys.readouterr()
    out = simulated(capsys, f"--run {folder} --leads 1 --ticket_cost threads")
    assert len(cells(out, "coordinator busy")) == 1
