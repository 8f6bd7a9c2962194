"""One fold for a run: what an event means is known in one place, for one line or several."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from typing import Any

import pytest

from headway.core.events import (
    Dropped,
    Ended,
    Event,
    GapFound,
    Inserted,
    Landed,
    Looked,
    Lost,
    Opened,
    Published,
    Reissued,
    Requeued,
    Resumed,
    RoleWaits,
    RunBegan,
    Settled,
    Started,
    Stopped,
    UpdateBegan,
    Updated,
)
from headway.core.events_written_events import read_event, written
from headway.core.history import RunHistory
from headway.runs.metrics import Metrics, load_metrics, metrics_of
from headway.testing.auditor import Terms, audit
from headway.tools.report.recorded_run_run_history import tell
from headway.tools.report.report import Seen, document, page
from headway.tools.report.time_report import account
from headway.tools.report.timeline_trace import trace_events

SETTINGS: dict[str, Any] = {
    "max_lead": 1, "order": "oldest", "dispatch": "free", "max_staleness": None, "on_stale": "keep", "max_age_s": None,
    "queue_bytes_limit": None, "queue_capacity": None, "collectors": 1, "lanes": 1, "on_publish": "drain",
    "tickets_per_batch": 1, "publish_every": 1, "replay": None, "evaluate_every": 0, "evaluate_in_background": False,
    "lead_limit": 8, "lead_buffer_size": None, "seed": 0, "lines": {"prior": {"tickets_per_batch": 2, "max_lead": 2}},
}  # fmt: skip


def flight(index: int, at: float, version: int, prior: int) -> list[Event]:
    """A rollout with a ticket in both lines."""
    return [
        Opened(at, index),
        Opened(at, index, "prior"),
        Started(at, index, 0, version, {"prior": prior}),
        Landed(at + 0.5, index, [version, version], 4, 4.0, 8, {"prior": [prior, prior]}),
    ]


def update(at: float, number: int, version: int, tickets: list[int], line: str = "") -> list[Event]:
    """An update of half a second, its version and its tickets' end."""
    return [
        UpdateBegan(at, number, version, tickets, line),
        Updated(at + 0.5, number, version, tickets, 0.5, {"loss": 1.0}, 3.0, line),
        Published(at + 0.5, version + 1, line),
        Settled(at + 0.5, tickets, line),
    ]


TWO_LINES: list[Event] = [
    RunBegan(0.0, SETTINGS),
    Published(0.0, 0),
    Published(0.0, 0, "prior"),
    *flight(0, 0.0, 0, 0),
    *flight(1, 0.5, 0, 0),
    *update(1.0, 1, 0, [0]),
    *update(1.5, 2, 1, [1]),
    *update(2.0, 1, 0, [0, 1], "prior"),
    *flight(2, 3.0, 2, 1),
    *update(3.5, 3, 2, [2]),
    *flight(3, 4.0, 3, 1),
    Looked(5.0, 1.0, {"prior/learner": {"learn": 0.5, "data": 1.5}}, 2**20, others={"prior": 2.0}),
    Stopped(5.0, "enough"),
    Ended(5.0, 3, 3, 1, {"prior": [1, 1, 2]}),
]


def of_the_first_line(event: Event) -> Event:
    """What the run would have written if it had no other line."""
    if isinstance(event, RunBegan):
        return event._replace(settings={**event.settings, "lines": {}})
    return event._replace(others=None) if isinstance(event, Looked) else event


ONE_LINE = [of_the_first_line(event) for event in TWO_LINES if getattr(event, "line", "") == ""]


def test_each_line_has_its_own_tickets_updates_and_versions() -> None:
    history = RunHistory()
    for event in TWO_LINES:
        history.apply(event)
    first, prior = history.lines[""], history.lines["prior"]
    assert (first.version, first.updates, first.lead) == (3, 3, 1.0)
    assert (prior.version, prior.updates, prior.lead) == (1, 1, 2.0)
    assert sorted(first.live) == [3]
    assert sorted(prior.live) == [2, 3], "what the first line has learned from the other still has"
    assert first.counts["learned"] == 3
    assert prior.counts["learned"] == 2
    assert history.session is not None
    assert (history.session.how, history.session.why) == ("end", "enough")


def test_only_what_is_live_is_kept() -> None:
    history = RunHistory()
    for event in [RunBegan(0.0, SETTINGS), Published(0.0, 0)]:
        history.apply(event)
    for index in range(500):
        for event in [
            Opened(index, index), Started(index, index, 0, index), Landed(index, index, [index, index], 1, 1.0),
            *update(index, index + 1, index, [index]),
        ]:  # fmt: skip
            history.apply(event)
    assert not history.first.live
    assert len(pickle.dumps(history)) < 3000


def test_a_flight_moves_the_ticket_only_in_the_lines_that_wait_for_it() -> None:
    history = RunHistory()
    for event in [*TWO_LINES[:7], Requeued(0.6, 0, "stale"), Started(0.7, 0, 0, 0, {"prior": 0})]:
        history.apply(event)
    assert history.lines[""].live[0].how == "in flight"
    assert history.lines["prior"].live[0].how == "ready", "it has its rollout, and needs no other"
    history.apply(Reissued(0.8, 0, 0, 1, "died"))
    assert history.lines[""].live[0].how == "open"
    history.apply(Lost(0.9, 0, "the node is gone", "prior"))
    assert history.lines["prior"].live[0].how == "open"


def test_a_resume_sets_every_line_back_to_where_it_was() -> None:
    history = RunHistory()
    resumed = [RunBegan(2.0, SETTINGS), Resumed(3.0, 2, 2, {"prior": [0, 0]})]
    for event in [*TWO_LINES[:6], *resumed]:
        history.apply(event)
    assert history.lines[""].version == 2
    assert history.lines["prior"].version == 0
    assert {line.live[0].how for line in history.lines.values()} == {"open"}, "what was in flight flies again"


def test_a_ticket_without_a_beginning_is_refused_unless_something_is_missing() -> None:
    with pytest.raises(KeyError, match="7"):
        RunHistory().apply(Landed(1.0, 7, [0, 0], 1, 1.0))
    history = RunHistory()
    history.apply(GapFound(0.0, "the beginning is gone"))
    history.apply(Landed(1.0, 7, [0, 0], 1, 1.0))
    assert history.first.live[7].how == "ready"


def test_what_was_inserted_leaves_the_queue() -> None:
    events = [RunBegan(0.0, {}), Published(0.0, 0), *flight(0, 0.0, 0, 0)[::2], Landed(0.5, 0, [0, 0], 1, 1.0)]
    (point,) = metrics_of([*events, Inserted(0.5, [0], 0), Looked(1.0, 0.0, {}, 0)])
    assert point.values["queue/empty"] == 1.0


# -- metrics ------------------------------------------------------------------------------------------


def test_metrics_of_another_line_stand_behind_its_name() -> None:
    (point,) = metrics_of(TWO_LINES)
    values = point.values
    assert (values["run/version"], values["prior/run/version"]) == (3, 1)
    assert (values["run/lead"], values["prior/run/lead"]) == (1, 2)
    assert values["staleness/mean"] == pytest.approx(1 / 3)
    assert values["prior/staleness/mean"] == 0
    assert values["prior/tickets/learned"] == 2
    assert values["prior/queue/ready"] == 2
    assert values["prior/waiting/learner_for_data"] == 0.75
    assert values["prior/busy/learner"] == 0.25
    (alone,) = metrics_of(ONE_LINE)
    assert {name: value for name, value in values.items() if not name.startswith("prior/")} == alone.values


def test_metrics_are_the_same_from_the_log_and_from_a_checkpoint() -> None:
    lines = [json.loads(json.dumps(written(event))) for event in TWO_LINES]
    assert list(metrics_of(lines)) == list(metrics_of(TWO_LINES))
    for cut in range(len(TWO_LINES)):
        metrics = Metrics()
        for event in TWO_LINES[:cut]:
            metrics.apply(event)
        restored = load_metrics(pickle.dumps(metrics))
        assert restored is not None
        points = [point for event in TWO_LINES[cut:] if (point := restored.apply(event)) is not None]
        assert not points or points == list(metrics_of(TWO_LINES))


BEFORE = (
    "c-m!Dy>8S%5WXY#o6F@+LLx0h6iJgjLXapTWI;iXmc6_2d38S9?5+cc6bTAaxnn8dO?U(zfsTrrM_^`uY$tK$`DXUpnQvzHQ}5f;"
    "VaI;eQ38DRp6|}`g#vj6XIs!xES0H-Fa6(FbNbm_o0DqD%3{Sen5bKg*cC`6^2|h?YQU6+LYd2Fb5A>DI@df!n#nRxQ&?&YCDP}4"
    "nQ4$nN{k1x%+4h!&81ev^pJp}T%<xJOi}`1@kfNi6;DfUnOMw43M+CQ-F2yrC<^C0)MB{-t<LiTGJ^IRDCOCTpl&q{kmei62$|JE"
    "z-8vR<^hu+lq&Cm?@I9CL47(`nt;hl=7l=PGE*RX>TLK>2<a1bNGwtm$Fq1S6k2{UuTel&BwV2=C?5v(>y*bLV{t0h3Eudi>QTX_"
    "q|S(s7@bToJ~@uM$rFt2OKkcMIg`gxH}HBruIV3HMYcAlcpd_}&%7868-4LNwjTy8cG~r5pKbXE#@B!Wuc|r2ENMX40@ggELmmI&"
    "@Ys%9-l%(d@$)-<KNLFhICcWih-t}1=8ReJU>4b0C#_kVg}D2!Ll$NUa9nppG+|*@u)wHOCv{`0F%vYK=r&0Qtrx+nHvkhC*%EFQ"
    "Gi3_3)>vkoOCY7DY*~~{1*8cby8Tg<$Do<N{=Mx%b=KfEV(j<Fs{Y#vRgLW^Whk)iY}ARm%C_;)I<O9A$I&ilvnsumua$XYunyQ3"
    "dS^NR_)8B0MisX30d`c~s(9S=xm8<hnh!QmXx0KoZg%W_zkCg&Fi#{|4_AdUJGs30=Ln-NsB(exmF3!vd$os~j=3*N+!A456BLPS"
    "O|MC^SM?bAZ%~HhIC+aepV=)Sgfzy9GZr7X@pFzI^}+af`)}c)-*V>}v0w(Llecy{(-Y<jYC`&VFs*Zd?Z1Tw{z<itDeVgO&SNfd"
    "t5QhZ8SW%X0HLHI^H#_&##c3I@^hv;r$Flz!Z~lbbADUGxnNr7wEZmaTu8HD4h*-q#HQO@a*zD>`TNJLwyk?ck2h;xa~CydcVXYt"
    "CGA(}sWn`QcxAb*OY~OgPQGcnga3|-r(A9Wl{3gumW#9hWfHL}"
)
"""Metrics as the release before typed histories pickled them into its checkpoints."""


def test_metrics_of_an_older_checkpoint_are_not_taken_for_those_of_today() -> None:
    assert load_metrics(zlib.decompress(base64.b85decode(BEFORE))) is None
    assert load_metrics(pickle.dumps({"not": "metrics"})) is None
    assert load_metrics(None) is None


def test_metrics_of_a_checkpoint_are_found_under_the_former_name_of_a_session() -> None:
    metrics = Metrics()
    for event in TWO_LINES[:-3]:
        metrics.apply(event)
    former = pickle.dumps(metrics, 2).replace(b"\nRunSession\n", b"\nSession\n")  # protocol 2 writes names as lines
    restored = load_metrics(former)
    assert former != pickle.dumps(metrics, 2)
    assert restored is not None
    assert restored.apply(TWO_LINES[-3]) == metrics.apply(TWO_LINES[-3])


# -- what is made of a run with several lines -----------------------------------------------------------


def test_a_story_has_every_line_and_the_page_shows_them() -> None:
    story = tell(TWO_LINES)
    assert [version.number for version in story.versions] == [0, 1, 2, 3]
    assert [version.number for version in story.lines["prior"].versions] == [0, 1]
    assert story.roles[:2] == ["learner", "prior/learner"]
    seen = Seen("two", story, account(story))
    lines = document([seen])["runs"][0]["lines"]
    assert [(line["name"], line["version"], line["updates"]) for line in lines] == [
        ("first line", 3, 3),
        ("prior", 1, 1),
    ]
    assert lines[1]["staleness"] == {"0": 2}
    assert "prior" in page(document([seen]))


def test_the_page_of_a_run_with_one_line_has_no_lines() -> None:
    story = tell([event for event in ONE_LINE if not isinstance(event, Ended | Looked)])
    assert "lines" not in document([Seen("one", story, account(story))])["runs"][0]


def test_the_trace_has_a_learner_and_versions_of_every_line() -> None:
    events = list(trace_events(tell(TWO_LINES)))
    tracks = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert {"learner", "prior/learner", "version", "version of prior"} <= set(tracks)
    learned = [event for event in events if event["name"] == "learn"]
    assert [event["tid"] for event in learned].count(tracks["prior/learner"]) == 1
    ends = [event["tid"] for event in events if event["ph"] == "f" and event["cat"] == "rollout"]
    assert ends.count(tracks["prior/learner"]) == 2
    numbers = [event["id"] for event in events if event["ph"] == "s"]
    assert len(set(numbers)) == len(numbers)


# -- the audit ----------------------------------------------------------------------------------------


def test_a_run_with_two_lines_is_audited_line_by_line() -> None:
    assert audit(TWO_LINES) == []
    assert audit([written(event) for event in TWO_LINES]) == []


@pytest.mark.parametrize(
    ("rule", "before", "after"),
    [
        ("newest snapshot", Started(3.0, 2, 0, 2, {"prior": 1}), Started(3.0, 2, 0, 2, {"prior": 0})),
        ("versions", Published(2.5, 1, "prior"), Published(2.5, 2, "prior")),
        ("settles when published", Settled(2.5, [0, 1], "prior"), Settled(2.5, [0], "prior")),
        ("batch", UpdateBegan(2.0, 1, 0, [0, 1], "prior"), UpdateBegan(2.0, 1, 0, [0], "prior")),
        ("life", Opened(4.0, 3, "prior"), RoleWaits(4.0, "prior/learner", "data")),
        ("counts", Ended(5.0, 3, 3, 1, {"prior": [1, 1, 2]}), Ended(5.0, 3, 3, 1, {"prior": [1, 1, 3]})),
        ("settles once", Settled(2.5, [0, 1], "prior"), Settled(2.5, [0, 1, 0], "prior")),
        ("expiry", Opened(3.0, 2, "prior"), Dropped(3.0, 1, "stale", "", "prior")),
    ],
)
def test_what_is_wrong_in_another_line_is_found(rule: str, before: Event, after: Event) -> None:
    changed = [after if event == before and type(event) is type(before) else event for event in TWO_LINES]
    assert changed != TWO_LINES
    if rule == "life":
        changed.insert(changed.index(after) + 2, Requeued(4.5, 3, "stale", "prior"))
    if rule == "expiry":
        at = next(place for place, event in enumerate(changed) if isinstance(event, UpdateBegan) and event.line)
        changed.insert(at, Dropped(2.0, 1, "stale", "", "prior"))
    assert rule in {violation.rule for violation in audit(changed)}


def test_more_slots_than_a_line_has_are_found() -> None:
    small = {**SETTINGS, "lines": {"prior": {"tickets_per_batch": 1, "max_lead": 0}}}
    found = audit([RunBegan(0.0, small), *TWO_LINES[1:]], Terms())
    assert "slots" in {violation.rule for violation in found}
    assert "in line prior" in next(violation.what for violation in found if violation.rule == "slots")


def test_every_event_is_read_as_it_was_written() -> None:
    for event in TWO_LINES:
        assert read_event(json.loads(json.dumps(written(event)))) == json_like(event)


def json_like(event: Event) -> Event:
    return type(event)(*json.loads(json.dumps(event)))
