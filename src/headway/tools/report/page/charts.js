/* What the pages of the house share: small parts, tables, charts of lines and bars, the theme. No network, no library.

 It stands before the script of a page, in one scope with it: `data` is what the page draws. */
const $ = (id) => document.getElementById(id);
let data = JSON.parse($("data").textContent);
const opened = new Set();
const hidden = new Set(); // places of what the legend has switched off
const redraws = new Map(); // element -> what draws it at a new width

// -- small parts ----------------------------------------------------------------------------------

function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  fill(node, attributes, children);
  return node;
}

function shape(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  fill(node, attributes, children);
  return node;
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const runColour = (place) => `var(--run${place % 6})`;
const DASHES = ["", "7 4", "2 3", "9 3 2 3", "12 4", "4 2"];
const dashOf = (place) => DASHES[(place + Math.floor(place / 6)) % 6]; // after six colours, the colours with other dashes

function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (!Number.isFinite(value)) return value > 0 ? "infinite" : "-infinite";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const size = Math.abs(value);
  return size !== 0 && (size >= 1e6 || size < 1e-3) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

function seconds(value) {
  const size = Math.abs(value);
  if (size >= 100) return `${value.toFixed(0)} s`;
  if (size >= 10) return `${value.toFixed(1)} s`;
  if (size >= 1) return `${value.toFixed(2)} s`;
  if (size >= 1e-3) return `${Number((1e3 * value).toPrecision(3))} ms`;
  return size === 0 ? "0 s" : `${Number((1e6 * value).toPrecision(3))} µs`;
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

/** As many decimals as the marks of an axis need: a step of 2.5 has one more than one of 2. */
function decimals(step) {
  for (let digits = 0; digits < 12; digits += 1) {
    const moved = step * 10 ** digits;
    if (Math.abs(moved - Math.round(moved)) <= 1e-6 * moved) return digits;
  }
  return 12;
}

/** What stands at the marks of an axis: exactly where they are, unlike the short numbers elsewhere. */
function labels(marks, format) {
  if (format === seconds) {
    const digits = marks.length > 1 ? decimals(marks[1] - marks[0]) : decimals(Math.abs(marks[0]) || 1);
    return marks.map((at) => `${at.toFixed(digits)} s`);
  }
  if (format !== number) return marks.map(format);
  return marks.map((at) => (at !== 0 && (Math.abs(at) >= 1e6 || Math.abs(at) < 1e-3) ? at.toExponential() : String(at)));
}

function nearest(values, wanted) {
  let low = 0, high = values.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle + 1; else high = middle;
  }
  return low > 0 && wanted - values[low - 1] < values[low] - wanted ? low - 1 : low;
}

/** Cells of the first `textColumns` may break; numbers and heads stay whole, and the box around them scrolls. */
function table(heads, rows, { caption = null, textColumns = 1, classes = [] } = {}) {
  const kind = (place) => (place < textColumns ? "text" : null);
  return make("div", { class: "wide" }, make("table", {},
    caption === null ? null : make("caption", {}, make("span", {}, caption)),
    make("thead", {}, make("tr", {}, ...heads.map((head, place) => make("th", { scope: "col", class: kind(place) }, head)))),
    make("tbody", {}, ...rows.map((row, line) => make("tr", { class: classes[line] || null },
      ...row.map((cell, place) => make(place === 0 ? "th" : "td", { scope: place === 0 ? "row" : null, class: kind(place) }, String(cell))))))));
}

/** A table that is built when somebody opens it. It stays open when the page is drawn again. */
function asTable(key, build) {
  const box = make("details", { ontoggle: () => {
    if (box.open) opened.add(key); else opened.delete(key);
    if (box.open && box.children.length === 1) box.append(build());
  } }, make("summary", {}, "As a table"));
  box.open = opened.has(key);
  return box;
}

function section(id, title, ...children) {
  return make("section", { id, "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title` }, title), ...children);
}

const nothing = (what) => make("p", { class: "soft" }, what);

// -- lines and bars -------------------------------------------------------------------------------

/** series: [{label, place, x, y, dots, low, high}] with x rising; between low and high, where given, lies a band. Gaps (null)
 *  are left open. marks: [{x, text, place}], crosses at the foot. */
function lineChart(id, title, series, { x = "", y = "", formatX = number, formatY = number, steps = false, zero = false, marks = [], height = 200 } = {}) {
  const full = series.map((one) => one.y.some((value) => value !== null) ? one : null).filter((one) => one !== null);
  if (!full.length) return null;
  const picture = shape("svg", { class: "chart", role: "img", tabindex: 0, "aria-label": summary(title, full, formatX, formatY), id });
  const readout = make("output", { for: id });
  const figure = make("figure", { class: "lines" }, make("h3", {}, title), picture, readout, make("figcaption", {}, `${y} against ${x}`),
    asTable(id, () => {
      const banded = full.some((one) => one.low);
      const rows = full.flatMap((one) => one.x.map((at, place) => [one.label, formatX(at), formatY(one.y[place]),
        ...(banded ? [one.low ? formatY(one.low[place]) : "-", one.low ? formatY(one.high[place]) : "-"] : [])]));
      return table(["series", x, y, ...(banded ? ["from", "to"] : [])], rows);
    }));
  redraws.set(figure, (width) => drawLines(picture, readout, full, width, { formatX, formatY, steps, zero, marks, height }));
  return figure;
}

function summary(title, series, formatX, formatY) {
  const parts = series.map((one) => {
    const values = one.y.filter((value) => value !== null);
    return `${one.label}: from ${formatY(values[0])} to ${formatY(values[values.length - 1])}, ` +
      `lowest ${formatY(Math.min(...values))}, highest ${formatY(Math.max(...values))}`;
  });
  return `${title}. ${parts.join("; ")}. The numbers are in the table below.`;
}

function range(series, field) {
  let low = Infinity, high = -Infinity;
  for (const one of series) for (const value of one[field]) {
    if (value === null) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

function drawLines(picture, readout, series, width, { formatX, formatY, steps, zero, marks: crosses, height }) {
  const left = 52, right = 8, top = 8, bottom = 24;
  let [x0, x1] = range(crosses.length ? [...series, { x: crosses.map((one) => one.x) }] : series, "x");
  let [y0, y1] = range(series, "y");
  for (const [low, high] of ["low", "high"].map((part) => range(series.filter((one) => one[part]), part))) { y0 = Math.min(y0, low); y1 = Math.max(y1, high); }
  if (zero) { y0 = Math.min(0, y0); y1 = Math.max(0, y1); }
  if (x1 <= x0) { x0 -= 0.5; x1 += 0.5; }
  if (y1 <= y0) { const pad = Math.abs(y0) * 0.1 || 0.5; y0 -= zero && y0 === 0 ? 0 : pad; y1 += pad; }
  const X = (value) => left + (value - x0) / (x1 - x0) * (width - left - right);
  const Y = (value) => height - bottom - (value - y0) / (y1 - y0) * (height - top - bottom);
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("height", height);
  picture.replaceChildren();
  const levels = ticks(y0, y1, Math.round(height / 50)), named = labels(levels, formatY);
  levels.forEach((at, place) => {
    picture.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: Y(at), y2: Y(at) }),
      shape("text", { x: left - 6, y: Y(at) + 4, "text-anchor": "end" }, named[place]));
  });
  const marks = ticks(x0, x1, Math.max(2, Math.floor(width / 120))), texts = labels(marks, formatX);
  marks.forEach((at, place) => {
    const label = texts[place], near = 3.5 * label.length;
    const anchor = X(at) + near > width ? "end" : X(at) - near < left - 20 ? "start" : "middle";
    picture.append(shape("text", { x: Math.min(X(at), width), y: height - 6, "text-anchor": anchor }, label));
  });
  picture.append(shape("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  for (const one of series) {
    const inside = one.low ? one.x.map((_, place) => place).filter((place) => one.low[place] !== null && one.high[place] !== null) : [];
    if (inside.length > 1) {
      const corner = (place, value) => `${X(one.x[place]).toFixed(1)} ${Y(value).toFixed(1)}`;
      const there = inside.map((place) => corner(place, one.high[place])), back = inside.map((place) => corner(place, one.low[place])).reverse();
      picture.append(shape("path", { class: "band", d: `M${[...there, ...back].join("L")}Z`, fill: runColour(one.place), "data-band": one.label }));
    }
    let path = "", pen = false;
    one.x.forEach((at, place) => {
      const value = one.y[place];
      if (value === null) { pen = false; return; }
      if (pen && steps) path += `H${X(at).toFixed(1)}`;
      path += `${pen ? "L" : "M"}${X(at).toFixed(1)} ${Y(value).toFixed(1)}`;
      pen = true;
    });
    picture.append(shape("path", { d: path, fill: "none", stroke: runColour(one.place), "stroke-width": one.dots ? 2 : 1.5,
      "stroke-dasharray": one.dash || dashOf(one.place), "stroke-linejoin": "round", "data-series": one.label }));
    if ((one.dots || one.x.length === 1) && one.x.length <= 120) {
      one.x.forEach((at, place) => {
        if (one.y[place] !== null) picture.append(shape("circle", { cx: X(at), cy: Y(one.y[place]), r: 3, fill: runColour(one.place) },
          shape("title", {}, `${one.label}: ${formatY(one.y[place])} at ${formatX(at)}`)));
      });
    }
  }
  for (const one of crosses) {
    const at = X(one.x), foot = height - bottom - 7;
    const cross = shape("path", { class: "cross", d: `M${at - 4} ${foot - 4}l8 8m0 -8l-8 8`, stroke: runColour(one.place), "stroke-width": 2.5, fill: "none" }, shape("title", {}, one.text));
    cross.addEventListener("pointerenter", () => { readout.textContent = one.text; });
    picture.append(cross);
  }
  const cursor = shape("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
  picture.append(cursor);
  const longest = series.reduce((most, one) => (one.x.length > most.x.length ? one : most));
  let at = null;
  const point = (value) => {
    at = value;
    cursor.setAttribute("visibility", "visible");
    cursor.setAttribute("x1", X(value)); cursor.setAttribute("x2", X(value));
    const parts = series.map((one) => {
      const place = nearest(one.x, value), known = one.low && one.low[place] !== null;
      return `${one.label} ${formatY(one.y[place])}${known ? ` [${formatY(one.low[place])}, ${formatY(one.high[place])}]` : ""}`;
    });
    readout.textContent = `${formatX(value)}: ${parts.join(", ")}`;
  };
  picture.onpointermove = (event) => {
    const box = picture.getBoundingClientRect();
    const wanted = x0 + ((event.clientX - box.left) * width / box.width - left) / (width - left - right) * (x1 - x0);
    point(longest.x[nearest(longest.x, wanted)]);
  };
  picture.onkeydown = (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const here = at === null ? (move > 0 ? -1 : longest.x.length) : nearest(longest.x, at);
    point(longest.x[Math.min(longest.x.length - 1, Math.max(0, here + move))]);
  };
}

/** rows: [{label, place, value, low, high}], a line each: a dot, and a bar from low to high. middle: where a line stands for no difference. */
function intervalChart(id, title, rows, { x = "", format = number, from = null, to = null, middle = null } = {}) {
  if (!rows.length) return null;
  const said = (row) => `${format(row.value)}${row.low === null ? "" : ` [${format(row.low)}, ${format(row.high)}]`}`;
  const picture = shape("svg", { class: "chart", role: "img", id, "aria-label": `${title}. ${rows.map((row) => `${row.label}: ${said(row)}`).join("; ")}` });
  const figure = make("figure", { class: "intervals" }, make("h3", {}, title), picture, make("figcaption", {}, x));
  redraws.set(figure, (width) => {
    const row = 44, bottom = 24, left = 12, right = 12, height = rows.length * row + bottom;
    const values = rows.flatMap((one) => [one.value, one.low, one.high]).filter((value) => value !== null);
    let low = from === null ? Math.min(...values) : from, high = to === null ? Math.max(...values) : to;
    if (high <= low) { low -= 0.5; high += 0.5; } else if (from === null) { const pad = (high - low) * 0.05; low -= pad; high += pad; }
    const X = (value) => left + (value - low) / (high - low) * (width - left - right);
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.setAttribute("height", height);
    picture.replaceChildren();
    const marks = ticks(low, high, Math.max(2, Math.floor(width / 110))), texts = labels(marks, format);
    marks.forEach((at, place) => picture.append(shape("line", { class: "grid", x1: X(at), x2: X(at), y1: 0, y2: height - bottom }),
      shape("text", { x: X(at), y: height - 6, "text-anchor": X(at) < 24 ? "start" : X(at) > width - 24 ? "end" : "middle" }, texts[place])));
    if (middle !== null) picture.append(shape("line", { class: "cursor", x1: X(middle), x2: X(middle), y1: 0, y2: height - bottom }));
    rows.forEach((one, line) => {
      const y = line * row + 30;
      picture.append(shape("text", { class: "name", x: left, y: y - 14 }, `${one.label}: ${said(one)}`));
      if (one.low !== null) picture.append(shape("line", { class: "interval", x1: X(one.low), x2: X(one.high), y1: y, y2: y, stroke: runColour(one.place), "data-low": one.low, "data-high": one.high }));
      picture.append(shape("circle", { cx: X(one.value), cy: y, r: 5, fill: runColour(one.place), "data-value": one.value }, shape("title", {}, `${one.label}: ${said(one)}`)));
    });
  });
  return figure;
}

/** groups: [{label, place, values: {name: count}}], drawn side by side for each name. */
function barChart(id, title, names, groups, { x = "", y = "", format = number } = {}) {
  if (!names.length || !groups.length) return null;
  const told = groups.map((group) => `${group.label}: ` + names.map((name) => `${name}: ${format(group.values[name] || 0)}`).join(", "));
  const picture = shape("svg", { class: "chart", role: "img", id, "aria-label": `${title}. ${told.join("; ")}` });
  const figure = make("figure", { class: "bars" }, make("h3", {}, title), picture, make("figcaption", {}, `${y} by ${x}`),
    asTable(id, () => table([x, ...groups.map((group) => group.label)], names.map((name) => [name, ...groups.map((group) => format(group.values[name] || 0))]), { textColumns: 0 })));
  redraws.set(figure, (width) => {
    const height = 200, left = 52, right = 4, top = 8, bottom = 24;
    const most = Math.max(...groups.flatMap((group) => names.map((name) => group.values[name] || 0)), 1e-12);
    const Y = (value) => height - bottom - value / most * (height - top - bottom);
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.setAttribute("height", height);
    picture.replaceChildren();
    const levels = ticks(0, most, 4), named = labels(levels, format);
    levels.forEach((at, place) => {
      picture.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: Y(at), y2: Y(at) }),
        shape("text", { x: left - 6, y: Y(at) + 4, "text-anchor": "end" }, named[place]));
    });
    const slot = (width - left - right) / names.length, thick = Math.min(48, slot * 0.8 / groups.length);
    const every = Math.ceil(names.length * 34 / (width - left - right));
    names.forEach((name, column) => {
      const middle = left + slot * (column + 0.5);
      groups.forEach((group, place) => {
        const value = group.values[name] || 0;
        picture.append(shape("rect", { x: middle + (place - groups.length / 2) * thick, width: Math.max(1, thick - 1), y: Y(value),
          height: height - bottom - Y(value), fill: runColour(group.place), "data-name": name, "data-value": value },
        shape("title", {}, `${group.label}, ${name}: ${format(value)}`)));
      });
      if (column % every === 0) picture.append(shape("text", { x: middle, y: height - 6, "text-anchor": "middle" }, name));
    });
    picture.append(shape("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  });
  return figure;
}

function sample(place) {
  return shape("svg", { width: 26, height: 10, "aria-hidden": "true" }, shape("line", { x1: 0, x2: 26, y1: 5, y2: 5, stroke: runColour(place), "stroke-width": 3, "stroke-dasharray": dashOf(place) }));
}

/** A button for each that shows or hides it; at least one stays. */
function showLegend(names, draw) {
  $("legend").replaceChildren(...names.map((name, place) => make("button", { type: "button", class: "run", "aria-pressed": String(!hidden.has(place)), onclick: () => {
    if (hidden.has(place)) hidden.delete(place); else if (hidden.size + 1 < names.length) hidden.add(place);
    draw();
  } }, sample(place), name)));
  $("legend").hidden = names.length < 2;
}

/** The page with these sections, and what is said of it above and below. Who reads stays where he is. */
function showSections(found) {
  const scrolled = window.scrollY, focused = document.activeElement && document.activeElement.id;
  const sections = found.filter((one) => one !== null);
  document.title = data.title;
  $("title").textContent = data.title;
  $("state").textContent = data.state;
  $("made").textContent = data.made;
  $("main").replaceChildren(...sections);
  $("contents").replaceChildren(...sections.map((one) => make("a", { href: `#${one.id}` }, one.querySelector("h2").textContent)));
  fit();
  if (focused && $(focused)) $(focused).focus({ preventScroll: true });
  if (window.scrollY !== scrolled) window.scrollTo({ top: scrolled, behavior: "instant" });
}

/** A select with a label before it. */
function chooser(id, label, choices, chosen, choose) {
  return make("label", {}, `${label} `, make("select", { id, onchange: (event) => choose(event.target.value) },
    ...choices.map(([value, text]) => { const option = make("option", { value }, text); option.selected = value === chosen; return option; })));
}

// -- width and theme ------------------------------------------------------------------------------

/** Draw every chart at the width it has. */
function fit() {
  for (const [figure, redraw] of redraws) {
    if (!figure.isConnected) continue;
    const width = Math.max(200, Math.floor(figure.clientWidth));
    redraw(width);
  }
}

function chooseTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = theme;
  $("theme").value = theme;
  fit();
}

function remembered() {
  try { return localStorage.getItem("headway-theme") || "auto"; } catch { return "auto"; } // a page from a file may have no storage
}

$("theme").addEventListener("change", (event) => {
  chooseTheme(event.target.value);
  try { localStorage.setItem("headway-theme", event.target.value); } catch { /* then it is not remembered */ }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", fit);
let width = 0;
new ResizeObserver(() => { if (document.body.clientWidth !== width) { width = document.body.clientWidth; fit(); } }).observe(document.body);
