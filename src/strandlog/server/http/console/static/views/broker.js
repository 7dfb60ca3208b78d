// The broker itself: what it was asked and how long that took, stalls, problems, every setting.

import { get, path } from "../api.js";
import { h } from "../dom.js";
import { bytes, count, counted, duration, seconds, someOf } from "../format.js";
import { badge, field, Figures, nothing, panel, settingValue, Table } from "../parts.js";

const LOOK_MS = 3000;

export function broker(page) {
  page.begin("Broker");
  const figures = new Figures({ address: "Kafka", up: "Up for", stall: "Event loop delay", fsync: "Fsync", connections: "Connections", problems: "Problems" });
  const problems = panel("Problems");
  const problemList = h("ul");
  problems.append(h("div", { class: "body" }, problemList));
  const requests = timesTable("Requests");
  const calls = timesTable("HTTP calls");
  const counts = new Table({ label: "Figures", key: (row) => row[0], columns: [{ title: "Figure", kind: "name", value: (row) => row[0] }, { title: "Value", kind: "number", value: (row) => row[1], show: (row) => (row[0].endsWith("_bytes") ? bytes(row[1]) : count(row[1])) }] });
  const settings = settingTable();
  const search = h("input", { type: "search", placeholder: "Part of a name or of what it does", oninput: () => drawSettings() });
  const onlyGiven = h("input", { type: "checkbox", onchange: () => drawSettings() });
  const settingsPanel = panel("Settings", h("div", { class: "body fields" }, h("div", { class: "grow" }, field("Filter", search)), h("label", { class: "inline" }, onlyGiven, "Only changed from the default")), settings.element);
  let rows = [];

  // Settings do not change while the broker runs: they are asked for once.
  const load = () => Promise.all([get(path("cluster"), page), get(path("broker"), page), rows.length ? null : get(path("broker", "settings"), page)]);
  page.watch(load, ([cluster, facts, given]) => {
    if (given) {
      rows = given.settings;
      drawSettings();
    }
    if (!figures.element.isConnected) page.show(figures.element, problems, panel("Requests of Kafka clients", requests.element), h("div", { class: "columns" }, panel("HTTP calls", calls.element), panel("Figures", counts.element)), settingsPanel);
    tellFigures(figures, cluster, facts);
    page.sub.replaceChildren("Data in ", h("code", {}, cluster.data), " · cluster ", h("code", {}, cluster.cluster_id), ` · node ${cluster.node_id} · strandlog ${cluster.version}`);
    problems.hidden = facts.problems.length === 0;
    problemList.replaceChildren(...facts.problems.map((each) => h("li", {}, each)));
    requests.update(facts.requests);
    calls.update(facts.http_calls);
    counts.update(Object.entries(facts.figures));
  }, LOOK_MS);

  function drawSettings() {
    const part = search.value.trim().toLowerCase();
    const shown = rows.filter((row) => (!onlyGiven.checked || row.origin !== "default") && `${row.name} ${row.help}`.toLowerCase().includes(part));
    settings.update(shown);
    settingsPanel.note.textContent = someOf(shown.length, rows.length, "setting");
  }
}

function tellFigures(figures, cluster, { figures: told, times, problems }) {
  figures.set("address", h("span", { class: "address" }, cluster.kafka_address), cluster.is_ready ? badge("Ready", "good") : badge("Not ready", "bad"));
  figures.set("up", duration(cluster.now_ms - cluster.started_ms), new Date(cluster.started_ms).toLocaleString());
  figures.set("problems", count(problems.length), problems.length ? "see below" : "no damage found");
  figures.set("connections", count(told.connections_open), `${counted(told.requests_in_flight, "request")} in flight`);
  tellTimes(figures, "stall", times.loop_stall_seconds);
  tellTimes(figures, "fsync", times.sync_seconds);
}

function tellTimes(figures, name, times) {
  if (!times) return;
  figures.set(name, seconds(times.max_seconds), `max; p99 ${seconds(times.most_below_seconds)}`);
}

function timesTable(label) {
  const time = (title, of, kind = "number") => ({ title, kind, start: "down", value: (row) => row.times[of], show: (row) => seconds(row.times[of]) });
  return new Table({
    label,
    key: (row) => row.api,
    sort: [1, -1],
    empty: () => nothing("None yet"),
    columns: [
      { title: "Call", kind: "name", value: (row) => row.api },
      { title: "Count", kind: "number", start: "down", value: (row) => row.times.count, show: (row) => count(row.times.count) },
      time("Mean", "mean_seconds"),
      time("Median", "half_below_seconds", "number small-hidden"),
      time("p99", "most_below_seconds"),
      time("Max", "max_seconds"),
    ],
  });
}

function settingTable() {
  return new Table({
    label: "Settings",
    key: (row) => row.name,
    empty: () => nothing("No such setting"),
    columns: [
      { title: "Setting", kind: "name", value: (row) => row.name },
      { title: "Value", kind: "wide", value: (row) => row.value, show: (row) => settingValue(row.name, row.value) },
      { title: "Source", kind: "wide", value: (row) => row.origin, show: (row) => [badge(row.origin, row.origin === "default" ? "" : "good"), row.where ? h("div", { class: "hint" }, row.where) : null] },
      { title: "Default", kind: "soft wide small-hidden", value: (row) => row.default, show: (row) => settingValue(row.name, row.default) },
      { title: "What it does", kind: "soft wide small-hidden", isFixed: true, value: (row) => row.help },
    ],
  });
}
