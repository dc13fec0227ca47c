// Headings sort their tables. The script moves rows; it makes no markup from text.
"use strict";
(function () {
  function key(row, index) {
    const cell = row.cells[index];
    const value = cell.getAttribute("data-value");
    if (value !== null) return Number(value);
    return cell.textContent === "-" ? null : cell.textContent;
  }
  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), undefined, {numeric: true});
  }
  function sort(table, index, descending) {
    const body = table.tBodies[0];
    const rows = Array.from(body.rows).map(function (row, place) {
      return {row: row, key: key(row, index), place: place};
    });
    rows.sort(function (a, b) {
      if (a.key === null || b.key === null) {
        return (a.key === null) - (b.key === null) || a.place - b.place;
      }
      const order = compare(a.key, b.key);
      return (descending ? -order : order) || a.place - b.place;
    });
    rows.forEach(function (one) { body.appendChild(one.row); });
  }
  document.querySelectorAll("table").forEach(function (table) {
    if (table.tBodies[0].rows.length < 2) return;
    const heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach(function (head, index) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.textContent = "";
      head.appendChild(button);
      button.addEventListener("click", function () {
        const descending = head.getAttribute("aria-sort") === "ascending";
        heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sort(table, index, descending);
      });
    });
  });
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (one) { one.open = true; });
  });
})();
