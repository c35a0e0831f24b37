// The plots over time: RAM, disk and timeline, which always show the same stretch of it.
"use strict";

const LEAST_US = 20;
const whole = wholeTime();
let shown = [...whole];
const timePlots = [];

function wholeTime() {
  let from = data.from_s * 1e6, to = data.to_s * 1e6;
  for (const { began, took } of data.timeline.bars) {
    began.forEach((start, i) => { from = Math.min(from, start); to = Math.max(to, start + took[i]); });
  }
  for (const t of data.memory.t) { from = Math.min(from, t); to = Math.max(to, t); }
  return to > from ? [from, to] : [from, from + 1e6];
}

function show(from, to) {
  const width = Math.min(Math.max(to - from, LEAST_US), whole[1] - whole[0]);
  const start = Math.min(Math.max((from + to - width) / 2, whole[0]), whole[1] - width);
  shown = [start, start + width];
  if (byId("window")) byId("window").textContent = `${moment(start, width)} to ${moment(start + width, width)}`;
  timePlots.forEach((draw) => draw());
}

const timeAxis = () => ({
  range: shown.map((us) => us / 1e6), fixedrange: touches.matches, ticksuffix: " s", showgrid: true, nticks: 8,
  title: { text: "since the run began", standoff: 6, font: { size: 12, color: colour("soft") } },
  exponentformat: "none", hoverformat: `.${digits(shown[1] - shown[0])}f`,
});

// Dragging is Plotly's; where it ends, all plots go along.
function followZoom(plot) {
  plot.on("plotly_relayout", ({ "xaxis.range[0]": from, "xaxis.range[1]": to }) => {
    if (from !== undefined) choose(from * 1e6, to * 1e6);
  });
  plot.on("plotly_doubleclick", () => { choose(...whole); });
}

// What somebody chose is no step any more.
function choose(from, to) {
  if (byId("step")) byId("step").value = "";
  show(from, to);
}

function plotOverTime(id, figure) {
  const plot = byId(id);
  timePlots.push(() => {
    const [traces, more] = figure(plot);
    const dragmode = touches.matches ? false : "zoom"; // a finger scrolls the page
    Plotly.react(plot, traces, layout({ dragmode, ...more, xaxis: timeAxis() }), CONFIG);
  });
  onFirstDraw.push(() => followZoom(plot));
}

document.querySelectorAll("[data-window]").forEach((button) => button.addEventListener("click", () => {
  const [from, to] = shown, width = to - from, middle = (from + to) / 2;
  const moves = {
    in: [middle - width / 4, middle + width / 4], out: [middle - width, middle + width],
    earlier: [from - width / 2, to - width / 2], later: [from + width / 2, to + width / 2], all: whole,
  };
  choose(...moves[button.dataset.window]);
}));
if (byId("step")) {
  data.steps.forEach(([number], place) => byId("step").add(new Option(number, place)));
  byId("step").addEventListener("change", (event) => {
    const step = data.steps[event.target.value];
    if (step) show(step[1] * 1e6, (step[1] + step[2]) * 1e6);
    else show(...whole);
  });
}

plots.push(() => show(...shown));

// --- RAM and disk ----------------------------------------------------------------------------------------------------

const HELD = [
  ["lent", "handed out", "blue"], ["hot", "hot: on no disk yet", "vermilion"], ["writing", "being written", "orange"],
  ["other", "being read or encoded", "purple"], ["cached", "cached: on disk as well", "green"],
];
const seconds = data.memory.t.map((us) => us / 1e6);

const line = (part, name, swatch, more = {}) => ({
  ...more, type: "scatter", mode: "lines", x: seconds, y: data.memory[part], name,
  line: { color: colour(swatch), width: 2, shape: "hv", ...more.line },
  text: data.memory[part].map((count) => `${name}: ${bytes(count)}`), hovertemplate: "%{text}<extra></extra>",
});
const largest = (...parts) => parts.reduce((most, part) => data.memory[part].reduce((a, b) => Math.max(a, b), most), 1);
const bytesAxis = (most) => ({ range: [0, most * 1.06], ...byteTicks(most * 1.06), rangemode: "tozero" });
const OVER_TIME = { hovermode: "x unified" };

if (data.memory.t.length) {
  const rss = byId("rss"), budget = data.memory.budget;
  plotOverTime("ram-plot", () => {
    const entries = HELD.map(([, name, swatch]) => [name, swatch]);
    if (budget !== null) entries.push([`budget: ${bytes(budget)}`, "text", "line dashed"]);
    if (rss.checked) entries.push(["all of the process", "grey", "line"]);
    legend("ram-legend", entries);
    const traces = HELD.map(([part, name, swatch]) => line(part, name, swatch, {
      stackgroup: "ram", fillcolor: colour(swatch), line: { width: 0 },
    }));
    const most = Math.max(largest("ram"), budget || 0, rss.checked ? largest("rss") : 0);
    if (rss.checked) traces.push(line("rss", "all of the process", "grey"));
    const shapes = budget === null ? [] : [{
      type: "line", xref: "paper", x0: 0, x1: 1, y0: budget, y1: budget,
      line: { color: colour("text"), width: 2, dash: "dash" },
    }];
    return [traces, { ...OVER_TIME, shapes, yaxis: bytesAxis(most) }];
  });
  rss.addEventListener("change", drawAll);
  plotOverTime("disk-plot", () => {
    legend("disk-legend", [
      ["blocks on the disk", "blue", "line"], ["arrays alive, wherever they are", "orange", "line dashed"],
    ]);
    const traces = [
      line("disk", "blocks on the disk", "blue"),
      line("live", "arrays alive", "orange", { line: { dash: "dash" } }),
    ];
    return [traces, { ...OVER_TIME, yaxis: bytesAxis(largest("disk", "live")) }];
  });
}

// --- Timeline --------------------------------------------------------------------------------------------------------

const KIND_COLOURS = {
  forward: "blue", backward: "purple", update: "grey", "wait for room": "vermilion", "wait for data": "text",
  "wait for ranks": "vermilion", collective: "green",
  write: "orange", read: "sky", "read ahead": "green",
};
const VERB = { write: "writes", read: "reads", "read ahead": "reads ahead", collective: "collectives" };
const LEAST_PX = 2;

// What is in sight, with bars that begin in the same few pixels as one: never more than a screen can show.
function inSight(bars, first_row, pixels) {
  const [from, to] = shown, cell = ((to - from) / pixels) * LEAST_PX;
  const open = new Map(), found = [];
  for (let i = 0; i < bars.began.length; i++) {
    const start = bars.began[i], end = start + bars.took[i];
    if (start > to) break;
    if (end < from) continue;
    const row = bars.row[i], place = Math.floor(start / cell), before = open.get(row);
    if (before && before.place === place && end - start < cell && before.end - before.start < 2 * cell) {
      before.end = Math.max(before.end, end);
      before.spans += bars.spans[i];
      before.bytes += bars.bytes[i];
      before.busy += bars.busy[i];
      before.name = before.array = -1;
      continue;
    }
    const bar = { place, start, end, y: first_row + row };
    for (const key of ["spans", "bytes", "busy", "name", "array"]) bar[key] = bars[key][i];
    open.set(row, bar);
    found.push(bar);
  }
  return found;
}

function said(bar, kind) {
  const took = bar.end - bar.start;
  const lines = [`<b>${bar.spans > 1 ? `${bar.spans.toLocaleString("en")} ${VERB[kind] || kind}` : kind}</b>`];
  if (bar.name >= 0) lines.push(escaped(data.timeline.names[bar.name]));
  if (bar.array >= 0) lines.push(`array ${bar.array}`);
  const speed = bar.spans === 1 && bar.busy ? `, ${bytes(Math.round((bar.bytes / bar.busy) * 1e6))}/s` : "";
  if (bar.bytes) lines.push(bytes(bar.bytes) + speed);
  lines.push(bar.spans > 1 ? `${duration(bar.busy)} in all, within ${duration(took)}` : `took ${duration(took)}`);
  lines.push(`from ${moment(bar.start, shown[1] - shown[0])}`);
  return lines.join("<br>");
}

if (data.timeline.spans) {
  const lanes = data.timeline.lanes, rows = lanes.reduce((sum, lane) => sum + lane.rows, 0);
  byId("timeline-plot").style.height = `${Math.max(14, 5 + 1.6 * rows + 0.8 * lanes.length)}rem`;
  // Lanes stand apart by half a row.
  const top = (lane) => lanes[lane].first_row + lane * 0.5;
  const used = data.timeline.bars.filter((bars) => bars.began.length);
  plotOverTime("timeline-plot", (plot) => {
    legend("timeline-legend", [...new Set(used.map(({ kind }) => kind))].map((kind) => [kind, KIND_COLOURS[kind]]));
    const pixels = Math.max(100, plot.clientWidth - LEFT_PX - 12);
    const traces = used.map((bars) => {
      const found = inSight(bars, top(bars.lane), pixels), pixel = (shown[1] - shown[0]) / pixels;
      const width = (bar) => Math.max(bar.end - bar.start, pixel);
      return {
        type: "bar", orientation: "h", name: bars.kind, width: 0.86,
        base: found.map((bar) => bar.start / 1e6), x: found.map((bar) => width(bar) / 1e6),
        y: found.map((bar) => bar.y),
        marker: {
          color: colour(KIND_COLOURS[bars.kind]), line: { width: 0 },
          opacity: found.map((bar) => Math.max(0.35, Math.min(1, bar.busy / width(bar)))),
        },
        hovertext: found.map((bar) => said(bar, bars.kind)), hovertemplate: "%{hovertext}<extra></extra>",
        textposition: "none",
      };
    });
    return [traces, {
      barmode: "overlay", hovermode: "closest",
      yaxis: {
        autorange: false, range: [rows + (lanes.length - 1) * 0.5 - 0.4, -0.6], showgrid: false, tickmode: "array",
        tickvals: lanes.map((lane, i) => top(i) + (lane.rows - 1) / 2),
        ticktext: lanes.map((lane) => lane.name.replace(", ", ",<br>")),
      },
    }];
  });
}
