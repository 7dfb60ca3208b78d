// Draws charts with Plotly.js from the installed plotly package, which is loaded for the first
// chart. If it is not installed, each chart shows what to install.
//
// Drawing accounts for most of the CPU time of an open console, so a chart is redrawn at most every
// two seconds, and only while it is visible.

import { h } from "./dom.js";
import { seconds, short } from "./format.js";
import { nothing } from "./components.js";

const PLOTLY = "/console/plotly.min.js";
const SERIES = 6;
const SHORTEST_MS = 60_000;
const REDRAW_MS = 2000;
const NEARLY_SEEN = "200px";
const CONFIG = {
  displayModeBar: false,
  responsive: true,
  scrollZoom: false,
  doubleClick: "reset",
  showTips: false,
};

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
      reject(new Error("Plotly is not installed"));
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
 * `isByName` is set. `unit` (such as "B/s") is appended to the numbers, with a prefix k, M or G.
 */
export class Chart {
  constructor(
    page,
    { label, unit, windowMs = null, isByName = false, isSmall = false, empty = "Nothing yet" },
  ) {
    this.options = { label, unit, windowMs, isByName, empty };
    this.element = h("div", {
      class: isSmall ? "chart small" : "chart",
      role: "img",
      "aria-label": label,
    });
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
      this.element.replaceChildren(
        nothing("No charts", `${error.message}: pip install 'strandlog[console]'`),
      );
      this.isOver = true;
    } finally {
      this.isDrawing = false;
    }
  }

  async drawn(Plotly) {
    const theme = colours();
    const { unit, label } = this.options;
    const traces = this.series.map((each, number) =>
      this.trace(each, theme.series[number % SERIES])
    );
    await Plotly.react(this.element, traces, this.layout(theme), CONFIG);
    const now = this.series.filter((each) => each.y.length).slice(0, SERIES).map((each) =>
      `${each.name} ${inWords(each.y.at(-1), unit)}`
    );
    this.element.setAttribute("aria-label", `${label}: ${now.join(", ") || this.options.empty}`);
    const last = this.element.querySelector(":scope > .state");
    if (this.series.some((each) => each.y.length)) last?.remove();
    else if (!last) {
      this.element.append(h("div", { class: "state" }, h("p", {}, this.options.empty)));
    }
  }

  trace(each, colour) {
    const { unit, isByName } = this.options;
    const text = each.y.map((value) => inWords(value, unit));
    const shared = {
      name: plain(each.name),
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

  layout(theme) {
    const { unit, windowMs, isByName } = this.options;
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
    // The time axis starts with one minute and grows, so that a short line is still readable.
    const from = Math.max(now - windowMs, Math.min(now - SHORTEST_MS, ...times));
    const largest = this.series.reduce(
      (most, each) => each.y.reduce((one, other) => Math.max(one, other), most),
      0,
    );
    const isFlat = largest === 0;
    return {
      margin: { l: 72, r: 16, t: 8, b: 32 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: theme.ink },
      showlegend: this.series.length > 1,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: theme.strong } },
      hovermode: isByName ? "closest" : "x unified",
      hoverlabel: { bgcolor: theme.panel, bordercolor: theme.line, font: { color: theme.strong } },
      xaxis: isByName ? { ...axis, type: "category" } : {
        ...axis,
        type: "date",
        ...(windowMs ? { range: [new Date(from), new Date(now)] } : {}),
        tickformat: "%H:%M:%S",
        nticks: 6,
        showgrid: false,
      },
      yaxis: {
        ...axis,
        rangemode: "tozero",
        ticksuffix: unit,
        ...ticks(largest, unit),
        ...(isFlat ? { range: [0, 1], nticks: 2 } : {}),
      },
      bargap: 0.35,
    };
  }
}

/** Escapes text for Plotly, which interprets some markup in names. */
function plain(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

/** Formats a number with its unit: 1.23 kB/s, 12 B/s, 300/s, 80 ms. */
function inWords(number, unit) {
  if (unit === "s") return seconds(number);
  const text = short(number);
  return /[A-Z]$/i.test(text) || unit.startsWith("/") ? `${text}${unit}` : `${text} ${unit}`.trim();
}

/** Chooses the tick format. Small numbers get no SI prefix: 0.5 must not become 500m. */
function ticks(largest, unit) {
  if (unit === "s" || largest >= 10) return { tickformat: "~s", nticks: 5 };
  return largest <= 4 && unit === ""
    ? { tickformat: "d", dtick: 1 }
    : { tickformat: "~g", nticks: 5 };
}
