/* The report: data in, charts out. No network, no library.

   data (the JSON beside this script) -> draw() -> sections; a live page fetches data.json and draws again.
   Line charts are SVG, the timeline is a canvas: it has to show tens of thousands of slices while it is dragged.
   Every chart has a title, a readout that follows pointer and arrow keys, and the same numbers as a table. */
const shown = () => data.runs.map((run, place) => ({ run, place })).filter(({ place }) => !hidden.has(place));
const choices = { axis: "time" };
let view = null; // what the timeline shows; null: the whole run

// -- the timeline ---------------------------------------------------------------------------------

const ROW = 20, HEAD = 22, AXIS = 22;

/** Slices of one track, from gaps and durations to begins and ends in seconds. */
function decode(track, unit) {
  const size = track.gap.length;
  const begin = new Float64Array(size), end = new Float64Array(size);
  let at = 0;
  for (let place = 0; place < size; place += 1) {
    at += track.gap[place]; begin[place] = at * unit;
    at += track.length[place]; end[place] = at * unit;
  }
  return { ...track, begin, end };
}

function timelineRows() {
  const rows = [];
  for (const { run, place } of shown()) {
    if (!run.timeline.tracks.length) continue;
    rows.push({ kind: "head", run, place, height: HEAD });
    if (run.timeline.marks.length) rows.push({ kind: "marks", run, place, height: ROW, marks: run.timeline.marks });
    for (const track of run.timeline.tracks) rows.push({ kind: "slices", run, place, height: ROW, track: decode(track, run.timeline.unit_s) });
    for (const steps of run.timeline.steps) rows.push({ kind: "steps", run, place, height: 2 * ROW, steps });
  }
  let y = AXIS;
  for (const row of rows) { row.y = y; y += row.height; }
  return rows;
}

function timeline() {
  const rows = timelineRows();
  if (!rows.length) return section("timeline", "Timeline", nothing("Nothing has happened yet."));
  const whole = Math.max(...shown().map(({ run }) => run.timeline.end_s), 1e-6);
  const shortest = Math.max(whole * 1e-6, 1e-6);
  const canvas = make("canvas", { tabindex: 0, role: "img", id: "tracks", "aria-label": describe(), "aria-keyshortcuts": "+ - ArrowLeft ArrowRight Home" });
  const readout = make("output", { for: "tracks", id: "slice" });
  const where = make("span", { class: "soft", id: "window" });
  const now = () => view || { begin: 0, end: whole };
  let waiting = false;

  function describe() {
    const told = shown().map(({ run }) => `${run.label}: ` + run.time.map((role) => `${role.role} ${percent(role.busy_share)} busy`).join(", "));
    return `Timeline of what each role did. ${told.join("; ")}. Plus and minus zoom, arrow keys pan, Home shows everything. The table below has the sums.`;
  }

  function show(begin, end) {
    const span = Math.min(whole, Math.max(shortest, end - begin));
    const from = Math.min(Math.max(0, begin), whole - span);
    view = span >= whole * 0.9999 ? null : { begin: from, end: from + span };
    redraw();
  }

  function zoom(factor, at = null) {
    const { begin, end } = now();
    const middle = at === null ? (begin + end) / 2 : at;
    const span = Math.min(whole, Math.max(shortest, (end - begin) * factor));
    const share = end > begin ? (middle - begin) / (end - begin) : 0.5;
    show(middle - share * span, middle + (1 - share) * span);
  }

  const pan = (share) => { const { begin, end } = now(); show(begin + share * (end - begin), end + share * (end - begin)); };
  const redraw = () => {
    if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; drawTimeline(canvas, rows, now(), where); }); }
  };

  const gutter = () => gutterOf(canvas.clientWidth);
  const timeAt = (event) => {
    const box = canvas.getBoundingClientRect(), { begin, end } = now();
    return begin + (event.clientX - box.left - gutter()) / (box.width - gutter()) * (end - begin);
  };
  const rowAt = (event) => { const y = event.clientY - canvas.getBoundingClientRect().top; return rows.find((row) => y >= row.y && y < row.y + row.height); };

  const fingers = new Map();
  canvas.addEventListener("pointerdown", (event) => { fingers.set(event.pointerId, event); canvas.setPointerCapture(event.pointerId); canvas.classList.add("dragging"); });
  const release = (event) => { fingers.delete(event.pointerId); canvas.classList.toggle("dragging", fingers.size > 0); };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) { readout.textContent = tell(rowAt(event), timeAt(event), (now().end - now().begin) / (canvas.clientWidth - gutter())); return; }
    if (fingers.size === 2) {
      const other = [...fingers.entries()].find(([id]) => id !== event.pointerId)[1];
      const was = Math.abs(before.clientX - other.clientX), is = Math.abs(event.clientX - other.clientX);
      if (was > 4 && is > 4) zoom(was / is, timeAt(other));
    } else {
      pan((before.clientX - event.clientX) / (canvas.clientWidth - gutter()));
    }
    fingers.set(event.pointerId, event);
  });
  canvas.addEventListener("dblclick", (event) => zoom(0.5, timeAt(event)));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return; // the page scrolls
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / canvas.clientWidth);
    else zoom(Math.exp(event.deltaY * 0.002), timeAt(event));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const acts = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), Home: () => show(0, whole) };
    const act = acts[event.key];
    if (act && !event.ctrlKey && !event.metaKey) { event.preventDefault(); act(); }
  });

  const tools = make("div", { class: "tools", role: "group", "aria-label": "Zoom" },
    make("button", { type: "button", id: "zoom-in", onclick: () => zoom(0.5), "aria-label": "Zoom in" }, "+"),
    make("button", { type: "button", id: "zoom-out", onclick: () => zoom(2), "aria-label": "Zoom out" }, "−"),
    make("button", { type: "button", id: "pan-left", onclick: () => pan(-0.4), "aria-label": "Earlier" }, "◀"),
    make("button", { type: "button", id: "pan-right", onclick: () => pan(0.4), "aria-label": "Later" }, "▶"),
    make("button", { type: "button", id: "whole", onclick: () => show(0, whole) }, "Whole run"), where);
  const figure = make("figure", {}, tools, make("div", { class: "stage" }, canvas), readout, keys(), markKeys(),
    make("figcaption", {}, "Full bars are work, low bars are waiting. Drag to pan; pinch, double-click, or Ctrl and the wheel to zoom; or the keys + − ← → Home."));
  redraws.set(figure, () => drawTimeline(canvas, rows, now(), where));
  const marked = shown().filter(({ run }) => run.timeline.marks.length);
  const listed = marked.length ? asTable("marks", () => table(["when", "what", "run"], marked.flatMap(({ run }) =>
    run.timeline.marks.map((mark) => [seconds(mark.t), mark.text, run.label])), { textColumns: 3 })) : null;
  if (listed) listed.firstChild.textContent = "The marks as a table";
  const notes = shown().filter(({ run }) => run.timeline.note).map(({ run }) => make("p", { class: "soft" }, `${run.label}: ${run.timeline.note}`));
  return section("timeline", "Timeline", figure, listed, ...notes);
}

/** What a slice under the pointer is. */
function tell(row, at, pixel) {
  if (!row || row.kind === "head") return "";
  if (row.kind === "marks") {
    const near = row.marks.filter((mark) => Math.abs(mark.t - at) < 8 * pixel).slice(0, 3);
    return near.map((mark) => `${row.run.label}, ${seconds(mark.t)}: ${mark.text}`).join("; ");
  }
  if (row.kind === "steps") {
    const place = lastBefore(row.steps.t, at);
    return place < 0 ? "" : `${row.run.label}, ${row.steps.name} at ${seconds(at)}: ${number(row.steps.y[place])}`;
  }
  const { track } = row;
  let place = lastBefore(track.begin, at);
  if (place < 0 || track.end[place] < at) {
    const after = place + 1 < track.begin.length && track.begin[place + 1] - at < 3 * pixel ? place + 1 : -1;
    place = place >= 0 && at - track.end[place] < 3 * pixel ? place : after;
    if (place < 0) return `${row.run.label}, ${track.name} at ${seconds(at)}: not recorded`;
  }
  const when = `${seconds(track.begin[place])} to ${seconds(track.end[place])} (${seconds(track.end[place] - track.begin[place])})`;
  const mixed = track.mixed[place];
  const what = mixed ? mixed.map(([cause, share]) => `${data.causes[cause].meaning} ${percent(share)}`).join(", ") : data.causes[track.cause[place]].meaning;
  return `${row.run.label}, ${track.name}: ${what}${mixed ? "" : which(track, place)}, ${when}`;
}

/** Which ticket, update or version a slice is about. */
function which(track, place) {
  const kind = data.causes[track.cause[place]].name, count = track.number[place], version = track.version[place];
  const parts = [];
  if (count >= 0) parts.push(`${kind === "learn" ? "update" : "ticket"} ${count}`);
  if (version >= 0) parts.push(`version ${version}`);
  return parts.length ? ` ${parts.join(", ")}` : "";
}

/** The last place with values[place] <= wanted, or -1. */
function lastBefore(values, wanted) {
  let low = -1, high = values.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (values[middle] <= wanted) low = middle; else high = middle - 1;
  }
  return low;
}

const gutterOf = (width) => Math.min(120, Math.max(72, width * 0.16));

function drawTimeline(canvas, rows, { begin, end }, where) {
  const width = canvas.clientWidth, height = rows[rows.length - 1].y + rows[rows.length - 1].height + 4;
  if (!width) return;
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const paint = { ink: colour("--ink"), soft: colour("--soft"), grid: colour("--grid"), causes: data.causes.map((cause) => colour(cause.colour)) };
  const left = gutterOf(width), span = end - begin, X = (at) => left + (at - begin) / span * (width - left);
  pen.fillStyle = paint.soft; pen.strokeStyle = paint.grid; pen.lineWidth = 1;
  const marks = ticks(begin, end, Math.max(2, Math.floor(width / 110)));
  const texts = labels(marks, seconds);
  marks.forEach((at, place) => {
    const x = Math.round(X(at)) + 0.5;
    pen.beginPath(); pen.moveTo(x, AXIS - 4); pen.lineTo(x, height); pen.stroke();
    pen.textAlign = x > width - 30 ? "right" : "center";
    pen.fillText(texts[place], x, AXIS / 2);
  });
  pen.textAlign = "left";
  for (const row of rows) {
    if (row.kind === "head") {
      pen.fillStyle = paint.ink; pen.font = "600 12px system-ui, sans-serif";
      pen.fillText(row.run.label, 4, row.y + HEAD / 2, width - 8);
      pen.font = "12px system-ui, sans-serif";
      continue;
    }
    pen.fillStyle = paint.soft;
    pen.fillText({ slices: () => row.track.name, steps: () => row.steps.name, marks: () => "marks" }[row.kind](), 4, row.y + row.height / 2, left - 10);
    pen.save(); pen.beginPath(); pen.rect(left, row.y, width - left, row.height); pen.clip();
    if (row.kind === "slices") drawSlices(pen, row, X, begin, end, left, width, paint.causes);
    else if (row.kind === "marks") drawMarks(pen, row, X, begin, end, colour("--warn"));
    else drawSteps(pen, row, X, begin, end, colour(`--run${row.place % 6}`));
    pen.restore();
  }
  where.textContent = `${seconds(begin)} to ${seconds(end)}`;
}

/** Wide slices one by one; those under a pixel or so are added up per column, in proportion to their time. */
function drawSlices(pen, row, X, begin, end, left, width, colours) {
  const { track, y } = row, high = ROW - 4, base = y + ROW - 2, kinds = data.causes.length, columns = Math.ceil(width - left);
  let crowd = null;
  const size = track.begin.length;
  for (let place = Math.max(0, lastBefore(track.begin, begin)); place < size && track.begin[place] < end; place += 1) {
    if (track.end[place] <= begin) continue;
    const x0 = X(Math.max(begin, track.begin[place])), x1 = X(Math.min(end, track.end[place]));
    const mixed = track.mixed[place];
    if (x1 - x0 >= 1.5 && !mixed) {
      const cause = track.cause[place], tall = data.causes[cause].kind === "busy" ? high : high * 0.4;
      pen.fillStyle = colours[cause];
      pen.fillRect(x0, base - tall, Math.max(0.5, x1 - x0 - (x1 - x0 > 4 ? 0.6 : 0)), tall);
      continue;
    }
    crowd = crowd || new Float32Array(columns * kinds);
    const parts = mixed || [[track.cause[place], 1]];
    for (let column = Math.max(0, Math.floor(x0 - left)); column <= Math.min(columns - 1, Math.floor(x1 - left)); column += 1) {
      const cover = Math.min(x1 - left, column + 1) - Math.max(x0 - left, column);
      if (cover > 0) for (const [cause, share] of parts) crowd[column * kinds + cause] += cover * share;
    }
  }
  if (crowd) for (let column = 0; column < columns; column += 1) {
    let from = base;
    for (let cause = 0; cause < kinds; cause += 1) {
      const cover = crowd[column * kinds + cause];
      if (cover > 0.004) { pen.fillStyle = colours[cause]; pen.fillRect(left + column, from - cover * high, 1, cover * high); from -= cover * high; }
    }
  }
}

function drawSteps(pen, row, X, begin, end, ink) {
  const { t, y } = row.steps, most = Math.max(...y, 1), base = row.y + row.height - 3, high = row.height - 8;
  pen.beginPath(); pen.strokeStyle = ink; pen.lineWidth = 1.5;
  let pending = false;
  for (let place = Math.max(0, lastBefore(t, begin)); place < t.length && (t[place] <= end || !pending); place += 1) {
    const level = base - y[place] / most * high;
    if (pending) pen.lineTo(X(t[place]), level); else pen.moveTo(X(t[place]), level);
    const until = place + 1 < t.length ? t[place + 1] : row.run.timeline.end_s;
    pen.lineTo(X(until), level);
    pending = true;
  }
  pen.stroke();
}

/** On a field of 12 by 12. They differ by shape: a path, and whether it is filled. */
const MARKS = {
  alarm: ["M6 1L11 11H1Z", true],
  "alarm over": ["M6 1L11 11H1Z", false],
  "failed evaluation": ["M2 2L10 10M10 2L2 10", false],
  restart: ["M6 1L11 6L6 11L1 6Z", true],
  notice: ["M6 1L11 6L6 11L1 6Z", false],
  move: ["M2 2L10 6L2 10Z", false],
  "publish retry": ["M2 2H10V10H2Z", false],
  collectors: ["M6 1V11M1 6H11", false],
};

function drawMarks(pen, row, X, begin, end, ink) {
  pen.fillStyle = ink; pen.strokeStyle = ink; pen.lineWidth = 1.5;
  for (const mark of row.marks) {
    if (mark.t < begin || mark.t > end) continue;
    const [path, isFull] = MARKS[mark.kind], figure = new Path2D();
    figure.addPath(new Path2D(path), new DOMMatrix([1, 0, 0, 1, X(mark.t) - 6, row.y + ROW / 2 - 6]));
    if (isFull) pen.fill(figure); else pen.stroke(figure);
  }
}

/** What the marks on the timeline mean. */
function markKeys() {
  const used = new Set(shown().flatMap(({ run }) => run.timeline.marks.map((mark) => mark.kind)));
  if (!used.size) return null;
  return make("ul", { class: "keys", id: "mark-keys", "aria-label": "Marks" }, ...Object.entries(MARKS).filter(([kind]) => used.has(kind)).map(([kind, [path, isFull]]) =>
    make("li", {}, shape("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, shape("path", { d: path, fill: isFull ? "currentColor" : "none", stroke: isFull ? "none" : "currentColor", "stroke-width": 1.5 })), kind)));
}

function keys() {
  const used = new Set(shown().flatMap(({ run }) => run.time.flatMap((role) => role.parts.map(([cause]) => cause))));
  return make("ul", { class: "keys", "aria-label": "Colours of the causes" }, ...data.causes.filter((cause, place) => used.has(place)).map((cause) =>
    make("li", {}, make("i", { class: cause.kind === "busy" ? null : "wait", style: `background: var(${cause.colour})` }), cause.meaning)));
}

// -- sections -------------------------------------------------------------------------------------

function summarySection() {
  return section("summary", "What happened", ...compared(), ...shown().flatMap(({ run, place }) => [
    make("h3", {}, data.runs.length > 1 ? sample(place) : null, ` ${fullName(run)}`),
    ...run.headline.map((line) => make("p", { class: "big" }, line)),
    ...run.notices.map((line) => make("p", { class: "notice" }, line)),
    make("dl", { class: "facts" }, ...run.facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
  ]));
}

/** Several runs in one table, a column each. */
function compared() {
  const all = shown();
  if (all.length < 2) return [];
  const rows = all[0].run.comparison.map(([name], line) => [name, ...all.map(({ run }) => run.comparison[line][1])]);
  const built = table(["", ...all.map(({ run }) => run.label)], rows);
  built.id = "comparison";
  return [built];
}

const fullName = (run) => (run.label === run.name || run.label.includes(`(${run.name})`) ? run.label : `${run.label} (${run.name})`);

function adviceSection() {
  return section("advice", "What to change", ...shown().flatMap(({ run }) => [
    data.runs.length > 1 ? make("h3", {}, run.label) : null,
    ...(run.findings.length ? run.findings : [{ title: run.without_findings[0], evidence: run.without_findings[1], change: "", calm: true }])
      .map((found) => make("div", { class: found.calm ? "finding calm" : "finding" }, make("h4", {}, found.title), make("p", {}, found.evidence),
        found.change ? make("p", {}, "Try ", make("code", {}, found.change), found.gain ? ` (${found.gain})` : null) : null)),
  ]));
}

function learningSection() {
  const axis = choices.axis, words = [...new Set(shown().map(({ run }) => run.steps))], word = words.length === 1 ? words[0] : "steps";
  const [field, label, format] = { time: ["t", "seconds", seconds], update: ["u", "updates", number], step: ["s", word, number] }[axis];
  const pick = (curve) => { // what is known of it on this axis
    const known = curve.y.map((_, at) => at).filter((at) => curve[field][at] !== null);
    return { x: known.map((at) => curve[field][at]), y: known.map((at) => curve.y[at]) };
  };
  const drawn = (part, more = {}) => shown().filter(({ run }) => run[part] && run[part].y.length).map(({ run, place }) => ({ label: run.label, place, ...more, ...pick(run[part]) }));
  const trained = shown().filter(({ run }) => run.training);
  const names = [...new Set(trained.map(({ run }) => run.training.name))];
  const failed = shown().flatMap(({ run, place }) => run.failures.filter((one) => one[field] !== null).map((one) => (
    { x: one[field], place, text: `${data.runs.length > 1 ? `${run.label}: ` : ""}the evaluation of version ${one.v} gave no score: ${one.why}` })));
  const axes = { x: label, formatX: format };
  const charts = [
    lineChart("scores", "Score of the evaluations", drawn("scores", { dots: true }), { ...axes, y: "score", marks: failed }),
    lineChart("score-lengths", "Length of their episodes", drawn("score_lengths", { dots: true }), { ...axes, y: "steps an episode" }),
    ...names.map((name) => lineChart(`training-${name.replace(/\W/g, "-")}`, `While training: ${name}`,
      trained.filter(({ run }) => run.training.name === name).map(({ run, place }) => ({ label: run.label, place, ...pick(run.training) })), { ...axes, y: name })),
    lineChart("training-lengths", "While training: length of the episodes", drawn("training_lengths"), { ...axes, y: "steps an episode" }),
  ].filter((chart) => chart !== null);
  const choose = chooser("axis", "Against", [["time", "time"], ["update", "updates"], ["step", word]], axis, (value) => { choices.axis = value; draw(); });
  const told = failed.length ? make("p", { class: "notice" }, `${failed.length === 1 ? "An evaluation" : `${failed.length} evaluations`} gave no score (crosses at the foot of the chart). The first: ${failed[0].text}.`) : null;
  return section("learning", "Learning", charts.length ? choose : nothing("No score of an evaluation, and no return or reward among what the learner reports."), told, make("div", { class: "charts" }, ...charts));
}

function timeSection() {
  const parts = [];
  for (const { run, place } of shown()) {
    if (data.runs.length > 1) parts.push(make("h3", {}, sample(place), ` ${run.label}`));
    if (!run.time.length) { parts.push(nothing("Nothing has happened yet.")); continue; }
    const stacks = make("div", { class: "stacks", role: "img", "aria-label": run.time.map((role) => `${role.role}: ` +
      role.parts.map(([cause, spent]) => `${data.causes[cause].meaning} ${percent(spent / role.sum_s)}`).join(", ")).join("; ") });
    for (const role of run.time) {
      stacks.append(make("div", {}, role.role), make("div", { class: "whole" }, ...role.parts.map(([cause, spent]) =>
        make("span", { class: data.causes[cause].kind === "busy" ? null : "wait", title: `${role.role}: ${data.causes[cause].meaning}, ${seconds(spent)}`,
          "data-seconds": spent, style: `width: ${(100 * spent / role.sum_s).toFixed(3)}%; background: var(${data.causes[cause].colour})` }))));
    }
    const rows = [], classes = [];
    for (const role of run.time) {
      role.parts.forEach(([cause, spent], line) => { rows.push([line ? "" : role.role, data.causes[cause].meaning, seconds(spent), percent(spent / role.sum_s)]); classes.push(null); });
      rows.push(["", `sum, of ${seconds(role.whole_s)}${role.seats > 1 ? ` (${role.seats} x ${seconds(role.whole_s / role.seats)})` : ""}`, seconds(role.sum_s), percent(role.sum_s / role.whole_s)]);
      classes.push("sum");
    }
    parts.push(stacks, asTable(`time-${place}`, () => table(["role", "what", "time", "share"], rows, { textColumns: 2, classes })));
  }
  return section("time", "Where the time went", keys(), ...parts);
}

function seriesOf(group, name) {
  return shown().filter(({ run }) => run[group][name]).map(({ run, place }) => ({ label: run.label, place, x: run[group][name].t, y: run[group][name].y }));
}

function flowSection() {
  const charts = [];
  for (const [name, title] of data.flows) {
    charts.push(lineChart(`flow-${name.replace(/\W/g, "-")}`, title, seriesOf("flow", name), { x: "seconds", y: title, formatX: seconds, zero: true, steps: name === "run/lead" }));
  }
  const drawn = charts.filter((chart) => chart !== null);
  return section("flow", "Throughput, queue and lead over time", drawn.length ? make("div", { class: "charts" }, ...drawn) : nothing("The run took no look at itself: it was too short, or has only begun."));
}

// -- lines of a run: each has a learner, a ledger and versions of its own ---------------------------

const LINE_DASHES = ["", "7 4", "2 3"], DASH_NAMES = ["solid", "dashed", "dotted"];

/** What is told of each line: of a run with one, the run itself. A colour is a line's, or beside other runs the run's. */
function linesShown() {
  const isAlone = data.runs.length < 2;
  return shown().flatMap(({ run, place }) => !run.lines ? [{ ...run.age, run, place, title: "", label: run.label, staleness: run.staleness, drops: run.drops, tickets: run.tickets, length_bias: run.length_bias }]
    : run.lines.map((line, at) => ({ ...line, run, title: line.name, place: isAlone ? at : place, dash: isAlone ? null : LINE_DASHES[at % 3] || "none", label: isAlone ? line.name : `${run.label}: ${line.name}` })));
}

const titlesOf = (lines) => [...new Set(lines.map((line) => line.title))];
const idOf = (title, at) => (at ? `-${title.replace(/\W/g, "-")}` : "");

function shares(counts) {
  const sum = Object.values(counts).reduce((total, count) => total + count, 0);
  return Object.fromEntries(Object.entries(counts).map(([name, count]) => [name, sum ? count / sum : 0]));
}

function stalenessSection() {
  const lines = linesShown(), isAlone = shown().length < 2; // beside others: shares, or a long run would dwarf a short one
  const charts = titlesOf(lines).map((title, at) => {
    const those = lines.filter((line) => line.title === title);
    const names = [...new Set(those.flatMap((line) => Object.keys(line.staleness)))].sort((a, b) => parseInt(a, 10) - parseInt(b, 10));
    return barChart(`ages${idOf(title, at)}`, `Age of the rollouts when they were taken${title ? `: ${title}` : ""}`, names,
      those.map((line) => ({ label: line.label, place: line.place, values: isAlone ? line.staleness : shares(line.staleness) })),
      { x: "versions old", y: isAlone ? "rollouts" : "share of each run's rollouts", format: isAlone ? number : percent });
  }).filter((chart) => chart !== null);
  const rows = lines.map((line) => [line.label, number(line.mean), number(line.max), line.bound === null ? "none" : number(line.bound), number(line.in_flight), number(line.in_queue)]);
  return section("staleness", "Staleness", charts.length > 1 ? make("div", { class: "charts" }, ...charts) : charts[0] || nothing("Nothing was taken yet."),
    charts.length ? table([lines.some((line) => line.title) ? "line" : "run", "mean", "largest", "bound", "of it in flight", "in the queue"], rows) : null);
}

/** Only of runs with several lines: the versions and the pace of each. */
function linesSection() {
  const lines = linesShown().filter((line) => line.title);
  if (!lines.length) return null;
  const curve = (id, title, pick, options) => lineChart(id, title, lines.filter((line) => pick(line)).map((line) => ({ label: line.label, place: line.place, dash: line.dash, x: pick(line).t, y: pick(line).y })),
    { x: "seconds", formatX: seconds, zero: true, ...options });
  const flows = [["updates_per_s", "Updates per second of each line"], ["ready", "Rollouts that wait for each learner"], ["staleness", "Mean staleness of each line when taken"], ["lead", "Lead of each line, in versions"]]
    .map(([name, title]) => curve(`lines-${name}`, title, (line) => line.flow[name], { y: title, steps: name === "lead" })).filter((chart) => chart !== null);
  const said = data.runs.length < 2
    ? make("p", { class: "lines-key" }, ...lines.flatMap((line) => [sample(line.place), ` ${line.label}  `]))
    : nothing(`Lines of a run have its colour: ${titlesOf(lines).map((title, at) => `${title} ${DASH_NAMES[at % 3]}`).join(", ")}.`);
  const rows = lines.map((line) => [line.label, number(line.version), number(line.updates), number(line.lead), line.every === 1 ? "every" : `one of ${line.every}`, line.update_s, line.worked, line.waited]);
  return section("lines", "Lines", said, curve("ladders", "Newest version of each line", (line) => line.ladder, { y: "version", steps: true }),
    make("div", { class: "charts" }, ...flows),
    table(["line", "version", "updates", "lead", "rollouts it takes", "an update takes", "learner worked", "waited for rollouts"], rows));
}

function dropSection() {
  const lines = linesShown();
  const charts = titlesOf(lines).map((title, at) => {
    const those = lines.filter((line) => line.title === title), reasons = [...new Set(those.flatMap((line) => Object.keys(line.drops)))];
    const any = those.some((line) => Object.values(line.drops).some((count) => count));
    return any ? barChart(`reasons${idOf(title, at)}`, `Drops by reason${title ? `: ${title}` : ""}`, reasons, those.map((line) => ({ label: line.label, place: line.place, values: line.drops })), { x: "reason", y: "tickets" }) : null;
  }).filter((chart) => chart !== null);
  const heads = [lines.some((line) => line.title) ? "line" : "run", ...data.tickets.map(([, title]) => title), "length bias"];
  const rows = lines.map((line) => [line.label, ...data.tickets.map(([name]) => number(line.tickets[name] || 0)), line.length_bias === null ? "-" : `${line.length_bias >= 0 ? "+" : ""}${percent(line.length_bias)}`]);
  return section("drops", "Tickets, drops and length bias",
    charts.length > 1 ? make("div", { class: "charts" }, ...charts) : charts[0] || nothing("Nothing was dropped."),
    table(heads, rows),
    nothing("Length bias: how much longer or shorter the rollouts are that were trained on than those that were offered."));
}

/** The curves of one learner in each run: what tells whether staleness hurts, and behind a fold all the rest. */
function diagnosticsOf(id, learners, what) {
  const drawn = (name) => lineChart(`${id}-${name.replace(/\W/g, "-")}`, data.meanings[name] || name,
    learners.filter((one) => one.learn[name]).map((one) => ({ label: one.label, place: one.place, x: one.learn[name].t, y: one.learn[name].y })), { x: "seconds", y: name, formatX: seconds });
  const names = [...new Set(learners.flatMap((one) => one.diagnostics))];
  const charts = names.map(drawn).filter((chart) => chart !== null);
  const others = [...new Set(learners.flatMap((one) => Object.keys(one.learn)))].filter((name) => !names.includes(name));
  const more = others.length ? make("details", { ontoggle: (event) => {
    const box = event.target;
    if (box.open) opened.add(`${id}-more`); else opened.delete(`${id}-more`);
    if (!box.open || box.children.length > 1) return;
    box.append(make("div", { class: "charts" }, ...others.map(drawn).filter((chart) => chart !== null)));
    fit();
  } }, make("summary", {}, `What else ${what} reports (${others.length})`)) : null;
  if (more) more.open = opened.has(`${id}-more`);
  return [charts.length ? make("div", { class: "charts" }, ...charts) : nothing(`The learner reports no effective sample size, KL or clip fraction.`), more];
}

function learnerSection() {
  const others = linesShown().filter((line) => line.title && line.title !== line.run.lines[0].name && Object.keys(line.learn).length);
  const titles = titlesOf(others);
  return section("learner", "Learner diagnostics", titles.length ? make("h3", {}, "First line") : null,
    ...diagnosticsOf("learn", shown().map(({ run, place }) => ({ label: run.label, place, learn: run.learn, diagnostics: run.diagnostics })), "the learner"),
    ...titles.flatMap((title) => [make("h3", {}, `Line ${title}`), ...diagnosticsOf(`learn-${title}`, others.filter((line) => line.title === title), `the learner of line ${title}`)]));
}

// -- episodes -------------------------------------------------------------------------------------

const TURN = [["reply", "--collect", "generates"], ["step", "--evaluate", "environment"]];
const named = (lines) => lines.map((line, at) => `${line.label} (${DASH_NAMES[at]})`).join(", ");

/** Only of runs with episodes: how they ended, how long they took, and when the turns of one group were. */
function episodesSection() {
  const parts = shown().filter(({ run }) => run.agents).flatMap(({ run, place }) => {
    const told = run.agents, charts = [];
    const success = Object.entries(told.success).filter(([, line]) => line).map(([name, line], at) => ({ label: name, place, dash: LINE_DASHES[at], dots: name === "evaluation", x: line.t, y: line.y }));
    charts.push(lineChart(`agents-success-${place}`, "Success", success, { x: "seconds", y: named(success), formatX: seconds, formatY: percent, zero: true }));
    for (const chart of told.charts) {
      const lines = chart.lines.map((line, at) => ({ label: line.name, place, dash: LINE_DASHES[at], x: line.t, y: line.y }));
      charts.push(lineChart(`agents-${chart.id}-${place}`, chart.title, lines, { x: "seconds", y: named(lines), formatX: seconds, zero: true }));
    }
    charts.push(barChart(`agents-ends-${place}`, "What ended the episodes of the last updates", Object.keys(told.ends), [{ label: run.label, place, values: told.ends }], { x: "what ended them", y: "share", format: percent }));
    return [
      data.runs.length > 1 ? make("h3", {}, sample(place), ` ${run.label}`) : null,
      make("dl", { class: "facts" }, ...told.facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
      groupTimeline(told.groups, place),
      make("div", { class: "charts" }, ...charts.filter((chart) => chart !== null)),
    ];
  });
  return parts.length ? section("episodes", "Episodes", ...parts) : null;
}

/** One track an episode, a reply and a step in turn, on one clock. */
function groupTimeline(groups, place) {
  if (!groups.length) return null;
  const key = `group-${place}`, chosen = groups.find((one) => one.title === choices[key]) || groups[0];
  const end = Math.max(...chosen.tracks.map((track) => track.turns[track.turns.length - 1][2]), 1e-9);
  const told = chosen.tracks.map((track) => `${track.label}: ${track.turns.length} turns, ${seconds(track.turns[track.turns.length - 1][2])}`);
  const picture = shape("svg", { class: "chart", role: "img", id: key, "aria-label": `One group, an episode a track. ${told.join("; ")}` });
  const readout = make("output", { for: key });
  const choose = make("label", {}, "Group ", make("select", { id: `choose-${key}`, onchange: (event) => { choices[key] = event.target.value; draw(); } },
    ...groups.map((one) => { const option = make("option", { value: one.title }, one.title); option.selected = one === chosen; return option; })));
  const legend = make("ul", { class: "keys" }, ...TURN.map(([, tint, text]) => make("li", {}, make("i", { style: `background: var(${tint})` }), text)));
  const figure = make("figure", { class: "lines" }, make("h3", {}, "Turns of one group"), choose, legend, picture, readout, make("figcaption", {}, "An episode a line, in seconds since its group began"),
    asTable(key, () => table(["episode", "turn", "reply begins", "generates", "environment"], chosen.tracks.flatMap((track) =>
      track.turns.map(([begin, said, over], turn) => [track.label, turn + 1, seconds(begin), seconds(said - begin), seconds(over - said)])))));
  redraws.set(figure, (width) => {
    const left = Math.min(110, width * 0.28), right = 8, row = 16, bottom = 22, height = chosen.tracks.length * row + bottom;
    const X = (value) => left + value / end * (width - left - right);
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.setAttribute("height", height);
    picture.replaceChildren();
    const marks = ticks(0, end, Math.max(2, Math.floor(width / 140))), texts = labels(marks, seconds);
    marks.forEach((at, line) => {
      const anchor = X(at) + 24 > width ? "end" : "middle";
      picture.append(shape("line", { class: "grid", x1: X(at), x2: X(at), y1: 0, y2: height - bottom }), shape("text", { x: X(at), y: height - 6, "text-anchor": anchor }, texts[line]));
    });
    chosen.tracks.forEach((track, line) => {
      picture.append(shape("text", { x: left - 6, y: line * row + 12, "text-anchor": "end" }, track.label));
      track.turns.forEach((turn, number) => TURN.forEach(([kind, tint, text], part) => {
        const size = turn[part + 1] - turn[part], said = `${track.label}, turn ${number + 1}: ${text} ${seconds(size)}, from ${seconds(turn[part])}`;
        const bar = shape("rect", { x: X(turn[part]), y: line * row + 2, width: Math.max(0.5, size / end * (width - left - right)), height: row - 4, fill: `var(${tint})`, "data-part": kind, "data-seconds": size }, shape("title", {}, said));
        bar.addEventListener("pointerenter", () => { readout.textContent = said; });
        picture.append(bar);
      }));
    });
  });
  return figure;
}

function samplesSection() {
  const parts = shown().filter(({ run }) => run.samples.length).flatMap(({ run }) => [
    data.runs.length > 1 ? make("h3", {}, run.name) : null,
    ...run.samples.map((one) => make("div", { class: "sample" }, make("h4", {}, one.head), make("pre", { class: "soft" }, one.prompt), make("pre", {}, one.reply))),
  ]);
  return parts.length ? section("samples", "What was generated last", ...parts) : null;
}

function whatIfSection() {
  const parts = [];
  for (const { run } of shown()) {
    if (data.runs.length > 1) parts.push(make("h3", {}, run.label));
    if (!run.what_if.rows.length) { parts.push(nothing(run.what_if.note)); continue; }
    parts.push(make("p", { class: "big" }, run.what_if.recommendation));
    const rows = run.what_if.rows.map((row) => [row.lead, number(row.updates_per_s), `${row.speedup.toFixed(2)}x`, number(row.staleness_mean), number(row.staleness_max), percent(row.learner_idle)]);
    const classes = run.what_if.rows.map((row) => (row.is_best ? "best" : null));
    parts.push(table(["lead", "updates/s", "over lead 0", "mean age", "max age", "learner idle"], rows, { classes, caption: run.what_if.caption, textColumns: 0 }));
    parts.push(make("p", { class: "soft" }, run.what_if.fit), make("p", { class: "soft" }, run.what_if.note));
  }
  return section("what-if", "What another lead would have given", ...parts);
}

function configSection() {
  const parts = [];
  const all = shown();
  const names = [...new Set(all.flatMap(({ run }) => run.config.map((row) => row.name)))];
  const rowOf = (run, name) => run.config.find((row) => row.name === name);
  const lines = names.map((name) => {
    const found = all.map(({ run }) => rowOf(run, name));
    const values = found.map((row) => (row ? row.value : "-"));
    const any = found.find((row) => row);
    return { name, values, standard: any.standard, what: any.what, changed: found.some((row) => row && row.is_changed), differs: new Set(values).size > 1 };
  });
  const heads = ["setting", ...all.map(({ run }) => (data.runs.length > 1 ? run.label : "value")), "default"];
  const build = (chosen) => table(heads, chosen.map((line) => [line.name, ...line.values, line.standard]), { textColumns: heads.length, classes: chosen.map((line) => (line.differs ? "differs" : null)) });
  const changed = lines.filter((line) => line.changed || line.differs), rest = lines.filter((line) => !line.changed && !line.differs);
  if (!lines.length) parts.push(nothing("There is no config.yaml in the run folder."));
  else {
    parts.push(changed.length ? build(changed) : nothing("Everything is at its default."));
    if (data.runs.length > 1 && lines.some((line) => line.differs)) parts.push(nothing("Shaded: what differs between the runs."));
    if (rest.length) {
      const box = asTable("config", () => build(rest));
      box.firstChild.textContent = `The other ${rest.length} settings, all at their defaults`;
      parts.push(box);
    }
  }
  return section("configuration", "Configuration", ...parts);
}

function placeSection() {
  const all = shown();
  const names = [...new Set(all.flatMap(({ run }) => Object.keys(run.environment)))];
  const rows = names.map((name) => [name, ...all.map(({ run }) => run.environment[name] || "-")]);
  const heads = ["", ...all.map(({ run }) => (data.runs.length > 1 ? run.label : "value"))];
  return section("environment", "Environment", rows.length ? table(heads, rows, { textColumns: heads.length }) : nothing("The run folder does not say where it ran."));
}

// -- all of it ------------------------------------------------------------------------------------

function drawLegend() {
  showLegend(data.runs.map((run) => make("span", {}, run.label, run.label === run.name ? null : make("small", {}, ` ${run.name}`))), draw);
}

/** Everything, anew. */
function draw() {
  redraws.clear();
  drawLegend();
  showSections([summarySection(), adviceSection(), learningSection(), episodesSection(), timeline(), stalenessSection(), linesSection(), timeSection(), flowSection(),
    dropSection(), learnerSection(), samplesSection(), whatIfSection(), configSection(), placeSection()]);
}

async function follow() {
  let said = null;
  for (;;) {
    await new Promise((done) => { setTimeout(done, 1000 * data.refresh_s); });
    try {
      const answer = await fetch("data.json", { cache: "no-store", headers: said ? { "If-None-Match": said } : {} });
      if (answer.status === 200) {
        said = answer.headers.get("ETag");
        data = await answer.json();
        draw();
      }
    } catch {
      $("state").textContent = "The server is gone; this is the last that was seen.";
      return;
    }
    if (!data.is_live) return;
  }
}

chooseTheme(remembered());
draw();
if (data.is_live) follow();
