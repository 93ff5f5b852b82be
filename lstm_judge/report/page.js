// What the report and the page to explore share: the data, the slider, and the curve of tails. The scripts compute no
// statistics: every verdict and point comes from the data in the page. Texts of recordings are set as text, not markup.
"use strict";
const all = (selector, parent = document) => [...parent.querySelectorAll(selector)];
const data = JSON.parse(all("script")[0].textContent);
const svg = (name, attributes, text = "") => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
};

// The slider. All numbers of verdicts follow it, and what is in `followers`; what does not is grey.
const slider = all(".scripted input")[0] || { value: data.given };
const [heading] = all("h1");
const title = heading.textContent;
const followers = [];
const verdictOf = (place) => Number(data.verdicts[place][slider.value]);
const colour = (cell, verdict) => (cell.className = "mxnf"[verdict]);
function move() {
  const stop = Number(slider.value);
  const numberOf = (verdict, places) => places.filter((place) => verdictOf(place) === verdict).length;
  const numbers = data.names.map((_, verdict) => numberOf(verdict, [...data.verdicts.keys()]));
  data.systems.forEach((places, row) => {
    all(`#s${row} td`).slice(1, -1).forEach((cell, verdict) => (cell.textContent = numberOf(verdict, places)));
  });
  all("ul span").forEach((shown, verdict) => (shown.textContent = numbers[verdict]));
  document.title = heading.textContent = title.replace(data.times[data.given], data.times[stop]);
  document.body.classList.toggle("moved", stop !== data.given);
  all("#moved")[0].hidden = stop === data.given;
  const found = data.names.map((name, verdict) => `${numbers[verdict]} ${name}`);
  const text = `${data.stops[stop]} µs: ${found.slice(0, all("ul span").length).join(", ")}`;
  for (const output of all("output")) output.textContent = text;
  for (const follow of followers) follow();
}
slider.oninput = move;
for (const paragraph of all(".scripted")) paragraph.hidden = false;
addEventListener("DOMContentLoaded", move);

// In the output of a notebook a link would lead to the notebook's own address.
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (!link || location.protocol !== "about:") return;
  event.preventDefault();
  all(link.getAttribute("href"))[0].scrollIntoView();
});

// The share of calls that take longer than each latency, of one configuration or several, and the deadline.
const LOOKS = [{ stroke: "#0173b2" }, { stroke: "#b34700", "stroke-dasharray": "6 3" }];
function chart(...places) {
  const shown = places.filter((place) => data.curves[place].length);
  const [low, high] = [Math.min, Math.max].map((end) => end(...shown.flatMap((place) => data.curves[place])));
  const most = Math.max(...shown.map((place) => data.trials[place]));
  const x = (us) => 50 + (430 * Math.log(us / low)) / Math.log((high * 1.0001) / low);
  const y = (share) => 10 - (210 * Math.log(share)) / Math.log(most);
  const drawn = svg("svg", { viewBox: "0 0 500 260", role: "img", "aria-label": "share of calls that take longer" });
  const line = (d, look) => drawn.append(svg("path", { d, ...look }));
  const label = (text, x, y, anchor) => drawn.append(svg("text", { x, y, "text-anchor": anchor }, text));
  for (let share = 1; share * most >= 1; share /= 10) {
    line(`M50 ${y(share)}H480`, { stroke: "#ddd" });
    label(`${Number((100 * share).toPrecision(1))} %`, 45, y(share) + 4, "end");
  }
  for (const value of [0, 1, 2, 3, 4].map((step) => low * (high / low) ** (step / 4))) {
    line(`M${x(value)} 10V220`, { stroke: "#ddd" });
    label(Number(value.toPrecision(3)), x(value), 235, "middle");
  }
  const deadline = Number(data.stops[slider.value]);
  if (deadline > low && deadline < high) line(`M${x(deadline)} 10V220`, { stroke: "#000", class: "deadline" });
  shown.forEach((place, look) => {
    const [us, n] = [data.curves[place], data.trials[place]];
    line(`M${us.map((value, k) => `${x(value)} ${y(Math.max(data.above[n][k], 1) / n)}`).join("L")}`, LOOKS[look]);
  });
  label("share of calls that take longer than this, µs", 265, 253, "middle");
  return drawn;
}
