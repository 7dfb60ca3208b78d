// Draws charts with Plotly.js from the installed plotly package. The script is loaded for the first
// chart. If the package is not installed, each chart shows what to install.
//
// Drawing accounts for most of the CPU time of an open console, so new data redraws a chart at most
// every two seconds, and only while the chart is visible or close to it.

import { h } from "./dom.js";
import { nothing } from "./components.js";

const PLOTLY = "/console/plotly.min.js";
const SERIES = 6;
const SHORTEST_MS = 15_000;
const MAX_TICKS = 5;
const NARROW_PX = 480;
const MAX_NAME = 24; // characters
const REDRAW_MS = 2000;
const NEARLY_SEEN = "200px";
const CONFIG = {
  displayModeBar: false,
  responsive: true,
  scrollZoom: false,
  doubleClick: "reset",
  showTips: false,
};

/** The script cannot be loaded; the server does not have it. */
class NotInstalledError extends Error {
  constructor() {
    super("Plotly is not installed: pip install 'strandlog[console]'");
  }
}

let plotly = null;

function load() {
  plotly ??= new Promise((resolve, reject) => {
    const restore = withoutMapStyles();
    const loaded = () => {
      restore();
      resolve(globalThis.Plotly);
    };
    const missing = () => {
      restore();
      reject(new NotInstalledError());
    };
    document.head.append(h("script", { src: PLOTLY, onload: loaded, onerror: missing }));
  });
  return plotly;
}

/**
 * Keeps Plotly from adding its styles for maps, which are not needed and which the content security
 * policy rejects. Plotly looks for them by id and adds them only if they do not exist.
 */
function withoutMapStyles() {
  document.getElementById = (
    id,
  ) => (/^[0-9a-f]{64}$/.test(id)
    ? document.head
    : Document.prototype.getElementById.call(document, id));
  return () => delete document.getElementById;
}

let palette = null;

/** Returns the colours of the theme as literals: Plotly does not support CSS variables. */
function colours() {
  palette ??= readColours();
  return palette;
}

function readColours() {
  const probe = h("span", { hidden: true });
  document.body.append(probe);
  const of = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const found = {
    ink: of("ink-soft"),
    strong: of("ink"),
    line: of("line"),
    panel: of("panel"),
    series: Array.from({ length: SERIES }, (_, number) => of(`series-${number + 1}`)),
  };
  probe.remove();
  return found;
}

const charts = new Set();

/** Redraws all charts after a change of the theme. */
export function recolour() {
  palette = null;
  for (const chart of charts) chart.draw();
}

const seen = new IntersectionObserver((changes) => {
  for (const { target, isIntersecting } of changes) target.chart.see(isIntersecting);
}, { rootMargin: NEARLY_SEEN });

/**
 * A chart in a panel. `update([{name, x, y}])` draws it; x contains times in ms, or names if
 * `isByName` is set. `format` formats a number; it is the function that the page's figures use, so
 * that the axis and the figures have the same unit. `isWhole` means that all numbers are integers.
 */
export class Chart {
  constructor(
    page,
    {
      label,
      format,
      isWhole = false,
      windowMs = null,
      isByName = false,
      isSmall = false,
      empty = "Nothing yet",
    },
  ) {
    this.options = { label, format, isWhole, windowMs, isByName, empty };
    this.element = h(
      "div",
      { class: isSmall ? "chart small" : "chart", role: "img", "aria-label": label },
      h("div", { class: "state" }, h("p", {}, "Loading the chart")),
    );
    this.element.chart = this;
    this.series = null;
    this.isDrawing = false;
    this.isSeen = false;
    this.drawnAt = -REDRAW_MS;
    this.timer = null;
    charts.add(this);
    seen.observe(this.element);
    page.on(page.signal, "abort", () => this.end());
  }

  end() {
    charts.delete(this);
    seen.unobserve(this.element);
    clearTimeout(this.timer);
    this.isOver = true;
    if (this.element.classList.contains("js-plotly-plot")) globalThis.Plotly.purge(this.element);
  }

  update(series) {
    this.series = series;
    this.timer ??= setTimeout(() => this.draw(), this.drawnAt + REDRAW_MS - performance.now());
  }

  see(isSeen) {
    const wasSeen = this.isSeen;
    this.isSeen = isSeen;
    if (isSeen && !wasSeen) this.draw();
  }

  async draw() {
    clearTimeout(this.timer);
    this.timer = null;
    if (this.isDrawing || !this.series || !this.isSeen || this.isOver) return;
    this.isDrawing = true;
    this.drawnAt = performance.now();
    try {
      const Plotly = await load();
      if (!this.isOver && this.element.isConnected) await this.drawn(Plotly);
    } catch (error) {
      const title = error instanceof NotInstalledError ? "No charts" : "Chart not drawn";
      this.element.replaceChildren(nothing(title, error.message));
      this.isOver = true;
    } finally {
      this.isDrawing = false;
    }
  }

  async drawn(Plotly) {
    const theme = colours();
    const { format, label } = this.options;
    const traces = this.series.map((each, number) =>
      this.trace(each, theme.series[number % SERIES])
    );
    await Plotly.react(this.element, traces, this.layout(theme), CONFIG);
    const now = this.series.filter((each) => each.y.length).slice(0, SERIES).map((each) =>
      `${each.name} ${format(each.y.at(-1))}`
    );
    this.element.setAttribute("aria-label", `${label}: ${now.join(", ") || this.options.empty}`);
    this.element.querySelector(":scope > .state")?.remove();
    if (!this.series.some((each) => each.y.length)) {
      this.element.append(h("div", { class: "state" }, h("p", {}, this.options.empty)));
    }
  }

  trace(each, colour) {
    const { format, isByName } = this.options;
    const text = each.y.map(format);
    const shared = {
      name: plain(shortened(each.name)),
      y: each.y,
      text,
      textposition: "none",
      hovertemplate: "%{text}<extra>%{fullData.name}</extra>",
    };
    if (isByName) {
      return { ...shared, x: each.x.map(plain), type: "bar", marker: { color: colour } };
    }
    const x = each.x.map((at) => new Date(at));
    return {
      ...shared,
      x,
      type: "scatter",
      mode: each.y.length === 1 ? "markers" : "lines",
      line: { color: colour, width: 2, shape: "linear" },
      fill: this.series.length <= 2 ? "tozeroy" : "none",
      fillcolor: colour.replace("rgb(", "rgba(").replace(")", ", 0.10)"),
    };
  }

  /** Returns the labels of the bars. */
  names() {
    const x = this.series[0].x;
    return { tickvals: x.map(plain), ticktext: x.map((name) => plain(shortened(name))) };
  }

  layout(theme) {
    const { format, isWhole, windowMs, isByName } = this.options;
    const axis = {
      color: theme.ink,
      gridcolor: theme.line,
      zerolinecolor: theme.line,
      linecolor: theme.line,
      fixedrange: true,
      automargin: isByName,
    };
    const times = isByName
      ? []
      : this.series.flatMap((each) => (each.x.length ? [each.x[0], each.x.at(-1)] : []));
    const now = Math.max(Date.now(), ...times);
    // The time axis starts with the first point, so that a new broker's chart is not almost empty.
    const from = Math.max(now - windowMs, Math.min(now - SHORTEST_MS, ...times));
    const largest = this.series.reduce(
      (most, each) => each.y.reduce((one, other) => Math.max(one, other), most),
      0,
    );
    const ticks = ticksTo(largest, isWhole);
    return {
      margin: { l: 16, r: 16, t: 8, b: 32 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: theme.ink },
      showlegend: this.series.length > 1,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: theme.strong } },
      hovermode: isByName ? "closest" : "x unified",
      hoverlabel: { bgcolor: theme.panel, bordercolor: theme.line, font: { color: theme.strong } },
      xaxis: isByName ? { ...axis, type: "category", ...this.names() } : {
        ...axis,
        type: "date",
        ...(windowMs ? { range: [new Date(from), new Date(now)] } : {}),
        tickformat: "%H:%M:%S",
        tickangle: 0,
        nticks: this.element.clientWidth < NARROW_PX ? 4 : 6,
        showgrid: false,
      },
      yaxis: {
        ...axis,
        automargin: true,
        range: [0, 1.04 * Math.max(largest, ticks.at(-1)) || 1],
        tickvals: ticks,
        ticktext: ticks.map((tick) => withoutZeros(format(tick))),
        ticklabelstandoff: 4,
      },
      bargap: 0.35,
    };
  }
}

/** Shortens a name in the middle, for a legend or an axis. */
function shortened(name) {
  return name.length > MAX_NAME ? `${name.slice(0, 12)}…${name.slice(-9)}` : name;
}

/** Formats 20.0 kB/s as 20 kB/s: the numbers on an axis are round. */
function withoutZeros(text) {
  return text.replace(/(\.\d*?)0+(?!\d)/, "$1").replace(/\.(?!\d)/, "");
}

/** Escapes text for Plotly, which interprets some markup in names. */
function plain(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

/** Returns round numbers from 0 to about the largest one. */
function ticksTo(largest, isWhole) {
  if (largest === 0) return [0];
  const rough = largest / (MAX_TICKS - 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const fitting = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const step = isWhole ? Math.max(1, fitting) : fitting;
  return Array.from({ length: Math.floor(largest / step + 0.1) + 1 }, (_, number) => number * step);
}
