// One pipeline: the progress of its queries.

import { get, path } from "../api.js";
import { Chart } from "../chart.js";
import { h } from "../dom.js";
import { ago, compact, count, counted, rate, seconds, short, time } from "../format.js";
import { badge, nothing, panel, Table } from "../components.js";
import { sparkLink } from "./pipelines.js";

const LOOK_MS = 1000;

export function pipeline(page) {
  const name = page.route.parts[1];
  page.begin(name, { crumbs: [["Pipelines", "#/pipelines"]] });
  const failure = h("div", { class: "banner bad", role: "alert", hidden: true });
  const rows = new Chart(page, {
    label: "Rows per second",
    format: short,
    empty: "No micro-batch yet",
  });
  const batches = new Chart(page, {
    label: "Micro-batch time",
    format: seconds,
    isSmall: true,
    empty: "No micro-batch yet",
  });
  const lag = new Chart(page, {
    label: "Lag in records",
    format: compact,
    isWhole: true,
    isSmall: true,
    empty: "No micro-batch yet",
  });
  const table = queryTable();

  page.watch(() => get(path("pipelines", name), page), (found) => {
    if (!table.element.isConnected) {
      page.show(
        failure,
        panel("Queries", table.element),
        panel("Rows per second", rows.element),
        h(
          "div",
          { class: "columns" },
          panel("Micro-batch time", batches.element),
          panel("Lag in records", lag.element),
        ),
      );
    }
    page.sub.replaceChildren(
      badge(found.state),
      ...(found.next_run_ms ? [` next run ${time(found.next_run_ms)} ·`] : []),
      ` last report ${ago(found.last_seen_ms, Date.now())} · first ${
        ago(found.first_seen_ms, Date.now())
      }`,
      ...(found.ui_url ? [" · ", sparkLink(found.ui_url)] : []),
    );
    failure.hidden = !found.error;
    failure.textContent = found.error ?? "";
    table.update(found.queries);
    const lines = (of) =>
      found.queries.map(({ last, points }) => {
        const known = points.filter((point) => of(point) !== null);
        return { name: last.name, x: known.map((point) => point.timestamp_ms), y: known.map(of) };
      });
    rows.update(lines((point) => point.rows_per_second));
    batches.update(lines((point) => point.batch_ms / 1000));
    lag.update(lines((point) => point.lag));
  }, LOOK_MS);
}

function queryTable() {
  return new Table({
    label: "Queries",
    key: (row) => row.last.name,
    empty: () => nothing("No micro-batch yet"),
    columns: [
      { title: "Query", kind: "name", value: (row) => row.last.name },
      {
        title: "Batch",
        kind: "number small-hidden",
        value: (row) => row.last.batch_id,
        show: (row) => count(row.last.batch_id),
      },
      {
        title: "Rows in batch",
        kind: "number small-hidden",
        start: "down",
        value: (row) => row.last.rows,
        show: (row) => count(row.last.rows),
      },
      {
        title: "Rows",
        kind: "number",
        start: "down",
        value: (row) => row.last.rows_per_second,
        show: (row) => rate(row.last.rows_per_second, "rows"),
      },
      {
        title: "Batch time",
        kind: "number",
        start: "down",
        value: (row) => row.last.batch_ms,
        show: (row) => seconds(row.last.batch_ms / 1000),
      },
      {
        title: "Lag, records",
        kind: "number",
        start: "down",
        value: (row) => row.last.lag,
        show: (row) => count(row.last.lag),
      },
      {
        title: "State",
        kind: "number small-hidden",
        value: (row) => row.last.state_rows,
        show: (row) => counted(row.last.state_rows, "row"),
      },
      {
        title: "Dropped as late",
        kind: "number small-hidden",
        value: (row) => row.last.late_rows,
        show: (row) => counted(row.last.late_rows, "row"),
      },
      { title: "Watermark", kind: "soft small-hidden", value: (row) => row.last.watermark ?? "–" },
    ],
  });
}
