/* The report of a sweep: the settings beside each other, what each came to and how sure that is.

   A colour is a setting. Bands and bars are 95 % intervals over seeds; a setting with one run has none. */
const chosen = { measure: data.compared_by, axis: "steps", statistic: "mean" };
const shownSettings = () => data.settings.map((setting, place) => ({ setting, place })).filter(({ place }) => !hidden.has(place));
const STATISTIC = { mean: "Mean", iqm: "Interquartile mean", each: "Every run" };
const placeOf = (label) => data.settings.findIndex((setting) => setting.label === label);
const between = ([value, low, high], format = number) => (value === null ? "-" : `${format(value)}${low === null ? "" : ` [${format(low)}, ${format(high)}]`}`);
const share = (value) => value.toFixed(2);
const colourOf = (label, place) => (placeOf(label) < 0 ? place : placeOf(label));

function summarySection() {
  const said = [], failed = data.runs.filter((run) => run.state === "failed"), left = data.runs.filter((run) => !["finished", "failed"].includes(run.state));
  const [best, second] = data.aggregates, measure = data.compared_by ? data.measures[data.compared_by].toLowerCase() : "";
  if (best) {
    said.push(make("p", { class: "big" }, data.aggregates.length > 1 ? `Highest: ${best.label}, with an interquartile mean of ${between(best.iqm)} in the last ${measure}${data.tasks.length ? " (0 to 1 on each environment)" : ""}.` : `Last ${measure}: ${between(best.iqm)} (interquartile mean of ${best.runs} runs).`));
    if (second) {
      const pair = data.improvement.find((one) => one.better === best.label && one.than === second.label);
      said.push(make("p", { class: "big" }, `A run of it scores higher than one of ${second.label} with probability ${between(pair.probability, share)}${pair.probability[1] !== null && pair.probability[1] <= 0.5 ? ": these runs do not tell them apart" : ""}.`));
    }
  } else said.push(nothing("No run is finished yet."));
  const few = Math.max(...data.settings.map((setting) => setting.runs));
  if (few < 5) said.push(nothing(few === 1 ? "With one seed there is no interval: chance and setting cannot be told apart." : `With ${few} seeds an interval is too narrow rather than too wide: five or more say more.`));
  if (failed.length) said.push(make("p", { class: "notice" }, `${failed.length} of ${data.runs.length} runs failed and are not in the averages of last scores. The first, ${failed[0].folder}: ${failed[0].error}`));
  if (left.length) said.push(make("p", { class: "notice" }, `${left.length} of ${data.runs.length} runs are not finished: last scores are those of the finished ones, curves are of what is there.`));
  const rows = data.settings.map((setting) => [setting.label, setting.final ? between(setting.final.mean) : "-", setting.final ? between(setting.final.iqm) : "-",
    number(setting.env_steps), number(setting.updates), setting.seconds === null ? "-" : seconds(setting.seconds), `${setting.finished} of ${setting.runs}`]);
  const top = best && !data.tasks.length ? best.label : null;
  const settings = table(["setting", "mean [95 %]", "interquartile mean [95 %]", `${data.step_word} a run`, "updates a run", "time a run", "finished"], rows,
    { caption: data.compared_by ? `${data.measures[data.compared_by]}: the last of each finished run` : null, classes: data.settings.map((setting) => (setting.label === top && data.settings.length > 1 ? "best" : null)) });
  settings.id = "settings-table";
  return section("summary", "What came of it", ...said, settings);
}

function learningSection() {
  if (!chosen.measure) return section("learning", "Learning", nothing("No run has a number yet."));
  const { measure, axis, statistic } = chosen, title = data.measures[measure];
  const [label, format] = { steps: [data.step_word, number], updates: ["updates", number], seconds: ["seconds", seconds] }[axis];
  const series = shownSettings().flatMap(({ setting, place }) => {
    const curve = (setting.curves[measure] || {})[axis];
    if (!curve) return [];
    if (statistic === "each") return curve.runs.map((run) => ({ label: `${setting.label}, seed ${run.seed}`, place, x: run.x, y: run.y }));
    if (!curve.x.length) return [];
    const drawn = curve[statistic], isAlone = curve.count < 2;
    return [{ label: setting.label, place, x: curve.x, y: drawn.y, low: isAlone ? null : drawn.low, high: isAlone ? null : drawn.high }];
  });
  const choose = make("div", { class: "tools" },
    chooser("measure", "Show", Object.entries(data.measures), measure, (value) => { chosen.measure = value; draw(); }),
    chooser("axis", "against", [["steps", data.step_word], ["updates", "updates"], ["seconds", "time"]], axis, (value) => { chosen.axis = value; draw(); }),
    chooser("statistic", "as", Object.entries(STATISTIC), statistic, (value) => { chosen.statistic = value; draw(); }));
  const name = statistic === "each" ? title : `${STATISTIC[statistic]}: ${title[0].toLowerCase()}${title.slice(1)}`;
  const drawn = lineChart("curve", name, series, { x: label, y: measure.replace("_", " "), formatX: format, height: 340 });
  return section("learning", "Learning", choose, drawn || nothing("The runs have no stretch in common on this axis yet."),
    nothing(statistic === "each" ? "Every run by itself." : "A line is drawn from where all runs of its setting have a number to where the shortest of them ended; a run that ended because it reached its target stays where it was. Bands: 95 % intervals (bootstrap over seeds)."));
}

function aggregateSection() {
  if (!data.aggregates.length) return null;
  const rows = (part) => data.aggregates.map((one, place) => ({ label: one.label, place: colourOf(one.label, place), value: one[part][0], low: one[part][1], high: one[part][2] }));
  const what = data.measures[data.compared_by], unit = data.tasks.length ? "0: the lowest of all runs on an environment, 1: the highest" : what;
  const pairs = data.improvement.map((pair) => ({ label: `${pair.better} over ${pair.than}`, place: colourOf(pair.better, 0), value: pair.probability[0], low: pair.probability[1], high: pair.probability[2] }));
  const most = 15;
  return section("aggregate", "How sure is it",
    nothing(`Of the last ${what.toLowerCase()} of each finished run${data.tasks.length ? `, over ${data.tasks.length} environments (${data.tasks.join(", ")})` : ""}. Bars are 95 % intervals: the runs of each setting are drawn anew ${data.tasks.length ? "within each environment " : ""}2000 times.`),
    make("div", { class: "charts" }, intervalChart("iqm", "Interquartile mean", rows("iqm"), { x: unit }), intervalChart("mean", "Mean", rows("mean"), { x: unit })),
    pairs.length ? intervalChart("improvement", "Probability of improvement", pairs.slice(0, most), { x: "how likely a run of the first scores higher than one of the second; 0.5 is no difference", format: share, from: 0, to: 1, middle: 0.5 }) : null,
    pairs.length > most ? nothing(`The first ${most} of ${pairs.length} pairs; results.json has all.`) : null,
    nothing("The interquartile mean is the mean of the middle half: a quarter of the runs, rounded down, is left out at each end, so one lucky or broken run does not decide."));
}

function runsSection() {
  const measures = Object.keys(data.measures), varied = [...new Set(data.runs.flatMap((run) => Object.keys(run.varied)))];
  const text = (value) => (value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value));
  const titles = { score: "last score", return: "last return", reward: "last reward", accuracy: "last accuracy", score_length: "length, evaluated", length: "length, training" };
  const heads = ["run", ...varied, "seed", "state", ...measures.map((name) => titles[name]), ...(data.compared_by === "score" ? ["best score"] : []), data.step_word, "updates", "time"];
  const body = data.runs.map((run) => {
    const cells = [...varied.map((name) => (name in run.varied ? text(run.varied[name]) : "-")), run.seed, run.state,
      ...measures.map((name) => number(run.last[name])), ...(data.compared_by === "score" ? [number(run.best)] : []), number(run.env_steps), number(run.updates), run.seconds ? seconds(run.seconds) : "-"];
    const link = data.reports[run.folder] ? make("a", { href: encodeURI(data.reports[run.folder]) }, "report") : make("span", { class: "soft" }, "-");
    return make("tr", { class: run.state === "failed" ? "failed" : null, title: run.folder }, make("th", { scope: "row" }, link), ...cells.map((cell) => make("td", {}, String(cell))));
  });
  const failed = data.runs.filter((run) => run.error);
  return section("runs", "Runs",
    make("div", { class: "wide" }, make("table", { id: "all-runs" }, make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))), make("tbody", {}, ...body))),
    ...failed.map((run) => make("p", { class: "notice" }, `${run.folder}: ${run.error}`)));
}

function settingsSection() {
  const rows = Object.entries(data.fixed).map(([name, value]) => [name, typeof value === "object" && value !== null ? JSON.stringify(value) : String(value)]);
  return section("settings", "The sweep", data.command ? make("p", {}, make("code", {}, data.command)) : null,
    rows.length ? table(["the same in every run", "value"], rows, { textColumns: 2 }) : nothing("Everything that is not varied is at its default."),
    nothing("The same numbers are in results.json, results.csv (a row a run) and curves.csv beside this page. TensorBoard on this folder shows the runs beside each other."));
}

function draw() {
  redraws.clear();
  showLegend(data.settings.map((setting) => make("span", {}, setting.label)), draw);
  showSections([summarySection(), learningSection(), aggregateSection(), runsSection(), settingsSection()]);
}

chooseTheme(remembered());
draw();
