// The broker: request latencies, event loop delay, problems, counters and settings.

import { get, path } from "../api.js";
import { settingName, settingValue } from "../table_columns.js";
import { h } from "../dom.js";
import { bytes, count, counted, duration, seconds, someOf, time } from "../format.js";
import { badge, field, Figures, forbidden, nothing, panel, Table } from "../components.js";
import { session } from "../session.js";

const LOOK_MS = 3000;

export function broker(page) {
  page.begin("Broker");
  const figures = new Figures({
    address: "Kafka",
    up: "Uptime",
    delay: "Event loop delay",
    fsync: "Fsync",
    connections: "Connections",
    problems: "Problems",
  });
  const problems = panel("Problems");
  const problemList = h("ul");
  problems.append(h("div", { class: "body" }, problemList));
  const requests = latencyTable("Requests");
  const httpRequests = latencyTable("HTTP requests");
  const counters = new Table({
    label: "Counters",
    key: (row) => row[0],
    columns: [{ title: "Counter", kind: "name", value: (row) => row[0] }, {
      title: "Value",
      kind: "number",
      value: (row) => row[1],
      show: (row) => (row[0].endsWith("_bytes") ? bytes(row[1]) : count(row[1])),
    }],
  });
  const settings = settingTable();
  const search = h("input", {
    type: "search",
    placeholder: "Filter by name or description",
    oninput: () => drawSettings(),
  });
  const onlyGiven = h("input", { type: "checkbox", onchange: () => drawSettings() });
  const settingsPanel = panel(
    "Settings",
    h(
      "div",
      { class: "body fields" },
      h("div", { class: "grow" }, field("Filter", search)),
      h("label", { class: "inline" }, onlyGiven, "Only changed from the default"),
    ),
    settings.element,
  );
  const maySeeSettings = session.may("DESCRIBE_CONFIGS");
  const reason = session.lacks("DESCRIBE_CONFIGS", "the cluster");
  let rows = [];

  // The settings are loaded once.
  const load = () =>
    Promise.all([
      get(path("cluster"), page),
      get(path("broker"), page),
      rows.length || !maySeeSettings ? null : get(path("broker", "settings"), page),
    ]);
  page.watch(load, ([cluster, status, given]) => {
    if (given) {
      rows = given.settings;
      drawSettings();
    }
    if (!figures.element.isConnected) {
      page.show(
        figures.element,
        problems,
        panel("Kafka requests", requests.element),
        h(
          "div",
          { class: "columns" },
          panel("HTTP requests", httpRequests.element),
          panel("Counters", counters.element),
        ),
        maySeeSettings ? settingsPanel : panel("Settings", forbidden(reason)),
      );
    }
    showFigures(figures, cluster, status);
    page.sub.replaceChildren(
      "Data in ",
      h("code", {}, cluster.data),
      " · cluster ",
      h("code", {}, cluster.cluster_id),
      ` · node ${cluster.node_id} · strandlog ${cluster.version}`,
    );
    problems.hidden = status.problems.length === 0;
    problemList.replaceChildren(...status.problems.map((each) => h("li", {}, each)));
    requests.update(status.requests);
    httpRequests.update(status.http_requests);
    counters.update(Object.entries(status.counters));
  }, LOOK_MS);

  function drawSettings() {
    const part = search.value.trim().toLowerCase();
    const shown = rows.filter((row) =>
      (!onlyGiven.checked || row.origin !== "default") &&
      `${row.name} ${row.help}`.toLowerCase().includes(part)
    );
    settings.update(shown);
    settingsPanel.note.textContent = someOf(shown.length, rows.length, "setting");
  }
}

function showFigures(figures, cluster, { counters, latencies, problems }) {
  figures.set(
    "address",
    h("span", { class: "address" }, cluster.kafka_address),
    cluster.is_ready ? badge("Ready", "good") : badge("Not ready", "bad"),
  );
  figures.set(
    "up",
    duration(cluster.now_ms - cluster.started_ms),
    `since ${time(cluster.started_ms).slice(0, 19)}`,
  );
  figures.set(
    "problems",
    count(problems.length),
    problems.length ? "see below" : "no damage found",
  );
  figures.set(
    "connections",
    count(counters.connections_open),
    `${counted(counters.requests_in_flight, "request")} in flight`,
  );
  showLatency(figures, "delay", latencies.event_loop_delay_seconds);
  showLatency(figures, "fsync", latencies.fsync_seconds);
}

function showLatency(figures, name, latency) {
  if (!latency) return;
  figures.set(name, seconds(latency.max_seconds), `max; p99 ${seconds(latency.p99_seconds)}`);
}

function latencyTable(label) {
  const time = (title, of, kind = "number") => ({
    title,
    kind,
    start: "down",
    value: (row) => row.latency[of],
    show: (row) => seconds(row.latency[of]),
  });
  return new Table({
    label,
    key: (row) => row.api,
    sort: [1, -1],
    empty: () => nothing("None yet"),
    columns: [
      { title: "API", kind: "name", value: (row) => row.api },
      {
        title: "Count",
        kind: "number",
        start: "down",
        value: (row) => row.latency.count,
        show: (row) => count(row.latency.count),
      },
      time("Mean", "mean_seconds", "number small-hidden"),
      time("p50", "p50_seconds", "number small-hidden"),
      time("p99", "p99_seconds"),
      time("Max", "max_seconds", "number small-hidden"),
    ],
  });
}

function settingTable() {
  return new Table({
    label: "Settings",
    key: (row) => row.name,
    empty: () => nothing("No matching settings"),
    columns: [
      { title: "Setting", kind: "name", value: (row) => row.name, show: settingName },
      {
        title: "Value",
        kind: "wide",
        value: (row) => row.value,
        show: (row) => settingValue(row.name, row.value),
      },
      {
        title: "Source",
        kind: "wide small-hidden",
        value: (row) => row.origin,
        show: (
          row,
        ) => [
          badge(row.origin, row.origin === "default" ? "" : "good"),
          row.where ? h("div", { class: "hint" }, row.where) : null,
        ],
      },
      {
        title: "Default",
        kind: "soft wide small-hidden",
        value: (row) => row.default,
        show: (row) => settingValue(row.name, row.default),
      },
      {
        title: "Description",
        kind: "soft wide small-hidden",
        isFixed: true,
        value: (row) => row.help,
      },
    ],
  });
}
