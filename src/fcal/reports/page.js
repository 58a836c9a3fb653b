"use strict";
(() => {
  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);

  // Figures name their colours; the style sheet says what they are today.
  const themed = (node, style) => {
    if (typeof node === "string") {
      const name = /^var\((--[a-z-]+)\)$/.exec(node);
      return name ? style.getPropertyValue(name[1]).trim() : node;
    }
    if (Array.isArray(node)) return node.map((item) => themed(item, style));
    if (node && typeof node === "object") {
      return Object.fromEntries(Object.entries(node).map(([key, item]) => [key, themed(item, style)]));
    }
    return node;
  };

  const axis = {
    gridcolor: "var(--line)", linecolor: "var(--line)", zeroline: false, automargin: true,
    tickfont: { size: 11 }, fixedrange: matchMedia("(pointer: coarse)").matches,
  };
  const family = "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif";
  const frame = {
    paper_bgcolor: "var(--clear)", plot_bgcolor: "var(--clear)", showlegend: false, autosize: true, hovermode: "closest",
    font: { family, size: 12, color: "var(--ink)" },
    hoverlabel: {
      bgcolor: "var(--card)", bordercolor: "var(--faint)", align: "left", font: { family, color: "var(--ink)", size: 12 },
    },
  };
  const config = {
    displayModeBar: false, displaylogo: false, responsive: true, showLink: false, showSendToCloud: false, scrollZoom: false,
    plotlyServerURL: "", topojsonURL: "", mapboxAccessToken: "",
  };
  const layoutOf = (own) => ({
    ...frame, ...own, margin: { l: 52, r: 20, t: 8, b: 44, ...own.margin },
    xaxis: { ...axis, ...own.xaxis }, yaxis: { ...axis, ...own.yaxis },
    dragmode: axis.fixedrange ? false : "zoom", // on a touch screen a drag scrolls the page
  });

  const figures = [...document.querySelectorAll("figure.plot")].map((figure) => ({
    place: figure.querySelector(".drawing"),
    ...JSON.parse(figure.querySelector('script[type="application/json"]').textContent),
  }));
  const draw = () => {
    const style = getComputedStyle(root);
    const drawn = figures.map(({ place, data, layout }) =>
      Plotly.react(place, themed(data, style), themed(layoutOf(layout), style), config));
    return Promise.all(drawn).then(() => { root.dataset.drawn = isDark() ? "dark" : "light"; });
  };

  // A legend of buttons stands for all figures of its section.
  for (const button of document.querySelectorAll(".legend button[data-method]")) {
    const section = button.closest("section");
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      for (const { place, data } of figures) {
        const own = section.contains(place) ? data.filter(({ meta }) => meta === button.dataset.method) : [];
        for (const trace of own) trace.visible = shown;
      }
      draw();
    });
  }

  const toggle = document.getElementById("theme");
  const show = () => {
    toggle.textContent = isDark() ? "Light" : "Dark";
    toggle.setAttribute("aria-label", `Show the page in ${isDark() ? "light" : "dark"} colours`);
    return draw();
  };
  toggle.hidden = false;
  toggle.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; show(); });
  prefersDark.addEventListener("change", show);

  let before;
  addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; draw(); });
  addEventListener("afterprint", () => {
    if (before === undefined) delete root.dataset.theme; else root.dataset.theme = before;
    draw();
  });

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
})();
