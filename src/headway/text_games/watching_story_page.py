"""An episode of a story as one page that needs nothing but a browser: a table of candidates for every move."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.text_games.watching_story_watching import Candidate, WatchedMove, WatchedStory

STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --soft: #57606a; --bar: #9ec5e8; --line: #d0d7de; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14181d; --text: #e6edf3; --soft: #9da7b1; --bar: #1f5a8c; --line: #30363d; } }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--back); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }
section { border-top: 1px solid var(--line); padding: 0.5rem 0 1rem; }
pre { white-space: pre-wrap; font: inherit; margin: 0.5rem 0; }
.soft { color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: 0.1rem 0.6rem; text-align: right; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
td.share { background: linear-gradient(to left, var(--bar) var(--of), transparent var(--of)); }
tr.chosen td:first-child { font-weight: bold; }
tr.chosen td:first-child::before { content: "> "; }
"""


def story_page(story: WatchedStory) -> str:
    """The whole page as text."""
    moves = "\n".join(_move(number, move) for number, move in enumerate(story.moves, 1))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(story.title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(story.title)}</h1>
<p id="outcome"><strong>{escape(story.outcome())}</strong></p>
<p>{escape(story.objective)}</p>
<p class="soft">Visits: how often the search tried a candidate. Policy: what the world model thought of it before.
Prior: what the language model thought of it. Value: what the search found it worth.</p>
{moves}
<section id="end"><h2>The end</h2><pre>{escape(story.ending)}</pre></section>
</body>
</html>
"""


def _move(number: int, move: WatchedMove) -> str:
    most = max(1, sum(one.visits for one in move.candidates))
    rows = "\n".join(_row(one, most) for one in move.candidates)
    unseen = f"; {move.unseen} candidates found no slot" if move.unseen else ""
    reward = f", reward {move.reward:g}" if move.reward else ""
    return f"""<section id="move-{number}">
<h2>{number}. {escape(move.action)}{reward}</h2>
<pre>{escape(move.text)}</pre>
<p class="soft">Score {move.score:g}; the search expects {rounded(move.value)} more{unseen}.</p>
<div class="scroll"><table>
<thead><tr><th>candidate</th><th>visits</th><th>policy</th><th>prior</th><th>value</th></tr></thead>
<tbody>
{rows}
</tbody></table></div></section>"""


def _row(one: Candidate, most: int) -> str:
    chosen = ' class="chosen"' if one.is_chosen else ""
    value = "-" if one.value is None else rounded(one.value)
    prior = "<td>-</td>" if one.prior is None else _share(one.prior, f"{one.prior:.2f}")
    visits, policy = _share(one.visits / most, str(one.visits)), _share(one.policy, f"{one.policy:.2f}")
    return f"<tr{chosen}><td>{escape(one.action)}</td>{visits}{policy}{prior}<td>{value}</td></tr>"


def rounded(value: float) -> str:
    """Three digits, and no sign before a zero."""
    return f"{round(value, 3) + 0.0:.3f}"


def _share(part: float, text: str) -> str:
    return f'<td class="share" style="--of: {100 * part:.1f}%">{text}</td>'
