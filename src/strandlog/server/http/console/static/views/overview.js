// The broker at a glance: what goes through it, who is behind, how full the disk is, is it well.

import { get, path } from "../api.js";
import { Chart } from "../chart.js";
import { groupColumns, linkColumn, topicAddress } from "../columns.js";
import { h } from "../dom.js";
import { byteRate, bytes, count, counted, duration, rate } from "../format.js";
import { live, WINDOW_MS } from "../live.js";
import { badge, command, Figures, meter, nothing, panel, Table } from "../parts.js";

const LOOK_MS = 3000;
const MOST_TOPICS = 8;
const MOST_GROUPS = 8;

export function overview(page) {
  page.begin("Overview");
  const trouble = h("div", { class: "banner bad", role: "alert", hidden: true });
  const figures = new Figures({ in: "In", out: "Out", requests: "Requests", lag: "Consumer lag", disk: "On disk", size: "Topics" });
  const charts = throughput(page);
  const busiest = topicTable();
  const behind = groupTable();
  const first = h("div", { class: "panel", hidden: true });
  const topicsPanel = panel("Busiest topics", busiest.element);
  topicsPanel.head.append(h("a", { href: "#/topics" }, "All topics"));
  const groupsPanel = panel("Highest lag", behind.element);
  groupsPanel.head.append(h("a", { href: "#/groups" }, "All groups"));
  const all = [trouble, figures.element, first, charts.element, h("div", { class: "columns" }, topicsPanel, groupsPanel)];

  const load = () => Promise.all([get(path("cluster"), page), get(path("topics"), page)]);
  page.watch(load, ([cluster, { topics }]) => {
    if (!figures.element.isConnected) page.show(all);
    tellCluster(page, cluster, figures, trouble);
    const internal = cluster.topics - topics.length;
    figures.set("size", count(topics.length), [counted(cluster.partitions, "partition"), internal > 0 ? `; ${counted(internal, "internal topic")} besides` : null]);
    const isNew = topics.length === 0;
    if (isNew && first.hidden) first.replaceChildren(welcome(cluster));
    first.hidden = !isNew;
    topicsPanel.hidden = isNew;
    topics.sort((one, other) => (other.produced_bytes_per_second ?? 0) - (one.produced_bytes_per_second ?? 0) || other.size_bytes - one.size_bytes);
    topicsPanel.note.textContent = topics.length > MOST_TOPICS ? `${MOST_TOPICS} of ${count(topics.length)}` : "";
    busiest.update(topics.slice(0, MOST_TOPICS));
    charts.draw();
    tellRates();
    tellLag();
  }, LOOK_MS);

  function tellRates() {
    const told = live.lastRates;
    if (told?.rates) {
      figures.set("in", byteRate(told.rates.produced_bytes_per_second), rate(told.rates.produced_records_per_second));
      figures.set("out", byteRate(told.rates.fetched_bytes_per_second), rate(told.rates.fetched_records_per_second));
      figures.set("requests", rate(told.rates.requests_per_second, "req"), counted(told.connections_open, "connection"));
    }
  }

  function tellLag() {
    if (live.lastLag) {
      const { groups } = live.lastLag;
      const sum = groups.reduce((total, each) => total + each.lag, 0);
      figures.set("lag", count(sum), `records, ${counted(groups.length, "group")}`);
      behind.update(groups.slice(0, MOST_GROUPS));
      groupsPanel.note.textContent = groups.length > MOST_GROUPS ? `${MOST_GROUPS} of ${count(groups.length)}` : "";
    }
  }

  page.on(live, "rates", () => {
    tellRates();
    charts.draw();
  });
  page.on(live, "lag", tellLag);
}

function tellCluster(page, cluster, figures, trouble) {
  const used = 1 - cluster.disk_free_bytes / Math.max(1, cluster.disk_total_bytes);
  const room = `${bytes(cluster.disk_free_bytes)} free of ${bytes(cluster.disk_total_bytes)}`;
  figures.set("disk", bytes(cluster.size_bytes), [room, meter(used, `The disk is ${Math.round(used * 100)} % full`)]);
  trouble.hidden = cluster.is_ready;
  trouble.replaceChildren("Not ready:", h("ul", {}, cluster.reasons.map((reason) => h("li", {}, reason))));
  page.sub.replaceChildren(
    badge(cluster.is_ready ? "Ready" : "Not ready", cluster.is_ready ? "good" : "bad"),
    ` strandlog ${cluster.version} · Kafka at `, h("code", {}, cluster.kafka_address),
    ` · up ${duration(cluster.now_ms - cluster.started_ms)}`,
  );
}

function throughput(page) {
  const traffic = new Chart(page, { label: "Throughput", unit: "B/s", windowMs: WINDOW_MS, empty: "The first figures come in a second" });
  const requests = new Chart(page, { label: "Records and requests", unit: "/s", windowMs: WINDOW_MS, isSmall: true, empty: "The first figures come in a second" });
  const lag = new Chart(page, { label: "Lag by group", unit: "", windowMs: WINDOW_MS, isSmall: true, empty: "No consumer groups yet" });
  const element = h("div", { class: "stack" }, panel("Throughput", traffic.element), h("div", { class: "columns" }, panel("Records and requests", requests.element), panel("Lag by group", lag.element)));

  function draw() {
    const x = live.rates.map((point) => point.at);
    const line = (name, key) => ({ name, x, y: live.rates.map((point) => point[key]) });
    traffic.update([line("in", "bytesIn"), line("out", "bytesOut")]);
    requests.update([line("records in", "recordsIn"), line("requests", "requests")]);
    lag.update(live.lagLines());
  }
  return { element, draw };
}

function topicTable() {
  return new Table({
    label: "Busiest topics",
    key: (row) => row.name,
    columns: [
      linkColumn("Topic", (row) => row.name, topicAddress),
      { title: "In", kind: "number", start: "down", value: (row) => row.produced_bytes_per_second, show: (row) => byteRate(row.produced_bytes_per_second) },
      { title: "Records", kind: "number", start: "down", value: (row) => row.offsets, show: (row) => count(row.offsets) },
      { title: "Size", kind: "number", start: "down", value: (row) => row.size_bytes, show: (row) => bytes(row.size_bytes) },
    ],
  });
}

function groupTable() {
  return new Table({
    label: "Groups with the highest lag",
    key: (row) => row.group,
    empty: () => nothing("No groups", "A consumer group shows up here as soon as it commits."),
    columns: groupColumns("Lag"),
  });
}

function welcome(cluster) {
  return nothing(
    "Nothing in here yet",
    "Create a topic here, or write to one with any Kafka client: it is created on the way.",
    h("a", { class: "button main", href: "#/topics?new=1" }, "Create topic"),
    command(`echo hello | strandlog produce greetings -b ${cluster.kafka_address}`),
  );
}

