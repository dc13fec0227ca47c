// Sorting and filters of tables, signs of what scrolls, hints of charts, zoom, copying. It makes no
// markup from text.
"use strict";
(() => {
  const NEAR = 24; // Pixels around a pointer or a finger in which a point is meant.
  const FILTERED = 10; // Rows of a table from which on it has a filter.

  function make(tag, properties, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  // Tables: the whole cell of a heading is a button that sorts by its column.

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
    const rows = Array.from(body.rows, (row) => ({row, key: key(row, index)}));
    // Rows with equal keys keep their order.
    rows.sort((a, b) => {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
      return descending ? compare(b.key, a.key) : compare(a.key, b.key);
    });
    body.append(...rows.map((one) => one.row));
  }
  function sortable(table) {
    if (table.tBodies[0].rows.length < 2) return;
    const heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach((head, index) => {
      const button = make("button", {type: "button"}, head.textContent);
      head.replaceChildren(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sort(table, index, descending);
      });
    });
  }

  // Filter: long tables show only the rows that contain all words.

  function filterable(box) {
    const rows = Array.from(box.querySelector("table").tBodies[0].rows);
    if (rows.length < FILTERED) return;
    const texts = rows.map((row) =>
      Array.from(row.cells, (cell) => cell.textContent).join(" ").toLowerCase());
    const input = make("input", {type: "search", placeholder: "filter rows"});
    input.setAttribute("aria-label", "filter rows of " + box.getAttribute("aria-label"));
    const shown = make("output", {});
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let number = 0;
      rows.forEach((row, index) => {
        row.hidden = !words.every((word) => texts[index].includes(word));
        number += row.hidden ? 0 : 1;
      });
      shown.textContent = words.length ? number + " of " + rows.length + " rows" : "";
    });
    box.before(make("div", {className: "filter"}, input, shown));
  }

  // Commands: a button that copies; without a clipboard it selects.

  function copyable(code) {
    const button = make("button", {type: "button", className: "copy"});
    const label = (text) => {
      button.textContent = text;
      button.setAttribute("aria-label", text + " " + code.textContent);
    };
    label("copy");
    button.addEventListener("click", () => {
      window.getSelection().selectAllChildren(code);
      const done = () => { label("copied"); };
      if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, done);
    });
    code.after(button);
  }

  // Hints: the point nearest to a pointer or finger, or the one with the focus.

  const tip = make("div", {className: "tip", hidden: true});
  tip.setAttribute("aria-hidden", "true"); // A screen reader says the label of the point.
  document.body.append(tip);

  function show(point) {
    tip.hidden = !point;
    if (!point) return;
    const box = point.getBoundingClientRect();
    tip.textContent = point.getAttribute("aria-label");
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    const middle = box.left + box.width / 2 - tip.offsetWidth / 2;
    tip.style.left = Math.max(8, Math.min(room, middle)) + "px";
    const above = box.top - tip.offsetHeight - 8;
    tip.style.top = (above > 0 ? above : box.bottom + 8) + "px";
  }
  function points(svg) {
    return Array.from(svg.querySelectorAll(".point:not([visibility=hidden])"));
  }
  function nearest(svg, x, y) {
    let found = null, least = NEAR;
    points(svg).forEach((point) => {
      const box = point.getBoundingClientRect();
      const beside = Math.max(box.left - x, 0, x - box.right);
      const distance = Math.hypot(beside, Math.max(box.top - y, 0, y - box.bottom));
      if (distance < least) { found = point; least = distance; }
    });
    return found;
  }
  function explorable(svg) {
    const all = points(svg);
    if (!all.length) return;
    // One stop of the tabulator for a chart, arrows between its points.
    all.forEach((point, place) => point.setAttribute("tabindex", place ? "-1" : "0"));
    svg.querySelectorAll(".point > title").forEach((title) => title.remove());
    svg.addEventListener("keydown", (event) => {
      const now = points(svg);
      const place = now.indexOf(document.activeElement);
      const moves = {ArrowRight: place + 1, ArrowLeft: place - 1, ArrowDown: place + 1,
        ArrowUp: place - 1, Home: 0, End: now.length - 1};
      if (event.key === "Escape") show(null);
      if (!(event.key in moves)) return;
      event.preventDefault();
      const next = now[Math.max(0, Math.min(now.length - 1, moves[event.key]))];
      all.forEach((one) => one.setAttribute("tabindex", "-1"));
      next.setAttribute("tabindex", "0");
      next.focus();
    });
    svg.addEventListener("focusin", (event) => show(event.target.closest(".point")));
    svg.addEventListener("focusout", () => show(null));
    ["pointermove", "pointerdown"].forEach((name) => {
      svg.addEventListener(name, (event) => show(nearest(svg, event.clientX, event.clientY)));
    });
    svg.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse") show(null);
    });
  }

  // Zoom: what is drawn over the points keeps its size and moves along x.

  function numbersOf(path) {
    const pairs = path.getAttribute("d").matchAll(/(-?[\d.]+)[^\d.-]+(-?[\d.]+)/g);
    return Array.from(pairs, (pair) => [Number(pair[1]), Number(pair[2])]);
  }
  function clipped(line, from, to) {
    const at = (a, b, x) => [x, a[1] + (b[1] - a[1]) * (x - a[0]) / (b[0] - a[0])];
    const kept = [];
    line.forEach((point, index) => {
      const last = line[index - 1];
      for (const edge of last ? [from, to] : []) {
        if (last[0] < edge && edge < point[0]) kept.push(at(last, point, edge));
      }
      if (from <= point[0] && point[0] <= to) kept.push(point);
    });
    return kept;
  }
  function view(svg, labels) {
    const marks = Array.from(svg.querySelectorAll(".marks use"), (use) => {
      const holder = use.parentNode.classList.contains("point") ? use.parentNode : use;
      return {use, holder, x: Number(use.getAttribute("x"))};
    });
    const lines = Array.from(svg.querySelectorAll(".plot path"),
      (path) => ({path, points: numbersOf(path)}));
    const texts = Array.from(svg.querySelectorAll(".beside text"),
      (text) => ({text, x: Number(text.getAttribute("x"))}));
    const ticks = Array.from(svg.querySelectorAll(".tick"));
    const first = svg.querySelector(".marks");
    const places = marks.filter((one) => first.contains(one.use)).map((one) => one.x);
    const left = places[0], right = places[places.length - 1];
    let added = [];

    function tick(index, x) {
      const copy = ticks[0].cloneNode(true);
      const text = copy.querySelector("text");
      copy.setAttribute("transform", "translate(" + (x - Number(text.getAttribute("x"))) + " 0)");
      text.textContent = labels[index];
      ticks[0].before(copy);
      added.push(copy);
    }
    return {
      svg,
      places,
      zoom(from, to) {
        const low = places[from], high = places[to], scale = (right - left) / (high - low);
        const margin = 0.4 / scale * (right - left) / (places.length - 1);
        const inside = (x) => low - margin <= x && x <= high + margin;
        const moved = (x) => left + (x - low) * scale;
        const hide = (one, hidden) => {
          if (hidden) one.setAttribute("visibility", "hidden"); else one.removeAttribute("visibility");
        };
        marks.forEach((one) => {
          hide(one.holder, !inside(one.x));
          one.use.setAttribute("x", moved(one.x));
        });
        lines.forEach((one) => {
          const shown = clipped(one.points, low - margin, high + margin);
          const steps = shown.map((point) => moved(point[0]) + " " + point[1]);
          one.path.setAttribute("d", steps.length ? "M " + steps.join(" L ") : "");
        });
        texts.forEach((one) => {
          hide(one.text, !inside(one.x));
          one.text.setAttribute("x", moved(one.x));
        });
        const whole = from === 0 && to === places.length - 1;
        ticks.forEach((one) => hide(one, !whole));
        added.forEach((one) => one.remove());
        added = [];
        // As many as the chart has when it shows all, at whole distances.
        const every = Math.ceil((to - from + 1) / ticks.length);
        for (let index = from; !whole && index <= to; index += every) tick(index, moved(places[index]));
      },
    };
  }
  function zoomable(figure) {
    const labels = JSON.parse(figure.getAttribute("data-labels"));
    const last = labels.length - 1;
    const views = Array.from(figure.querySelectorAll("svg"), (svg) => view(svg, labels));
    if (last < 3) return;
    const ends = ["from", "to"].map((name, place) =>
      make("input", {type: "range", min: 0, max: last, value: place ? last : 0, ariaLabel: name}));
    const shown = make("output", {});
    const all = make("button", {type: "button", textContent: "all"});
    figure.append(make("div", {className: "zoom"}, ...ends, shown, all));

    function zoom(from, to) {
      ends[0].value = from;
      ends[1].value = to;
      ends.forEach((end) => end.setAttribute("aria-valuetext", labels[end.value]));
      shown.textContent = labels[from] + " to " + labels[to] + ", " + (to - from + 1) + " points";
      all.disabled = from === 0 && to === last;
      views.forEach((one) => one.zoom(from, to));
    }
    ends[0].addEventListener("input", () => {
      const from = Math.min(Number(ends[0].value), last - 1);
      zoom(from, Math.max(from + 1, Number(ends[1].value)));
    });
    ends[1].addEventListener("input", () => {
      const to = Math.max(Number(ends[1].value), 1);
      zoom(Math.min(to - 1, Number(ends[0].value)), to);
    });
    all.addEventListener("click", () => zoom(0, last));
    views.forEach((one) => brush(one, ends, zoom));
    zoom(0, last);
  }
  function brush(one, ends, zoom) {
    const svg = one.svg, box = document.createElementNS(one.svg.namespaceURI, "rect");
    box.setAttribute("class", "brush");
    box.setAttribute("height", svg.viewBox.baseVal.height);
    let start = null;
    // Dragging over a mark that is a link selects a range.
    svg.addEventListener("dragstart", (event) => event.preventDefault());
    function place(event) {
      const frame = svg.getBoundingClientRect();
      return (event.clientX - frame.left) * svg.viewBox.baseVal.width / frame.width;
    }
    svg.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse" || event.button) return; // A finger scrolls.
      start = place(event);
      event.preventDefault();
    });
    window.addEventListener("pointermove", (event) => {
      if (start === null) return;
      svg.append(box);
      box.setAttribute("x", Math.min(start, place(event)));
      box.setAttribute("width", Math.abs(place(event) - start));
    });
    window.addEventListener("pointerup", (event) => {
      if (start === null) return;
      const edges = [start, place(event)].sort((a, b) => a - b);
      start = null;
      box.remove();
      if (edges[1] - edges[0] < 8) return;
      const from = Number(ends[0].value), to = Number(ends[1].value), places = one.places;
      // Where the points are shown now.
      const step = (places[places.length - 1] - places[0]) / (to - from);
      const index = edges.map((x) => from + (x - places[0]) / step);
      const first = Math.max(from, Math.ceil(index[0])), end = Math.min(to, Math.floor(index[1]));
      if (end > first) zoom(first, end);
    });
  }

  // What is wider than its place fades where more follows, and says so.

  function scrolls(box) {
    const sign = make("p", {className: "sign", hidden: true, textContent: "scrolls sideways \u2192"});
    if (box.matches(".scroll")) box.after(sign);
    const update = () => {
      const more = box.scrollWidth - box.clientWidth - box.scrollLeft > 2;
      box.classList.toggle("more", more);
      sign.hidden = !more;
    };
    box.addEventListener("scroll", update, {passive: true});
    new ResizeObserver(update).observe(box); // An opened section gets its size then.
  }

  // Sections: a link into a folded one opens it, and so does paper.

  function open() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target instanceof HTMLDetailsElement) target.open = true;
  }

  document.querySelectorAll(".scroll").forEach(filterable); // Before buttons add their texts to cells.
  document.querySelectorAll("table").forEach(sortable);
  document.querySelectorAll(".scroll, nav ul").forEach(scrolls);
  document.querySelectorAll(".command code").forEach(copyable);
  document.querySelectorAll("figure svg").forEach(explorable);
  document.querySelectorAll("figure[data-labels]").forEach(zoomable);
  document.querySelectorAll("nav a").forEach((link) => {
    link.addEventListener("click", () => setTimeout(open));
  });
  window.addEventListener("hashchange", open);
  const follow = () => show(document.activeElement.closest(".point"));
  window.addEventListener("scroll", follow, {passive: true});
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((one) => { one.open = true; });
  });
  open();
})();
