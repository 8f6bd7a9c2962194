"""What a run came to: the rows of its statistics block, and `summary.json`."""

from __future__ import annotations

from headway.coordinator.roles import LEARNER
from headway.coordinator.run_result import LineResult, RunResult
from headway.core.ledger_counts import LedgerStatistics
from headway.core.rules import slots_for
from headway.core.text_naming import learner_name
from headway.core.text_statistics import seconds
from headway.core.types import CUT_EPISODES
from headway.core.types_opaque import JsonObject
from headway.runs.fingerprint import fingerprint


def statistics_rows(result: RunResult) -> dict[str, str]:
    """The lines of the statistics block: the familiar ones first."""
    ledger, spent, settings = result.ledger, result.time_spent, result.settings
    mode = "SYNCHRONOUS" if settings.is_synchronous else "ASYNCHRONOUS"
    dropped = ", ".join(f"{n} {reason}" for reason, n in ledger.dropped.items()) or "none"
    flown = {"reissued": ledger.reissued, "requeued": ledger.requeued, "lost": ledger.lost}
    again = ", ".join(f"{n} {why}" for why, n in flown.items() if n)
    wall = max(result.wall_s, 1e-9)
    rows = {
        "Mode": mode,
        "Collect iterations": str(ledger.landed),
        "Train iterations": str(result.updates),
        "Final lag": str(ledger.waiting),
        "Avg collect time": seconds(spent.mean("collector", "collect")),
        "Avg train time": seconds(spent.mean(LEARNER, "learn")),
        "Avg eval time": seconds(spent.mean("evaluator", "evaluate")),
        "Evaluations": _evaluations(result),
        "Wall time": seconds(result.wall_s),
        "Updates per second": f"{spent.count(LEARNER, 'learn') / wall:.2f}",  # of this session, as the time is
        "Lead / order / dispatch": f"{_lead(result)} / {settings.effective_order} / "
        + ("pinned" if settings.is_pinned else "free"),
        "Staleness mean / max": f"{ledger.mean_staleness:.2f} / {ledger.max_staleness}",
        **({"Age mean / max": _ages(ledger)} if settings.max_age_s is not None else {}),
        "Learner waited for data": f"{100 * spent.total(LEARNER, 'data') / wall:.1f}%",
        "Length bias": f"{100 * ledger.length_bias:+.1f}%",
        "Dropped": dropped,
        **({"Collected again": again} if again else {}),
        "Restarts": str(result.restarts),
        **{row: words for name in result.lines for row, words in _rows_of_line(name, result).items()},
        "Last score": _last_score(result),
        "Stopped": result.stop_reason,
    }
    return rows


def _lead(result: RunResult) -> str:
    """How far collection may be ahead; where the replay ratio is the stricter limit, that too."""
    ratio = result.settings.replay
    slots = slots_for(result.lead, result.settings.tickets_per_version)
    if ratio is None or slots <= ratio.max_tickets_ahead + 1:
        return f"{result.lead:g}"
    rollouts = "1 rollout" if ratio.max_tickets_ahead == 1 else f"{ratio.max_tickets_ahead} rollouts"
    return f"{result.lead:g} (the replay ratio allows {rollouts} ahead)"


def _rows_of_line(name: str, result: RunResult) -> dict[str, str]:
    """The familiar numbers of another line than the first, under its name."""
    line, settings, spent = result.lines[name], result.settings.lines[name], result.time_spent
    ledger, learner = line.ledger, learner_name(name)
    taken = "" if settings.every == 1 else f", of one in {settings.every} rollouts"
    rows = {
        "train iterations": f"{line.updates} (version {line.version}{taken})",
        "final lag": str(ledger.waiting),
        "avg train time": seconds(spent.mean(learner, "learn")),
        "lead / order": f"{line.lead:g} / {settings.effective_order}",
        "staleness mean / max": f"{ledger.mean_staleness:.2f} / {ledger.max_staleness}",
        "learner waited for data": f"{100 * spent.total(learner, 'data') / max(result.wall_s, 1e-9):.1f}%",
        "dropped": ", ".join(f"{count} {why}" for why, count in ledger.dropped.items()) or "none",
    }
    return {f"Line {name}, {row}": words for row, words in rows.items()}


def _evaluations(result: RunResult) -> str:
    counts = {
        "failed": sum(score.value is None for score in result.scores),
        "skipped": result.evaluations_skipped,
        "abandoned": len(result.evaluations_abandoned),
    }
    return ", ".join([str(len(result.scores)), *(f"{count} {what}" for what, count in counts.items() if count)])


def _last_score(result: RunResult) -> str:
    """The newest score there is, and in brackets what keeps it from being that of the last version as it is."""
    scored = [score for score in result.scores if score.value is not None]
    remarks = []
    if scored and (cut := scored[-1].metrics.get(CUT_EPISODES, 0)):
        remarks.append(f"{cut:g} of {scored[-1].metrics.get('episodes', 0):g} episodes were cut")
    if result.scores and result.scores[-1].value is None:
        why = next(iter((result.scores[-1].error or "").splitlines()), "no reason was given")
        remarks.append(f"that of version {result.scores[-1].version} failed: {why}")
    remarks += [f"that of version {version} was abandoned" for version in result.evaluations_abandoned]
    number = f"{scored[-1].value:.3f}" if scored else "-"
    return f"{number} ({'; '.join(remarks)})" if remarks else number


def _ages(ledger: LedgerStatistics) -> str:
    kept = f", {ledger.kept_expired} kept in spite of it" if ledger.kept_expired else ""
    return f"{seconds(ledger.mean_age_s)} / {seconds(ledger.max_age_s)}{kept}"


def _tickets(ledger: LedgerStatistics) -> JsonObject:
    return {
        "opened": ledger.opened,
        "learned": ledger.learned,
        "dropped": ledger.dropped,
        "returned": ledger.returned,
        "reissued": ledger.reissued,
        "requeued": ledger.requeued,
        "lost": ledger.lost,
    }


def _of_line(line: LineResult) -> JsonObject:
    """Another line than the first."""
    return {
        "version": line.version,
        "updates": line.updates,
        "fingerprint": fingerprint(line.weights),
        "tickets": _tickets(line.ledger),
        "staleness": line.ledger.staleness,
        "lead": line.lead,
    }


def summary_of(result: RunResult) -> JsonObject:
    """`summary.json`."""
    ledger = result.ledger
    lines = {name: _of_line(line) for name, line in result.lines.items()}
    return {
        "stop_reason": result.stop_reason,
        "complete": result.is_complete,
        "version": result.version,
        "updates": result.updates,
        "fingerprint": fingerprint(result.weights),
        **({"lines": lines} if lines else {}),
        "wall_s": result.wall_s,
        "scores": [{"version": s.version, "value": s.value, "error": s.error} for s in result.scores],
        "evaluations_abandoned": list(result.evaluations_abandoned),
        "tickets": _tickets(ledger),
        "staleness": ledger.staleness,
        "age_s": {"mean": ledger.mean_age_s, "max": ledger.max_age_s, "kept_expired": ledger.kept_expired},
        "length_bias": ledger.length_bias,
        "restarts": result.restarts,
        "lead": result.lead,
        "seconds": result.time_spent.seconds,
    }
