// Spark pipelines that report their progress.

import { get, path } from "../api.js";
import { linkColumn, pipelineAddress } from "../table_columns.js";
import { h } from "../dom.js";
import { ago, count, rate, seconds } from "../format.js";
import { badge, command, nothing, panel, Table } from "../components.js";

const LOOK_MS = 2000;

export function pipelines(page) {
  page.begin("Pipelines");
  const table = pipelineTable();
  const listed = panel("Pipelines", table.element);
  page.watch(() => get(path("pipelines"), page), (found) => {
    if (!listed.isConnected) page.show(listed);
    table.update(found.pipelines);
  }, LOOK_MS);
}

/** Sums a value over the queries of a pipeline; null if none of them has it. */
function total(pipeline, of) {
  const found = pipeline.queries.map(({ last }) => of(last)).filter((each) => each !== null);
  return found.length ? found.reduce((sum, each) => sum + each, 0) : null;
}

function pipelineTable() {
  return new Table({
    label: "Pipelines",
    key: (row) => row.name,
    sort: [0, 1],
    empty: () =>
      nothing(
        "No pipelines",
        "A Spark pipeline that uses this broker appears here, until ten minutes after its last report.",
        command("strandlog pipeline run pipeline.toml"),
      ),
    columns: [
      linkColumn("Pipeline", (row) => row.name, pipelineAddress),
      { title: "State", value: (row) => row.state, show: (row) => badge(row.state) },
      { title: "Queries", kind: "number small-hidden", value: (row) => row.queries.length },
      {
        title: "Rows",
        kind: "number",
        start: "down",
        value: (row) => total(row, (each) => each.rows_per_second),
        show: (row) => rate(total(row, (each) => each.rows_per_second), "rows"),
      },
      {
        title: "Slowest batch",
        kind: "number small-hidden",
        start: "down",
        value: (row) => Math.max(0, ...row.queries.map(({ last }) => last.batch_ms)),
        show: (row) => seconds(Math.max(0, ...row.queries.map(({ last }) => last.batch_ms)) / 1000),
      },
      {
        title: "Lag, records",
        kind: "number",
        start: "down",
        value: (row) => total(row, (each) => each.lag),
        show: (row) => count(total(row, (each) => each.lag)),
      },
      {
        title: "Last report",
        kind: "soft small-hidden",
        start: "down",
        value: (row) => row.last_seen_ms,
        show: (row) => ago(row.last_seen_ms, Date.now()),
      },
      {
        title: "Spark",
        kind: "small-hidden",
        isFixed: true,
        value: (row) => row.ui_url ?? "",
        show: (row) => sparkLink(row.ui_url),
      },
    ],
  });
}

/** Returns a link to the Spark UI, if the address is an http or https URL. */
export function sparkLink(address) {
  if (!/^https?:\/\//.test(address ?? "")) return "–";
  return h("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, "Spark UI");
}
