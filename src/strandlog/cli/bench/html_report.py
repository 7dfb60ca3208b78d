"""The HTML report of a benchmark: one file with tables and a plot over time.

The file contains plotly.js from the installed plotly package, and its content security policy
forbids all network requests, so the report can be read offline and attached to a message.
"""

from __future__ import annotations

import html
import importlib.util
import json
from pathlib import Path
from typing import Any

from strandlog.cli.output import size_text
from strandlog.errors import MissingExtraError

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'; img-src data: blob:">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark;
  --text: #1c2024; --dim: #60646c; --line: #d9d9e0; --page: #fff; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --text: #edeef0; --dim: #b0b4ba; --line: #363a3f; --page: #111113; }}
}}
body {{ font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; margin-bottom: 0; }}
h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
.dim {{ color: var(--dim); margin-top: .25rem; }}
.cards {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; }}
.card {{ border: 1px solid var(--line); border-radius: .5rem; padding: .5rem .75rem; }}
.card b {{ display: block; font-size: 1.3rem; font-variant-numeric: tabular-nums;
  white-space: nowrap; }}
.card span {{ color: var(--dim); font-size: .85rem; }}
table {{ border-collapse: collapse; }}
td, th {{ border-bottom: 1px solid var(--line); padding: .25rem 1.5rem .25rem 0; text-align: left;
  overflow-wrap: anywhere; }}
th {{ font-weight: 500; color: var(--dim); }}
#plot {{ height: 30rem; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p class="dim">{subtitle}</p>
<div class="cards">{cards}</div>
<h2>Over time</h2>
<div id="plot" role="img" aria-label="Records per second and latency over time"></div>
{errors}
<h2>Options</h2>
<table>{options}</table>
<script>{plotly}</script>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""
_SCRIPT = """
const found = JSON.parse(document.getElementById("data").textContent);
const style = getComputedStyle(document.documentElement);
const colour = (name) => style.getPropertyValue(name).trim();
const times = found.intervals.map((_, index) => index * found.interval_seconds);
const widths = times.map((at) =>
  Math.max(1e-3, Math.min(found.interval_seconds, found.seconds - at)));
const rates = found.intervals.map((each, index) => each.records / widths[index]);
const line = (name, title, hue) => ({
  x: times, y: found.intervals.map((each) => each.latency_ms[name]), name: title, yaxis: "y2",
  mode: "lines+markers", line: {color: hue}, connectgaps: false,
});
const axis = {gridcolor: colour("--line"), zerolinecolor: colour("--line"), rangemode: "tozero"};
Plotly.newPlot("plot", [
  {x: times, y: rates, name: "records/s", mode: "lines+markers", line: {color: "#3e63dd"}},
  line("p50", "p50", "#30a46c"), line("p99", "p99", "#f76b15"), line("max", "max", "#e5484d"),
], {
  grid: {rows: 2, columns: 1},
  xaxis: {...axis, anchor: "y2", title: {text: "seconds since the start"}},
  yaxis: {...axis, domain: [0.56, 1], title: {text: "records/s"}},
  yaxis2: {...axis, domain: [0, 0.44], title: {text: "latency, ms"}},
  paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: {color: colour("--text")},
  margin: {t: 10, r: 10, l: 70}, legend: {orientation: "h", y: 1.12}, hovermode: "x unified",
}, {displaylogo: false, responsive: true});
"""


def plotly_path() -> Path:
    """Return the path of plotly.min.js; raise `MissingExtraError` if plotly is not installed."""
    found = importlib.util.find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        raise MissingExtraError("console", "plotly")
    return Path(found.submodule_search_locations[0], "package_data", "plotly.min.js")


def write_html(path: Path, document: dict[str, Any]) -> None:
    """Write the HTML report for the JSON document of a benchmark."""
    target, topic, started = document["target"], document["topic"], document["started"]
    state = ", interrupted" if document["interrupted"] else ""
    data = json.dumps(document).replace("<", "\\u003c")
    page = _PAGE.format(
        title=html.escape(f"strandlog bench {document['benchmark']}"),
        subtitle=html.escape(f"{target}, topic {topic}, {started}{state}"),
        cards="".join(_card(*pair) for pair in _figures(document)),
        errors=_errors(document["error_messages"]),
        options="".join(_row(name, value) for name, value in document["options"].items()),
        plotly=plotly_path().read_text(encoding="utf-8").replace("</script", "<\\/script"),
        data=data,
        script=_SCRIPT,
    )
    path.write_text(page, encoding="utf-8")


def _figures(document: dict[str, Any]) -> list[tuple[str, str]]:
    latency = document["latency_ms"]
    figures = [
        ("records/s", f"{document['records_per_second']:,.0f}"),
        ("throughput", f"{size_text(document['bytes_per_second'])}/s"),
        ("records", f"{document['records']:,}"),
        ("seconds", f"{document['seconds']:,.2f}"),
    ]
    names = ("p50", "p95", "p99", "max")
    figures += [(f"latency {name}", _milliseconds(latency[name])) for name in names]
    return [*figures, ("errors", f"{document['errors']:,}")]


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f} ms"


def _card(name: str, figure: str) -> str:
    return f'<div class="card"><b>{html.escape(figure)}</b><span>{html.escape(name)}</span></div>'


def _row(name: str, value: object) -> str:
    shown = "-" if value is None else str(value)
    return f"<tr><th>{html.escape(name)}</th><td>{html.escape(shown)}</td></tr>"


def _errors(messages: dict[str, int]) -> str:
    if not messages:
        return ""
    rows = "".join(_row(f"{count:,}", reason) for reason, count in messages.items())
    return f"<h2>Errors</h2><table>{rows}</table>"
