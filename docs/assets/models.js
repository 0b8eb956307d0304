// The table of models: what is typed filters it, a click on a heading sorts by it.
const body = document.querySelector("#models tbody");
const rows = [...body.rows].map((row) => ({ row, words: row.textContent.toLowerCase() }));
const field = document.querySelector("#models-filter");
const count = document.querySelector("#models-count");

function filter() {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const each of rows) {
    each.row.hidden = !words.every((word) => each.words.includes(word));
    shown += !each.row.hidden;
  }
  count.textContent = `${shown} of ${rows.length} rows`;
}

function compared(a, b) {
  const [x, y] = [parseFloat(a), parseFloat(b)];
  if (Number.isNaN(x) || Number.isNaN(y)) return a.localeCompare(b, "en", { numeric: true });
  return x - y;
}

document.querySelectorAll("#models th button").forEach((button, column) => {
  button.addEventListener("click", () => {
    const head = button.parentElement;
    const descending = head.getAttribute("aria-sort") === "ascending";
    document.querySelectorAll("#models th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    rows.sort((a, b) => compared(a.row.cells[column].textContent, b.row.cells[column].textContent));
    if (descending) rows.reverse();
    body.append(...rows.map((each) => each.row));
  });
});
field.addEventListener("input", filter);
filter();
