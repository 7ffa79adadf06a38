"use strict";
/* Sorting and filtering of tables, and the switch that shows the paper's numbers. */
(() => {
  const value = (row, at) => {
    const cell = row.cells[at];
    if (cell.dataset.value !== undefined) return +cell.dataset.value;
    return cell.classList.contains("text") ? cell.textContent : null;
  };
  function sort(table, at, button) {
    const up = button.closest("th").getAttribute("aria-sort") === "descending";
    table.querySelectorAll("th[aria-sort]").forEach((head) => head.removeAttribute("aria-sort"));
    button.closest("th").setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows];
    const order = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
    rows.sort((x, y) => {
      const a = value(x, at), b = value(y, at);
      if (a === null || b === null) return (a === null) - (b === null); // what has no number stays below
      return up ? order(a, b) : order(b, a);
    });
    table.tBodies[0].append(...rows);
  }
  /* What names a row stays in sight while its numbers scroll, where there is room for both. */
  function stick(table) {
    const labels = [...table.querySelectorAll("tr.labels th.text")];
    table.querySelectorAll(".stuck").forEach((cell) => { cell.classList.remove("stuck", "last"); cell.style.left = ""; });
    const room = table.parentElement.clientWidth, widths = labels.map((head) => head.offsetWidth);
    if (table.querySelector(".empty") || table.offsetWidth <= room || widths.reduce((sum, width) => sum + width, 0) > 0.45 * room) return;
    let left = 0;
    widths.forEach((width, at) => {
      for (const { cells } of table.rows) {
        cells[at].classList.add("stuck");
        cells[at].classList.toggle("last", at === widths.length - 1);
        cells[at].style.left = `${left}px`;
      }
      left += width;
    });
  }
  const tables = [...document.querySelectorAll("table.sortable")];
  tables.forEach(stick);
  addEventListener("resize", () => tables.forEach(stick));
  tables.forEach((table) => {
    table.querySelectorAll("tr.labels button").forEach((button, at) => button.addEventListener("click", () => sort(table, at, button)));
  });
  document.querySelectorAll(".filtered").forEach((section) => {
    const apply = () => {
      const sets = [...section.querySelectorAll("[data-filter]")].map((set) => [set.dataset.filter, new Set([...set.querySelectorAll("input:checked")].map((box) => box.value))]);
      const groups = sets.find(([name]) => name === "metric");
      if (groups) section.querySelectorAll("table.filterable [data-group]").forEach((cell) => { cell.hidden = !groups[1].has(cell.dataset.group); });
      section.querySelectorAll("table.filterable tbody tr").forEach((row) => { row.hidden = sets.some(([name, wanted]) => row.dataset[name] !== undefined && !wanted.has(row.dataset[name])); });
    };
    section.addEventListener("change", apply);
    apply();
    section.querySelectorAll(".chips legend button").forEach((legend) => legend.addEventListener("click", () => {
      const boxes = [...legend.closest(".chips").querySelectorAll("input")], all = boxes.every((box) => box.checked);
      boxes.forEach((box) => { box.checked = !all; });
      apply();
    }));
    section.querySelectorAll(".chips label").forEach((chip) => chip.addEventListener("dblclick", () => {
      chip.parentElement.querySelectorAll("input").forEach((box) => { box.checked = chip.contains(box); });
      apply();
    }));
  });
  /* Heads of a table's columns are one stop of the tab key: arrow keys walk them. */
  const rove = (box, selector) => {
    const stops = () => [...box.querySelectorAll(selector)].filter((stop) => stop.checkVisibility());
    stops().forEach((stop, at) => { stop.tabIndex = at ? -1 : 0; });
    box.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key], all = stops(), at = all.indexOf(document.activeElement);
      if (!step || at < 0) return;
      event.preventDefault();
      const next = all[Math.max(0, Math.min(all.length - 1, at + step))];
      all.forEach((stop) => { stop.tabIndex = stop === next ? 0 : -1; });
      next.focus();
    });
  };
  tables.forEach((table) => rove(table, "tr.labels button"));
  document.querySelectorAll(".show-paper").forEach((box) => box.addEventListener("change", () => document.body.classList.toggle("with-paper", box.checked)));
})();
