// The map with the axes and the value that are chosen, and what belongs to a cell: its tail, its calls in order, its
// clusters, its neighbours, and a second cell beside it. The map goes through A: what is no axis has the value of A.
const { dimensions } = data;
const places = [...data.labels.keys()];
const values = [...data.heads, "margin to the deadline", "share of misses"];
const [MAXIMUM, MARGIN, MISSES] = [-3, -2, -1].map((from) => values.length + from);
// The first axes are those along which A has neighbours.
const [x = 0, y = x === 0 ? 1 : 0] = new Set(data.near[data.first].map(([dimension]) => dimension));
const view = { x, y, value: MAXIMUM, a: data.first, b: null };
const put = (selector, ...children) => all(selector)[0].replaceChildren(...children);
function table(caption, head, rows, without = "none") {
  if (!rows.length) return make("p", {}, `${caption}: ${without}`);
  const line = (kind, texts) => make("tr", {}, ...texts.map((text) => make(kind, {}, text)));
  const lines = [line("th", head), ...rows.map((texts) => line("td", texts))];
  return make("table", { className: "cells" }, make("caption", {}, caption), ...lines);
}
// What is said of a configuration.
const verdictText = (place) => `${data.signs[verdictOf(place)]}\u00a0${data.names[verdictOf(place)]}`;
function missesOf(place) {
  const [missed, ...misses] = data.misses[place];
  return slider.value < missed ? data.trials[place] : misses[slider.value - missed] ?? 0;
}
function shown(place, value) {
  const us = data.values[place][Math.min(value, MAXIMUM)];
  if (!data.trials[place]) return "failed";
  if (value === MISSES) return `${Number(((100 * missesOf(place)) / data.trials[place]).toPrecision(2))} %`;
  if (us === null) return "-";
  if (value === MARGIN) return `${Number((data.stops[slider.value] / us).toPrecision(2))}×`;
  return us < 9995 ? Number(us.toPrecision(us < 1000 ? 3 : 4)) : `${(us / 1000).toFixed(us < 99950 ? 1 : 0)}k`;
}
function callOf(place) {
  const selected = dimensions.map((each) => each.arguments[each.of[place]]);
  return selected.length ? `runs.where(${selected.join(", ")})` : "runs";
}
// What is chosen above the map. A choice leads to the configuration that has most else in common with A.
const names = dimensions.map(({ label }) => label);
const axisNames = { x: "across", y: "upwards" };
const axes = ["x", "y"].slice(0, dimensions.length);
function control(label, options, chosen, change) {
  const select = make("select", {}, ...options.map((text, value) => make("option", { value }, text)));
  select.value = chosen;
  select.onchange = () => {
    change(Number(select.value));
    move();
  };
  return make("label", {}, `${label} `, select);
}
function turn(axis, dimension) {
  const other = axis === "x" ? "y" : "x";
  if (view[other] === dimension) view[other] = view[axis];
  view[axis] = dimension;
}
function go({ of }, value) {
  const common = (place) => dimensions.filter((each) => each.of[place] === each.of[view.a]).length;
  const having = places.filter((place) => of[place] === value);
  [view.a, view.b] = [having.reduce((best, place) => (common(place) > common(best) ? place : best)), null];
}
const fixed = () => dimensions.filter((_, dimension) => dimension !== view.x && dimension !== view.y);
function drawControls() {
  const focused = all("#choices select").indexOf(document.activeElement);
  const valueControl = control("cells show", values, view.value, (value) => (view.value = value));
  const ofAxis = (axis) => control(axisNames[axis], names, view[axis], (dimension) => turn(axis, dimension));
  const ofOther = (each) => control(each.label, each.values, each.of[view.a], (value) => go(each, value));
  put("#choices", valueControl, ...axes.map(ofAxis), ...fixed().map(ofOther));
  all("#choices select")[focused]?.focus();
}
// The map: a button for each configuration.
function cellOf(place) {
  const verdict = verdictOf(place), text = shown(place, view.value), title = data.labels[place];
  const mark = place === view.a ? "A " : place === view.b ? "B " : "";
  const ariaLabel = `${mark}${title}: ${text}, ${data.names[verdict]}`;
  const known = { title, ariaLabel, ariaPressed: mark !== "", className: "mxnf"[verdict], value: place };
  const onclick = (event) => pick(place, event.shiftKey);
  return make("button", { ...known, onclick }, `${mark}${text} ${data.signs[verdict]}`);
}
function pick(place, second) {
  if (second && place !== view.a) view.b = place;
  else [view.a, view.b] = [place, null];
  move();
}
function drawMap() {
  const at = (dimension, place) => dimensions[dimension]?.of[place] ?? 0;
  const drawn = places.filter((place) => fixed().every(({ of }) => of[place] === of[view.a]));
  const along = (dimension) => [...new Set(drawn.map((place) => at(dimension, place)))].sort((a, b) => a - b);
  const head = (dimension, value) => make("th", {}, dimensions[dimension]?.values[value] ?? "");
  const found = (x, y) => drawn.filter((place) => at(view.x, place) === x && at(view.y, place) === y);
  const xs = along(view.x);
  const cells = (y) => xs.map((x) => make("td", {}, ...found(x, y).map(cellOf)));
  const lines = along(view.y).map((y) => make("tr", {}, head(view.y, y), ...cells(y)));
  const foot = make("tr", {}, make("td"), ...xs.map((x) => head(view.x, x)));
  const said = axes.map((axis) => `${axisNames[axis]}: ${names[view[axis]]}`);
  const focused = all("#map button:focus")[0]?.value;
  put("#map", make("caption", {}, [values[view.value], ...said].join("; ")), ...lines.reverse(), foot);
  all(`#map button[value="${focused}"]`)[0]?.focus();
}
// A against B: words for what was compared beforehand, else the call that compares.
function comparison(a, b) {
  const [, , result, ratios] = data.near[a].find(([, place]) => place === b) ?? [];
  let text = "Not compared beforehand, and this page computes no statistics. This call compares them:";
  const deadline = data.times[data.given];
  if (ratios) text = `${data.results[result]} of ${deadline}: B compared with A. B / A: ${ratios}. The call says why:`;
  const call = `lab.compare(${callOf(a)}, ${callOf(b)}, ${data.asked})`;
  return [make("p", { id: "compared" }, text), code(call)];
}
function code(text) {
  const shown = make("code", {}, text), said = make("span", { role: "status" });
  const copy = () => {
    getSelection().selectAllChildren(shown);
    said.textContent = document.execCommand("copy") ? " copied" : " selected: copy it with Ctrl+C";
  };
  return make("p", {}, shown, " ", make("button", { onclick: copy }, "Copy"), said);
}
// Calls in order: the bulk, the tail, and a colour and a mark for each cluster.
const BULK = { d: "h0", stroke: "#0173b2" }, TAIL = { d: "m-3 0h6m-3-3v6", stroke: "#444" };
const MARKS = ["m-3-3l6 6m0-6l-6 6", "m-3-3h6v6h-6z", "m0-3l3 6h-6z", "m0 3l3-6h-6z"];
const STROKES = ["#b34700", "#007a3d", "#8a3fbf", "#8a5a00"];
function marked(label, points) {
  const look = { "-1": BULK, "-2": TAIL }[label] ?? { d: MARKS[label % 4], stroke: STROKES[label % 4] };
  return { ...look, d: points.map((point) => `M${point}${look.d}`).join(""), "data-label": label };
}
function order(place, side) {
  const { low, high, rounds, calls } = data.calls[place];
  const some = data.trials[place] > data.most ? `${data.most} of the calls` : "calls";
  const axes = drawing(`${side}: ${some} in order, µs${rounds > 1 ? ", gaps between rounds" : ""}`, low, high, true);
  for (const [label, text] of Object.entries(calls)) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const [xs, ys] = [0, 1].map((from) => [...new Uint16Array(bytes.buffer)].filter((_, k) => k % 2 === from));
    const points = xs.map((x, k) => `${axes.left(x / 65535).toFixed(1)} ${axes.above(ys[k] / 65535).toFixed(1)}`);
    axes.path("", marked(label, points));
  }
  return axes.drawn;
}
function clusters(place) {
  const rows = data.clusters.rows[place].map((texts, label) => {
    const key = svg("svg", { viewBox: "-7 -7 14 14", width: 14 });
    key.append(svg("path", marked(label, ["0 0"])));
    return [key, ...texts];
  });
  const caption = `Clusters of slow and fast calls of ${data.labels[place]}`;
  return table(caption, ["", ...data.clusters.header], rows, data.without[place]);
}
// What belongs to A, and to B.
function neighbours(place) {
  const rows = data.near[place].map(([dimension, other]) => {
    const { label, values, of } = dimensions[dimension];
    const step = `${label} ${values[of[place]]} → ${values[of[other]]}`;
    const there = make("button", { onclick: () => pick(other, false) }, step);
    const both = make("button", { onclick: () => pick(other, true), ariaLabel: `compare: ${step}` }, "compare");
    return [there, verdictText(other), shown(other, view.value), both];
  });
  return table("Neighbours of A", ["along", "verdict", values[view.value], ""], rows);
}
function numbers(place, k) {
  const missed = `${missesOf(place)}\u00a0of\u00a0${data.trials[place]}`;
  const statistics = data.heads.map((_, value) => (data.trials[place] ? shown(place, value) : "-"));
  return ["AB"[k], data.labels[place], verdictText(place), ...statistics, missed];
}
function drawCell() {
  const both = [view.a, view.b].filter((place) => place !== null);
  const timed = both.filter((place) => data.trials[place]);
  const ordered = both.flatMap((place, k) => (data.calls?.[place].calls ? [order(place, "AB"[k])] : []));
  if (!data.calls) ordered.push(make("p", {}, "Calls in order: not in this page, see its end"));
  const head = ["", "configuration", "verdict", ...data.heads, "misses"];
  const latencies = table(`Latencies in µs; misses of ${data.times[slider.value]}`, head, both.map(numbers));
  const said = view.b === null ? [code(callOf(view.a))] : comparison(view.a, view.b);
  put("#tail", ...(timed.length ? [chart(...timed)] : []), neighbours(view.a));
  put("#cell", latencies, ...said, ...ordered, ...both.map(clusters));
}
followers.push(drawControls, drawMap, drawCell);
