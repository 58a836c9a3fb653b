"use strict";
(() => {
  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);

  const toggle = document.getElementById("theme");
  const show = () => {
    toggle.textContent = isDark() ? "Light" : "Dark";
    toggle.setAttribute("aria-label", `Show the page in ${isDark() ? "light" : "dark"} colours`);
  };
  toggle.hidden = false;
  toggle.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; show(); });
  prefersDark.addEventListener("change", show);

  // Numbers as Python's format() writes them, of the kinds that figures use: .3g .2f .1% and a comma.
  const number = (value, kind) => {
    if (value === null || value === undefined) return "—";
    const digits = Number(/\d+/.exec(kind));
    if (kind.endsWith("%")) return `${(100 * value).toFixed(digits)}%`;
    if (kind.endsWith("f")) return value.toFixed(digits);
    if (kind === ",") return value.toLocaleString("en-US");
    return String(Number(value.toPrecision(digits || 6)));
  };

  // The nearest point of a figure shows its values.
  const reach = 40; // pixels
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  document.body.append(tip);
  const ring = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  ring.setAttribute("class", "nearest");
  ring.setAttribute("r", 5);
  const hide = () => { tip.hidden = true; ring.remove(); };

  const pixel = ([low, high, length, log], upward) => (value) => {
    const share = ((log ? Math.log10(value) : value) - low) / (high - low);
    return length * (upward ? 1 - share : share);
  };
  const watch = (drawing, { at, x, y, columns, marks }) => {
    const toX = pixel(x, false), toY = pixel(y, true);
    const hidden = new Set();
    const noteHidden = () => {
      hidden.clear();
      for (const line of drawing.querySelectorAll("[data-row][hidden]")) hidden.add(line.dataset.row);
    };
    const nearest = (px, py) => {
      let best = { distance: reach };
      for (const mark of marks) {
        if (hidden.has(mark.row)) continue;
        const xs = columns[mark.x], ys = columns[mark.y];
        for (let i = 0; i < xs.length; i += 1) {
          if (xs[i] === null || ys[i] === null) continue;
          const left = toX(xs[i]), top = toY(ys[i]);
          let distance = Math.hypot(left - px, top - py);
          if (mark.bars) { // anywhere in a bar, unless a line is nearer
            const [low, high] = mark.extra.map((column) => toX(columns[column][i]));
            distance = low <= px && px < high && py >= top - 4 ? 8 : Infinity;
          }
          if (distance <= best.distance && left >= -1 && left <= x[2] + 1) best = { distance, mark, i, left, top };
        }
      }
      return best.mark && best;
    };
    const tell = ({ mark, i, left, top }, event) => {
      const values = { x: columns[mark.x][i], y: columns[mark.y][i] };
      (mark.extra || []).forEach((column, k) => { values[k] = columns[column][i]; });
      const text = mark.text.replace(/\{(\w+):([^}]*)\}/g, (_, name, kind) => number(values[name], kind));
      const name = mark.name || (mark.texts && mark.texts[i]);
      tip.textContent = text;
      if (name) {
        const bold = document.createElement("b");
        bold.textContent = name;
        tip.prepend(bold);
      }
      tip.hidden = false;
      const box = tip.getBoundingClientRect();
      const beside = event.clientX + 14 + box.width > innerWidth ? event.clientX - 14 - box.width : event.clientX + 14;
      tip.style.left = `${Math.max(4, beside)}px`;
      tip.style.top = `${Math.max(4, Math.min(event.clientY - box.height - 8, innerHeight - box.height - 4))}px`;
      ring.setAttribute("cx", at[0] + left);
      ring.setAttribute("cy", at[1] + top);
      drawing.append(ring);
    };
    drawing.addEventListener("pointermove", (event) => {
      const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(drawing.getScreenCTM().inverse());
      noteHidden();
      const found = nearest(place.x - at[0], place.y - at[1]);
      if (found) tell(found, event); else hide();
    });
    drawing.addEventListener("pointerleave", hide);
  };
  addEventListener("scroll", hide, { passive: true });
  for (const drawing of document.querySelectorAll("svg.drawing")) {
    const data = drawing.closest("figure").querySelector('script[type="application/json"]');
    if (data) watch(drawing, JSON.parse(data.textContent));
  }

  // A legend of buttons stands for all figures of its section.
  for (const button of document.querySelectorAll(".legend button[data-method]")) {
    const section = button.closest("section");
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      for (const line of section.querySelectorAll("[data-row]")) {
        if (line.dataset.row === button.dataset.method) line.toggleAttribute("hidden", !shown);
      }
    });
  }

  // What is wider than its box, mostly a table, fades at the side where there is more of it.
  const fade = (box) => {
    box.classList.toggle("more-left", box.scrollLeft > 2);
    box.classList.toggle("more-right", box.scrollLeft + box.clientWidth < box.scrollWidth - 2);
  };
  const boxes = [...document.querySelectorAll(".scrolls")];
  for (const box of boxes) box.addEventListener("scroll", () => fade(box), { passive: true });
  const sizes = new ResizeObserver((entries) => entries.forEach(({ target }) => fade(target)));
  boxes.forEach((box) => sizes.observe(box));

  const order = (numeric) => (a, b) =>
    numeric ? a - b : a.localeCompare(b, undefined, { numeric: true, sensitivity: "base" });
  const sort = (table, head, column) => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    const numeric = head.classList.contains("number");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => {
      const value = row.cells[column].dataset.value;
      return { row, value: value === undefined ? undefined : numeric ? Number(value) : value };
    });
    const compare = order(numeric);
    rows.sort((a, b) => {
      if (a.value === undefined || b.value === undefined) return (a.value === undefined) - (b.value === undefined);
      return up ? compare(a.value, b.value) : compare(b.value, a.value);
    });
    body.append(...rows.map(({ row }) => row));
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((head, column) =>
      head.querySelector("button").addEventListener("click", () => sort(table, head, column)));
  }

  show();
  root.dataset.ready = "";
})();
