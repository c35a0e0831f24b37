// Bytes and waits by module and operation, as nested areas.
"use strict";

const tree = data.modules;
const isInner = new Set(tree.parent);
let inside = 0; // the one that fills the plot

const WORDS = { packed: "came to the store", written: "was written", read: "was read", waited: "was waited for" };

function areas(plot, measure) {
  const values = tree[measure], most = values[0];
  const size = measure === "waited" ? duration : bytes;
  return {
    type: "treemap", branchvalues: "remainder", level: `n${inside}`, maxdepth: plot.clientWidth < 600 ? 4 : 5,
    ids: tree.parent.map((_, i) => `n${i}`),
    parents: tree.parent.map((parent) => (parent < 0 ? "" : `n${parent}`)),
    values: values.map((value, i) => (isInner.has(i) ? 0 : value)), // what is inner has no more than its parts
    // Of what is inner, Plotly writes the label alone.
    labels: tree.label.map((label, i) => escaped(isInner.has(i) ? `${label}  ${size(values[i])}` : label)),
    text: values.map((value, i) => (isInner.has(i) ? "" : size(value))), textinfo: "label+text",
    textfont: { color: colour("text") },
    hovertext: tree.path.map((path, i) => [
      `<b>${escaped(path)}</b>`, `packed ${bytes(tree.packed[i])}`, `written ${bytes(tree.written[i])}`,
      `read ${bytes(tree.read[i])}`, `waited ${duration(tree.waited[i])}`,
    ].join("<br>")),
    hovertemplate: "%{hovertext}<extra></extra>",
    tiling: { pad: 2 }, pathbar: { thickness: 24 },
    marker: {
      colors: values.map((value) => Math.sqrt(value / most)), cmin: 0, cmax: 1, // square roots: small ones differ too
      colorscale: [[0, colour("area-small")], [1, colour("area-large")]], line: { width: 1, color: colour("ground") },
    },
  };
}

function drawModules() {
  const plot = byId("modules-plot"), measure = document.querySelector("input[name=measure]:checked").value;
  const isEmpty = !tree[measure][0];
  const said = { text: `nothing ${WORDS[measure]}`, showarrow: false, font: { color: colour("soft"), size: 14 } };
  Plotly.react(plot, isEmpty ? [] : [areas(plot, measure)], layout({
    annotations: isEmpty ? [said] : [], uniformtext: { minsize: 10, mode: "hide" }, margin: { l: 0, r: 0, t: 0, b: 0 },
    xaxis: { visible: false }, yaxis: { visible: false },
  }), CONFIG);
}

function goInside(node) {
  inside = node;
  byId("inside").value = node;
}

// A click goes inside at once where motion is unwelcome; elsewhere Plotly shows the way.
function clicked(event) {
  if (event.nextLevel === undefined) return true;
  goInside(Number(event.nextLevel.slice(1)));
  if (reducedMotion.matches) drawModules();
  return !reducedMotion.matches;
}

if (byId("modules-plot")) {
  tree.path.forEach((path, node) => isInner.has(node) && byId("inside").add(new Option(path, node)));
  byId("inside").addEventListener("change", (event) => {
    goInside(Number(event.target.value));
    drawModules();
  });
  document.querySelectorAll("input[name=measure]").forEach((radio) => radio.addEventListener("change", drawModules));
  plots.push(drawModules);
  onFirstDraw.push(() => byId("modules-plot").on("plotly_treemapclick", clicked));
}
