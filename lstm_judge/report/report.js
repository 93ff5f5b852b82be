// Sorts and filters tables, shows numbers and curves, and colours the maps at other deadlines. It computes no statistics:
// every verdict and point comes from the data in the page. Texts of recordings are set as text, never as markup.
"use strict";
const all = (selector, parent = document) => [...parent.querySelectorAll(selector)];
const data = JSON.parse(all("script")[0].textContent);
const [cells, heads] = [all(".map a"), all("#r th").map((head) => head.textContent)];
const placeOf = (element) => Number((element.hash || `#${element.id}`).slice(2));
const rowOf = (place) => all(`#r${place} td`).map((cell) => cell.textContent);
const svg = (name, attributes, text = "") => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
};

// The slider. All numbers of verdicts follow it; what does not is grey.
const [slider] = all("#maps input");
const [heading] = all("h1");
const title = heading.textContent;
const verdictColumn = heads.indexOf("verdict");
function move() {
  const stop = Number(slider.value);
  const verdicts = data.verdicts.map((digits) => Number(digits[stop]));
  const numberOf = (verdict, places) => places.filter((place) => verdicts[place] === verdict).length;
  const numbers = data.names.map((_, verdict) => numberOf(verdict, [...verdicts.keys()]));
  const colour = (cell, verdict) => (cell.className = "mxnf"[verdict]);
  for (const cell of cells) {
    colour(cell.parentNode, verdicts[placeOf(cell)]);
    cell.parentNode.title = data.names[verdicts[placeOf(cell)]];
  }
  verdicts.forEach((verdict, place) => {
    const cell = all(`#r${place} td`)[verdictColumn];
    colour(cell, verdict);
    cell.textContent = data.names[verdict];
  });
  data.systems.forEach((places, row) => {
    all(`#s${row} td`).slice(1, -1).forEach((cell, verdict) => (cell.textContent = numberOf(verdict, places)));
  });
  all("ul span").forEach((shown, verdict) => (shown.textContent = numbers[verdict]));
  document.title = heading.textContent = title.replace(data.times[data.given], data.times[stop]);
  document.body.className = stop === data.given ? "" : "moved";
  all("#moved")[0].hidden = stop === data.given;
  const found = data.names.map((name, verdict) => `${numbers[verdict]} ${name}`);
  all("output")[0].textContent = `${data.stops[stop]} µs: ${found.slice(0, all("ul span").length).join(", ")}`;
}
if (slider) {
  slider.oninput = move;
  all(".scripted")[0].hidden = false;
  move();
}

// Tables: a click on a heading sorts, words in the field leave rows out.
function compare(one, two) {
  if (one.className) return one.textContent.localeCompare(two.textContent, "en", { numeric: true });
  const [a, b] = [one, two].map((cell) => parseFloat(cell.textContent));
  return isNaN(a) || isNaN(b) ? isNaN(a) - isNaN(b) : a - b;
}
for (const table of all(".list")) {
  const [rows, columns] = [all("tbody tr", table), all("th", table)];
  columns.forEach((head, place) => {
    head.tabIndex = 0;
    head.onclick = head.onkeydown = (event) => {
      if (event.key && event.key !== "Enter") return;
      const order = head.ariaSort === "ascending" ? "descending" : "ascending", sign = order === "ascending" ? 1 : -1;
      for (const other of columns) other.ariaSort = other === head ? order : null;
      table.tBodies[0].append(...rows.sort((a, b) => sign * compare(a.cells[place], b.cells[place])));
    };
  });
  if (rows.length < 6) continue;
  const filter = document.createElement("input");
  Object.assign(filter, { type: "search", placeholder: "only rows with these words", ariaLabel: "only rows with these words" });
  filter.oninput = () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  };
  table.before(filter);
}

// A card with the numbers of the cell under the pointer or with the focus, and the curve of one that was clicked.
const card = document.createElement("aside");
card.hidden = true;
document.body.append(card);
function show(event) {
  const cell = event.target.closest(event.type === "click" ? ".map a, #r tbody tr" : ".map a");
  if (!cell) return;
  if (event.type === "click") event.preventDefault();
  const place = placeOf(cell), values = rowOf(place);
  card.textContent = heads.map((head, column) => `${head} ${values[column]}`).join(", ");
  card.hidden = false;
  if (event.type === "click" && data.curves[place].length) card.append(chart(place));
}
function chart(place) {
  const us = data.curves[place], n = data.trials[place], [low, high] = [us[0], us.at(-1) * 1.0001];
  const x = (value) => 50 + (430 * Math.log(value / low)) / Math.log(high / low);
  const y = (share) => 10 - (210 * Math.log(share)) / Math.log(n);
  const drawn = svg("svg", { viewBox: "0 0 500 260", role: "img", "aria-label": "share of calls that take longer" });
  const line = (d, stroke) => drawn.append(svg("path", { d, stroke }));
  const label = (text, x, y, anchor) => drawn.append(svg("text", { x, y, "text-anchor": anchor }, text));
  for (let share = 1; share * n >= 1; share /= 10) {
    line(`M50 ${y(share)}H480`, "#ddd");
    label(`${Number((100 * share).toPrecision(1))} %`, 45, y(share) + 4, "end");
  }
  for (const value of [0, 1, 2, 3, 4].map((step) => low * (high / low) ** (step / 4))) {
    line(`M${x(value)} 10V220`, "#ddd");
    label(Number(value.toPrecision(3)), x(value), 235, "middle");
  }
  line(`M${us.map((value, k) => `${x(value)} ${y(Math.max(data.above[n][k], 1) / n)}`).join("L")}`, "#0173b2");
  label("share of calls that take longer than this, µs", 265, 253, "middle");
  return drawn;
}
for (const kind of ["pointerover", "focusin", "click"]) document.addEventListener(kind, show);
document.addEventListener("keydown", (event) => (card.hidden ||= event.key === "Escape"));
