"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");

  // Tables: a click on a heading sorts, a second one turns the order round; what has no figure stays last.
  for (const button of document.querySelectorAll(".sort")) {
    button.addEventListener("click", () => {
      const heading = button.closest("th"), table = button.closest("table"), body = table.tBodies[0];
      const opposite = { ascending: "descending", descending: "ascending" };
      const now = heading.getAttribute("aria-sort");
      const order = now ? opposite[now] : button.dataset.first;
      const column = Number(button.dataset.column), sign = order === "ascending" ? 1 : -1;
      const key = (row) => row.cells[column].dataset.sort;
      const compare = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const difference = Number(x) - Number(y);
        return sign * (Number.isNaN(difference) ? x.localeCompare(y) : difference);
      };
      for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", order);
      body.append(...[...body.rows].sort(compare));
    });
  }

  const chips = [...document.querySelectorAll(".chip")];
  const chosen = new Set(chips.filter((c) => c.getAttribute("aria-pressed") === "true").map((c) => Number(c.dataset.module)));
  const data = document.getElementById("figures");
  const figures = data ? JSON.parse(data.textContent) : {};
  const plots = [...document.querySelectorAll(".plot-box")];
  const coarse = matchMedia("(pointer: coarse)").matches;

  function property(name) {
    return getComputedStyle(root).getPropertyValue(name).trim();
  }

  // Figures name colours by style property, so that they follow the scheme of the page.
  function coloured(value) {
    if (typeof value === "string") return value.startsWith("--") ? property(value) : value;
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map(coloured);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v)]));
  }

  function font(size) {
    return { family: property("--sans"), size, color: property("--ink") };
  }

  function axis(given) {
    const line = { gridcolor: property("--faint"), zerolinecolor: property("--rule"), linecolor: property("--rule") };
    const text = { tickfont: { ...font(12), color: property("--muted") } };
    const title = { ...given.title, font: { ...font(12.5), color: property("--muted") } };
    return { ...line, ...text, fixedrange: coarse, ...given, title };
  }

  function drawn(box) {
    const figure = coloured(figures[box.dataset.figure]);
    for (const trace of figure.data) {
      if (trace.meta && trace.meta.module !== undefined) trace.visible = chosen.has(trace.meta.module);
    }
    const layout = {
      ...figure.layout, font: font(12.5), paper_bgcolor: property("--surface"), plot_bgcolor: property("--surface"),
      xaxis: axis(figure.layout.xaxis), yaxis: axis(figure.layout.yaxis), showlegend: false,
      margin: { t: 20, r: 20, b: 48, l: 52 }, dragmode: coarse ? false : "zoom", annotations: [],
      hoverlabel: { bgcolor: property("--page"), bordercolor: property("--rule"), font: font(13) },
    };
    if (layout.height) box.style.height = layout.height + "px";
    const named = namedLine(figure);
    if (named) layout.margin[named.meta.at === "start" ? "l" : "r"] = Math.min(150, Math.round(box.clientWidth * 0.34));
    return { data: figure.data, layout };
  }

  function namedLine(figure) {
    return figure.data.find((t) => t.meta && t.meta.label && t.meta.module !== undefined && t.visible);
  }

  async function draw(box) {
    const { data: traces, layout } = drawn(box);
    // The buttons are named one by one: plotly's own choice has one that uploads the chart.
    const config = { displaylogo: false, responsive: false, displayModeBar: coarse ? false : "hover", plotlyServerURL: "",
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };
    await Plotly.react(box, traces, layout, config);
    await label(box);
    if (!box.dataset.watched) {
      box.dataset.watched = "yes";
      box.on("plotly_relayout", (change) => {
        if (Object.keys(change).some((key) => key.includes("axis"))) label(box);
      });
    }
  }

  // Names beside the marks or at the ends of the lines; one that finds no room is left to the pointer.
  async function label(box) {
    const { xaxis, yaxis } = box._fullLayout;
    const traces = box.data.filter((t) => t.meta && t.meta.label && t.visible !== false && t.x.length);
    const ends = traces.filter((t) => t.meta.module !== undefined);
    const annotations = ends.length ? endLabels(ends, yaxis, box) : markLabels(traces, box, xaxis, yaxis);
    await Plotly.relayout(box, { annotations });
  }

  const canvas = document.createElement("canvas").getContext("2d");
  const SIZE = 11.5;
  function plain(text) {
    return new DOMParser().parseFromString(text, "text/html").body.textContent;
  }
  function width(text) {
    canvas.font = `${SIZE}px ${property("--sans")}`;
    return canvas.measureText(plain(text)).width;
  }
  function shortened(text, room) {
    if (width(text) <= room) return text;
    // Names that begin alike often differ at their end, so the middle goes.
    const letters = [...plain(text)];
    const escaped = (part) => part.join("").replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
    for (let kept = letters.length - 1; kept > 3; kept--) {
      const head = Math.ceil(kept / 2);
      const short = escaped(letters.slice(0, head)) + "…" + escaped(letters.slice(letters.length - (kept - head)));
      if (width(short) <= room) return short;
    }
    return escaped(letters.slice(0, 3)) + "…";
  }

  function endLabels(traces, yaxis, box) {
    const start = traces[0].meta.at === "start", margin = box._fullLayout.margin;
    const room = (start ? margin.l : margin.r) - 14, gap = SIZE + 2.5, height = yaxis._length;
    let items = traces.map((t) => ({ t, y: yaxis.d2p(t.y[start ? 0 : t.y.length - 1]) }))
      .filter((i) => Number.isFinite(i.y) && i.y >= -1 && i.y <= height + 1).sort((a, b) => a.y - b.y);
    // Too many for all: those that need not be moved.
    if (items.length * gap > height + gap) {
      let free = -Infinity;
      items = items.filter((i) => i.y >= free && (free = i.y + gap));
    }
    const places = items.map((i) => i.y);
    for (let k = 1; k < places.length; k++) places[k] = Math.max(places[k], places[k - 1] + gap);
    let limit = height;
    for (let k = places.length - 1; k >= 0; k--, limit -= gap) places[k] = Math.min(places[k], limit);
    return items.map(({ t }, k) => ({
      xref: "paper", x: start ? 0 : 1, xanchor: start ? "right" : "left", xshift: start ? -6 : 6,
      yref: "paper", y: 1 - places[k] / height, yanchor: "middle",
      text: shortened(t.meta.label, room), showarrow: false, font: { ...font(SIZE), color: t.line.color },
    }));
  }

  function markLabels(traces, box, xaxis, yaxis) {
    const points = traces.map((t) => ({ t, x: xaxis.d2p(t.x[0]), y: yaxis.d2p(t.y[0]) }));
    const marks = points.map((p) => [p.x - 7, p.y - 7, p.x + 7, p.y + 7]);
    const lines = [...points.flatMap(errorBar), ...stairs(box.data[0])];
    const hits = (a) => (b) => a[0] < b[2] && a[2] > b[0] && a[1] < b[3] && a[3] > b[1];
    const inside = (a) => a[0] >= 0 && a[1] >= 0 && a[2] <= xaxis._length && a[3] <= yaxis._length;
    const directions = [[1, 0], [-1, 0], [0.8, 0.8], [0.8, -0.8], [-0.8, -0.8], [-0.8, 0.8], [0, -1], [0, 1]];
    // On a narrow plot long leaders would cross each other.
    const spots = (xaxis._length < 480 ? [12, 24] : [12, 26, 42, 60]).flatMap((far) => directions.map(([dx, dy]) => [dx * far, dy * far, far]));
    const result = [];
    points.sort((a, b) => (b.t.meta.front - a.t.meta.front) || (a.y - b.y));
    for (const { t, x, y } of points) {
      const text = shortened(t.meta.label, 150), w = width(text) + 2, h = SIZE + 3;
      const places = spots.map(([dx, dy, far]) => {
        const left = x + dx - (dx > 0 ? 0 : dx < 0 ? w : w / 2), top = y + dy - h / 2;
        return { dx, dy, far, area: [left, top, left + w, top + h] };
      }).filter((place) => inside(place.area) && !marks.some(hits(place.area)));
      // Beside a line is better than on it, and on it better than nowhere.
      const found = places.find((place) => !lines.some(hits(place.area))) || places[0];
      if (!found) continue;
      marks.push(found.area);
      result.push({
        x: t.x[0], y: t.y[0], ax: found.dx, ay: found.dy, text, font: font(SIZE), borderpad: 0, standoff: 7,
        xanchor: found.dx > 0 ? "left" : found.dx < 0 ? "right" : "center", yanchor: "middle", showarrow: true,
        arrowhead: 0, arrowwidth: 1, arrowcolor: found.far > 20 ? property("--muted") : "rgba(0,0,0,0)",
      });
    }
    return result;

    function errorBar({ t, x, y }) {
      if (!t.error_y) return [];
      const half = Math.abs(yaxis.d2p(t.y[0] + t.error_y.array[0]) - y);
      return [[x - 3, y - half, x + 3, y + half]];
    }
    function stairs(front) {
      const corners = front.x.map((value, k) => [xaxis.d2p(value), yaxis.d2p(front.y[k])]);
      return corners.slice(1).flatMap(([x, y], k) => {
        const [px, py] = corners[k];
        return [[px, py - 1, x, py + 1], [x - 1, Math.min(y, py), x + 1, Math.max(y, py)]];
      });
    }
  }

  function drawAll() {
    if (typeof Plotly === "undefined") return;
    for (const box of plots) draw(box);
  }

  function choose() {
    for (const chip of chips) chip.setAttribute("aria-pressed", String(chosen.has(Number(chip.dataset.module))));
    for (const strip of document.querySelectorAll(".strip[data-module]")) strip.hidden = !chosen.has(Number(strip.dataset.module));
  }
  for (const chip of chips) {
    chip.addEventListener("click", () => {
      const module = Number(chip.dataset.module);
      if (!chosen.delete(module)) chosen.add(module);
      choose();
      drawAll();
    });
  }
  for (const all of document.querySelectorAll(".all")) {
    all.addEventListener("click", () => {
      const every = chips.map((c) => Number(c.dataset.module)), full = chosen.size === every.length;
      chosen.clear();
      if (!full) every.forEach((m) => chosen.add(m));
      choose();
      drawAll();
    });
  }
  for (const input of document.querySelectorAll(".choice input")) {
    input.addEventListener("change", () => {
      const box = document.getElementById("plot-cost");
      box.dataset.figure = input.value;
      draw(box);
    });
  }

  // Relabelling needs the new size, so resizing is ours rather than plotly's.
  let waiting = 0, last = root.clientWidth;
  addEventListener("resize", () => {
    if (root.clientWidth === last) return;
    last = root.clientWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 120);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  choose();
  drawAll();
})();
