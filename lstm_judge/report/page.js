// What the report and the page to explore share: the data, the slider, and the curves of tails. The scripts compute no
// statistics: every verdict and point comes from the data in the page. Texts of recordings are set as text, not markup.
"use strict";
const all = (selector, parent = document) => [...parent.querySelectorAll(selector)];
const data = JSON.parse(all("script")[0].textContent);
const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};
const svg = (name, attributes, text = "") => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
};
// The slider. All numbers of verdicts follow it, and what is in `followers`; what does not is grey.
const slider = all(".slider input")[0] || { value: data.given };
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
  all("#moved")[0].hidden = !document.body.classList.toggle("moved", stop !== data.given);
  const found = data.names.map((name, verdict) => `${numbers[verdict]} ${name}`);
  const text = `${data.stops[stop]} µs: ${found.slice(0, all("ul span").length).join(", ")}`;
  for (const output of all("output")) output.textContent = text;
  for (const follow of followers) follow();
}
slider.oninput = move;
for (const part of all(".scripted")) part.hidden = false;
addEventListener("DOMContentLoaded", move);
// In the output of a notebook a link would lead to the notebook's own address.
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (!link || location.protocol !== "about:") return;
  event.preventDefault();
  all(link.getAttribute("href"))[0].scrollIntoView();
});
// A drawing with a log axis of latencies, from left to right or upwards, and the deadline; places on it are 0 to 1.
function drawing(name, low, high, upwards) {
  const drawn = svg("svg", { viewBox: "0 0 500 260", role: "img", "aria-label": name, "text-anchor": "middle" });
  const [left, above] = [(share) => 50 + 430 * share, (share) => 220 - 210 * share];
  const place = (us) => Math.log(us / low) / Math.log((high * 1.0001) / low);
  const path = (d, look) => drawn.append(svg("path", { d, ...look }));
  const line = (share, up, look) => path(up ? `M50 ${above(share)}H480` : `M${left(share)} 10V220`, look);
  const tick = (share, up, text) => {
    line(share, up, { stroke: "#ddd" });
    const where = up ? { x: 45, y: above(share) + 4, "text-anchor": "end" } : { x: left(share), y: 236 };
    drawn.append(svg("text", where, text));
  };
  const digits = Math.min(Math.max(3, Math.ceil(1.6 - Math.log10(1 - low / high))), 7); // so that ticks differ
  const us = (share) => Number((low * (high / low) ** share).toPrecision(digits));
  for (const share of [0, 0.25, 0.5, 0.75, 1]) tick(share, upwards, us(share));
  const deadline = Number(data.stops[slider.value]);
  const beyond = deadline <= low ? "shorter" : deadline >= high ? "longer" : "";
  if (!beyond) line(place(deadline), upwards, { stroke: "#000", class: "deadline" });
  const said = beyond ? `the deadline is ${beyond}` : "black: the deadline";
  drawn.append(svg("text", { x: 265, y: 254 }, `${name}; ${said}`));
  return { drawn, left, above, place, path, line, tick };
}
// The share of calls that take longer than each latency, of one configuration or of two.
const LOOKS = [{ stroke: "#0173b2" }, { stroke: "#b34700", "stroke-dasharray": "6 3" }];
function chart(...places) {
  const every = places.flatMap((place) => data.curves[place]);
  const axes = drawing("share of calls that take longer than this, µs", Math.min(...every), Math.max(...every), false);
  const most = Math.max(...places.map((place) => data.trials[place]));
  const up = (share) => 1 + Math.log(share) / Math.log(most);
  const percent = (share) => `${Number((100 * share).toPrecision(1))} %`;
  for (let share = 1; share * most >= 1; share /= 10) axes.tick(up(share), true, percent(share));
  places.forEach((place, look) => {
    const [us, above] = [data.curves[place], data.above[data.trials[place]]];
    const height = (k) => axes.above(up(Math.max(above[k], 1) / data.trials[place]));
    axes.path(`M${us.map((value, k) => `${axes.left(axes.place(value))} ${height(k)}`).join("L")}`, LOOKS[look]);
    const end = { x: axes.left(axes.place(us[0])) + 8, y: 22 };
    if (places.length > 1) axes.drawn.append(svg("text", end, "AB"[look]));
  });
  return axes.drawn;
}
