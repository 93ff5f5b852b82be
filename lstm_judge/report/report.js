// What the report alone has: maps and rows that follow the slider, tables that sort and filter, and a card.
const [cells, heads] = [all(".map a"), all("#r th").map((head) => head.textContent)];
const placeOf = (element) => Number((element.hash || `#${element.id}`).slice(2));
const rowOf = (place) => all(`#r${place} td`).map((cell) => cell.textContent);
const verdictColumn = heads.indexOf("verdict");
followers.push(() => {
  for (const cell of cells) {
    colour(cell.parentNode, verdictOf(placeOf(cell)));
    cell.parentNode.title = data.names[verdictOf(placeOf(cell))];
  }
  data.verdicts.forEach((_, place) => {
    const cell = all(`#r${place} td`)[verdictColumn];
    colour(cell, verdictOf(place));
    cell.textContent = data.names[verdictOf(place)];
  });
});
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
  const words = "only rows with these words";
  const filter = make("input", { type: "search", size: 30, placeholder: words, ariaLabel: words });
  filter.oninput = () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  };
  table.before(filter);
}
// A card with the numbers of the cell under the pointer or with the focus, and the curve of one that was clicked.
const [card] = all("aside");
function show(event) {
  const cell = event.target.closest(event.type === "click" ? ".map a, #r tbody tr" : ".map a");
  if (!cell) return;
  if (event.type === "click") event.preventDefault();
  const place = placeOf(cell), values = rowOf(place);
  card.textContent = heads.map((head, column) => `${head} ${values[column]}`).join(", ");
  card.hidden = false;
  if (event.type === "click" && data.curves[place].length) card.append(chart(place));
}
for (const kind of ["pointerover", "focusin", "click"]) document.addEventListener(kind, show);
document.addEventListener("keydown", (event) => (card.hidden ||= event.key === "Escape"));
