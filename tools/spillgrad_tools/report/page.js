// What all plots of a report share: units, colours, and when they are drawn. The other scripts of the page follow.
// What `data` holds, report_data.py and report_timeline.py say. Names in it are text, which `escaped` keeps from
// Plotly, whose labels take some HTML.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

// --- Units -----------------------------------------------------------------------------------------------------------

function bytes(count) {
  for (const [unit, scale] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (count >= scale) return `${(count / scale).toFixed(1).replace(/\.0$/, "")} ${unit}`;
  }
  return `${count} B`;
}

function duration(us) {
  if (!us) return "0 s";
  if (us < 1000) return `${us} µs`;
  if (us < 999500) return `${+(us / 1e3).toPrecision(3)} ms`;
  if (us < 99.95e6) return `${+(us / 1e6).toPrecision(3)} s`;
  const minutes = Math.floor(us / 6e7);
  if (minutes < 60) return `${minutes} min ${Math.floor(us / 1e6) % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// A moment, as exact as the stretch of time around it asks for.
const digits = (span) => Math.max(2, Math.min(6, 3 - Math.floor(Math.log10(span / 1e6))));
const moment = (us, span) => `${(us / 1e6).toFixed(digits(span))} s`;

// Ticks at powers of two, which Plotly does not know.
function byteTicks(largest) {
  let step = 1;
  while (largest / step > 6) step *= 2;
  const values = [];
  for (let value = 0; value <= largest; value += step) values.push(value);
  return { tickmode: "array", tickvals: values, ticktext: values.map(bytes) };
}

// --- Colours ---------------------------------------------------------------------------------------------------------

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
let chosenTheme = null;
const isDark = () => (chosenTheme === null ? prefersDark.matches : chosenTheme === "dark");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function applyTheme() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  byId("theme").textContent = isDark() ? "Light colours" : "Dark colours";
  drawAll();
}

byId("theme").hidden = false;
byId("theme").addEventListener("click", () => {
  chosenTheme = isDark() ? "light" : "dark";
  applyTheme();
});
prefersDark.addEventListener("change", () => chosenTheme === null && applyTheme());

const CONFIG = { displayModeBar: false, responsive: true, doubleClick: false };
const touches = matchMedia("(pointer: coarse)");

const LEFT_PX = 96;

function layout(more) {
  const ground = colour("ground"), text = colour("text");
  const axis = { gridcolor: colour("line"), linecolor: colour("line"), zeroline: false, fixedrange: true };
  return {
    autosize: true, paper_bgcolor: ground, plot_bgcolor: ground, showlegend: false,
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: text },
    margin: { l: LEFT_PX, r: 12, t: 8, b: 44 }, // the same everywhere, so that times are below each other
    hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("line"), font: { color: text }, align: "left" },
    ...more,
    xaxis: { ...axis, ...more.xaxis },
    yaxis: { ...axis, ...more.yaxis },
  };
}

function legend(id, entries) {
  byId(id).replaceChildren(...entries.map(([name, swatch, kind]) => {
    const item = document.createElement("li");
    item.textContent = name;
    item.className = kind || "";
    item.style.setProperty("--swatch", colour(swatch));
    return item;
  }));
}

// --- Drawing ---------------------------------------------------------------------------------------------------------

const plots = []; // functions that draw
const onFirstDraw = []; // functions that listen to what was drawn
const drawAll = () => plots.forEach((draw) => draw());

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".controls[hidden]").forEach((controls) => { controls.hidden = false; });
  applyTheme();
  onFirstDraw.forEach((listen) => listen());
});
