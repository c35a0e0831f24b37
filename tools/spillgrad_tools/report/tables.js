// Tables that sort and filter.
"use strict";

const order = new Intl.Collator("en", { numeric: true });

function sortBy(table, column) {
  const headers = [...table.tHead.rows[0].cells], header = headers[column];
  const former = header.getAttribute("aria-sort");
  // What is looked for is mostly what is large; names begin with the first.
  const ascending = former ? former === "descending" : column === 0;
  const body = table.tBodies[0], rows = [...body.rows];
  const value = (row) => (column === 0 ? row.cells[0].textContent : Number(row.cells[column].dataset.value));
  rows.sort((a, b) => (column === 0 ? order.compare(value(a), value(b)) : value(a) - value(b)) * (ascending ? 1 : -1));
  headers.forEach((each) => each.removeAttribute("aria-sort"));
  header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  body.append(...rows);
}

function filter(table, words, count) {
  const wanted = words.trim().toLowerCase();
  const rows = [...table.tBodies[0].rows];
  rows.forEach((row) => { row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted); });
  const left = rows.filter((row) => !row.hidden).length;
  count.textContent = wanted ? `${left} of ${rows.length} rows` : "";
}

document.querySelectorAll(".table").forEach((box) => {
  const table = box.querySelector("table");
  if (!table) return;
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    const button = header.querySelector("button");
    button.disabled = false;
    button.addEventListener("click", () => sortBy(table, column));
  });
  const count = box.querySelector("[data-count]");
  box.querySelector("[data-filter]").addEventListener("input", (event) => filter(table, event.target.value, count));
});
