"""The newest numbers as a page that Prometheus can scrape: `http://host:port/metrics`.

learn/loss  ->  headway_learn_loss

On this machine's own address it answers those who ask for this machine by name (421 otherwise: see `this_machine`). On
any other address it answers those who show the run's token (401 otherwise). Many connections at once cost the run no
more than a few do: see `strangers`.
"""

from __future__ import annotations

import hmac
import math
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler

from headway.runs.local_server_strangers import StrangersServer
from headway.runs.local_server_this_machine import NAMES, is_loopback, is_of_this_machine
from headway.runs.metrics import Moment
from headway.runs.metrics_metric_names import MEANINGS, TOTALS, name_in_line

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class PrometheusSink:
    """Serves the last value of every name, from a thread of its own until it is closed."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", run: str = "", token: str = "") -> None:
        """Port 0 takes any free one; `port` says which. `run` is what the run is called. A host that others can reach
        needs a token, which they send as `Authorization: Bearer TOKEN`."""
        is_for_all = not is_loopback(host)
        if is_for_all and not token:
            raise ValueError(f"prometheus_host={host!r} can be reached from elsewhere, and needs a token")
        values: dict[str, float] = {}
        self._values = values

        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                shown = self.headers.get("Authorization", "").encode()
                if is_for_all and not hmac.compare_digest(shown, f"Bearer {token}".encode()):
                    self.send_error(401, "the run's token is needed: Authorization: Bearer TOKEN")
                    return
                if not is_for_all and not is_of_this_machine(self.headers.get("Host", "")):
                    self.send_error(421, explain=f"This page is for {', '.join(NAMES)} only.")
                    return
                if self.path.partition("?")[0] not in ("/metrics", "/"):
                    self.send_error(404, "the metrics are at /metrics")
                    return
                body = exposition(dict(values), run=run).encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """A scrape is nothing to tell."""

        try:
            self._server = StrangersServer((host, port), Page)
        except OSError as error:
            raise ValueError(f"prometheus_port={port} on {host}: {error.strerror}") from None
        self._host = host
        self._thread = threading.Thread(target=self._server.serve_forever, name="prometheus", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __str__(self) -> str:
        return f"Prometheus at http://{self._host}:{self.port}/metrics"

    def write(self, moment: Moment, values: Mapping[str, float]) -> None:
        self._values.update(values)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def exposition(values: Mapping[str, float], *, run: str = "") -> str:
    """The text format of Prometheus. Two names that become the same one are one: the later."""
    lines: dict[str, str] = {}
    if run:
        lines["headway_run_info"] = (
            "# HELP headway_run_info which run this is\n# TYPE headway_run_info gauge\n"
            f'headway_run_info{{run="{_escaped(run, quotes=True)}"}} 1.0\n'
        )
    for name, value in values.items():
        known = name_in_line(name)
        is_total = known.startswith((*TOTALS, "run/updates", "run/steps"))
        kind, ending = ("counter", "_total") if is_total else ("gauge", "")
        theirs = "headway_" + re.sub(r"[^a-zA-Z0-9_]", "_", name) + ending
        meaning = _escaped(MEANINGS.get(known, name))
        lines[theirs] = f"# HELP {theirs} {meaning}\n# TYPE {theirs} {kind}\n{theirs} {_as_text(value)}\n"
    return "".join(lines.values())


def _escaped(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text


def _as_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
