"""Colour Lines for people: a board in the terminal, a game played by hand, a recorded game as a page.

player ──moves──> play() ──draws──> console
                     └──frames──> animate() ──> one HTML file, no network
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TextIO

import numpy as np
from rich.console import Console
from rich.text import Text

from headway.ppo.colorlines.rules import CELLS, SIDE
from headway.ppo.colorlines.rules_positions import cell_name
from headway.ppo.colorlines.vector import ColorLines

BALLS = "·❶❷❸❹❺❻❼"  # a number in every ball: colours are not seen by everyone, nor kept by every terminal
STYLES = (
    "dim",
    "bold red",
    "bold green",
    "bold yellow",
    "bold blue",
    "bold magenta",
    "bold cyan",
    "bold",
)  # the last one in the terminal's own ink


@dataclass(frozen=True, slots=True)
class Frame:
    """A position, and the move that led to it (None at the start)."""

    board: tuple[int, ...]  # [81]
    coming: tuple[int, ...]  # [3]
    score: int
    move: int | None = None


Player = Callable[[ColorLines], int | None]
"""Chooses the move of game 0; None leaves the game."""


# -- the terminal -----------------------------------------------------------------------------------


def draw(frame: Frame) -> Text:
    """The board with its coordinates, the score, the balls to come; where the last ball went stands out."""
    text = Text("    " + " ".join("abcdefghi") + "\n")
    target = None if frame.move is None else frame.move % CELLS
    for row in range(SIDE):
        text.append(f" {row + 1}  ")
        for cell in range(row * SIDE, row * SIDE + SIDE):
            colour = frame.board[cell]
            text.append(BALLS[colour], STYLES[colour] + (" underline" if cell == target else ""))
            text.append(" ")
        text.append("\n")
    text.append(f"    score {frame.score}   next ")
    for colour in frame.coming:
        text.append(BALLS[colour], STYLES[colour])
        text.append(" ")
    return text


def parse_move(line: str) -> int:
    """ "c3 f7", also "c3f7" or "c3-f7": the move from c3 to f7."""
    word = "".join(line.lower().replace("-", " ").split())
    if len(word) != 4 or any(word[k] not in "abcdefghi" or word[k + 1] not in "123456789" for k in (0, 2)):
        raise ValueError(f"{line.strip()!r} is not a move like c3 f7")
    origin, target = ((int(word[k + 1]) - 1) * SIDE + "abcdefghi".index(word[k]) for k in (0, 2))
    return origin * CELLS + target


def human(lines: TextIO, console: Console) -> Player:
    """A person who types moves, asked again until one is legal; "q" or the end of the stream leaves the game."""

    def choose(env: ColorLines) -> int | None:
        while True:
            console.print("move (like c3 f7, q to leave): ", end="")
            line = lines.readline()
            if not line or line.strip().lower() in ("q", "quit"):
                return None
            try:
                move = parse_move(line)
            except ValueError as error:
                console.print(str(error))
                continue
            wrong = env.why_illegal(0, move)
            if wrong is None:
                return move
            console.print(wrong)

    return choose


def play(player: Player, console: Console | None = None, *, seed: int = 0, max_steps: int | None = None) -> list[Frame]:
    """One game, drawn on `console` if given, and recorded."""
    env = ColorLines(1, seed, max_steps=max_steps, compact=True)
    frames = [_frame(env.observation(), 0, None)]
    while True:
        if console is not None:
            console.print(draw(frames[-1]))
        move = player(env)
        if move is None:
            return frames
        obs, _, terminated, truncated, info = env.step(np.array([move]))
        if terminated[0] or truncated[0]:
            frames.append(_frame(info["final_obs"], int(info["final_score"][0]), move))
            break
        frames.append(_frame(obs, int(env.score[0]), move))
    if console is not None:
        console.print(draw(frames[-1]))
        console.print(f"game over after {len(frames) - 1} moves, {frames[-1].score} points")
    return frames


def _frame(obs: np.ndarray, score: int, move: int | None) -> Frame:
    cells = obs[0].tolist()
    return Frame(tuple(cells[:CELLS]), tuple(cells[CELLS:]), score, move)


# -- the page ---------------------------------------------------------------------------------------


def animate(frames: Iterable[Frame], title: str = "Colour Lines") -> str:
    """A self-contained page that replays the game: play and pause, a slider, one step with the arrow keys."""
    record = [
        {
            "board": "".join(map(str, frame.board)),
            "coming": frame.coming,
            "score": frame.score,
            "move": None if frame.move is None else divmod(frame.move, CELLS),
            "name": "" if frame.move is None else " → ".join(cell_name(cell) for cell in divmod(frame.move, CELLS)),
        }
        for frame in frames
    ]
    if not record:
        raise ValueError("there is no frame to show")
    return PAGE.replace("%TITLE%", html.escape(title)).replace("%FRAMES%", json.dumps(record, separators=(",", ":")))


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>%TITLE%</title>
<style>
:root { color-scheme: light dark; --back: #f6f5f2; --ink: #222; --cell: #e7e4dd; --line: #cfcabf; }
@media (prefers-color-scheme: dark) { :root { --back: #191a1c; --ink: #ddd; --cell: #26282b; --line: #3a3d41; } }
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.4 system-ui, sans-serif; }
main { max-width: 30rem; margin: 1.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.2rem; font-weight: 600; }
svg { width: 100%; display: block; }
rect { fill: var(--cell); stroke: var(--line); stroke-width: .02; }
circle.ball { stroke: rgba(0, 0, 0, .35); stroke-width: .03; }
circle.from, circle.to { fill: none; stroke: var(--ink); stroke-width: .05; }
circle.from { stroke-dasharray: .12 .1; }
text { fill: var(--ink); font-size: .32px; text-anchor: middle; dominant-baseline: central; opacity: .6; }
text.mark { fill: #fff; opacity: .9; }
.bar { display: flex; gap: .8rem; align-items: center; margin: .6rem 0; }
.bar input { flex: 1; }
button { font: inherit; min-width: 5rem; }
output { font-variant-numeric: tabular-nums; }
#coming { width: 4.5rem; }
</style></head><body><main>
<h1>%TITLE%</h1>
<div class="bar"><output id="score"></output><svg id="coming" viewBox="0 0 3 1" aria-label="coming balls"></svg>
<output id="move"></output></div>
<svg id="board" viewBox="-.6 -.6 9.7 9.7" role="img" aria-label="board"></svg>
<div class="bar"><button id="play">Play</button><input id="at" type="range" min="0" value="0" aria-label="move">
<select id="speed" aria-label="moves a second"><option value="1">1/s<option value="3" selected>3/s
<option value="10">10/s</select></div>
</main><script>
const frames = %FRAMES%;
const colours = ["", "#d43d3d", "#2f9e44", "#d9a400", "#3a6fd8", "#b04ac2", "#1aa0a8", "#7a6a5a"];
const find = id => document.getElementById(id);
const put = (parent, kind, attributes, content) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (content) node.textContent = content;
  parent.append(node);
};
const ball = (parent, x, y, colour) => {
  put(parent, "circle", {class: "ball", cx: x + .5, cy: y + .5, r: .38, fill: colours[colour]});
  put(parent, "text", {class: "mark", x: x + .5, y: y + .5}, String(colour));
};
let at = 0, timer = null;
function show(number) {
  at = Math.max(0, Math.min(frames.length - 1, number));
  const frame = frames[at], board = find("board"), coming = find("coming");
  board.replaceChildren(); coming.replaceChildren();
  for (let k = 0; k < 9; k++) {
    put(board, "text", {x: k + .5, y: -.3}, "abcdefghi"[k]);
    put(board, "text", {x: -.3, y: k + .5}, String(k + 1));
  }
  for (let cell = 0; cell < 81; cell++) {
    const x = cell % 9, y = Math.floor(cell / 9), colour = Number(frame.board[cell]);
    put(board, "rect", {x, y, width: 1, height: 1});
    if (colour) ball(board, x, y, colour);
  }
  (frame.move || []).forEach((cell, end) => put(board, "circle",
    {class: end ? "to" : "from", cx: cell % 9 + .5, cy: Math.floor(cell / 9) + .5, r: .45}));
  frame.coming.forEach((colour, k) => ball(coming, k, 0, colour));
  find("score").textContent = "score " + frame.score;
  find("move").textContent = at + "/" + (frames.length - 1) + (frame.name ? ", " + frame.name : "");
  find("at").value = at;
}
function stop() { clearInterval(timer); timer = null; find("play").textContent = "Play"; }
function start() {
  if (at === frames.length - 1) show(0);
  find("play").textContent = "Pause";
  timer = setInterval(() => { if (at === frames.length - 1) stop(); else show(at + 1); }, 1000 / find("speed").value);
}
find("at").max = frames.length - 1;
find("at").oninput = event => { stop(); show(Number(event.target.value)); };
find("play").onclick = () => timer ? stop() : start();
find("speed").onchange = () => { if (timer) { stop(); start(); } };
document.addEventListener("keydown", event => {
  if (event.target.id === "at") return;
  if (event.key === "ArrowRight") { stop(); show(at + 1); }
  if (event.key === "ArrowLeft") { stop(); show(at - 1); }
});
show(0);
</script></body></html>
"""
