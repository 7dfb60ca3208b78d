// Overview: throughput, lag, disk, readiness and problems of the broker.

import { get, path } from "../api.js";
import { Chart } from "../chart.js";
import { groupColumns, linkColumn, topicAddress } from "../table_columns.js";
import { h } from "../dom.js";
import { byteRate, bytes, compact, count, counted, duration, rate, short } from "../format.js";
import { live, WINDOW_MS } from "../live.js";
import { badge, command, Figures, meter, nothing, panel, permit, Table } from "../components.js";
import { session } from "../session.js";

const LOOK_MS = 3000;
const MAX_TOPICS = 8;
const MAX_GROUPS = 8;
const MAX_PROBLEMS = 3;

export function overview(page) {
  page.begin("Overview");
  const notReady = h("div", { class: "banner bad", role: "alert", hidden: true });
  const problems = h("div", { class: "banner", role: "status", hidden: true });
  const figures = new Figures({
    in: "In",
    out: "Out",
    requests: "Requests",
    lag: "Consumer lag",
    disk: "On disk",
    size: "Topics",
  });
  const charts = throughput(page);
  const busiest = topicTable();
  const behind = groupTable();
  const first = h("div", { class: "panel", hidden: true });
  const topicsPanel = panel("Busiest topics", busiest.element);
  topicsPanel.head.append(h("a", { href: "#/topics" }, "All topics"));
  const groupsPanel = panel("Highest lag", behind.element);
  groupsPanel.head.append(h("a", { href: "#/groups" }, "All groups"));
  const all = [
    notReady,
    problems,
    figures.element,
    first,
    charts.element,
    h("div", { class: "columns" }, topicsPanel, groupsPanel),
  ];

  const load = () => Promise.all([get(path("cluster"), page), get(path("topics"), page)]);
  page.watch(load, ([cluster, { topics }]) => {
    if (!figures.element.isConnected) page.show(all);
    showCluster(page, cluster, figures);
    showNotReady(notReady, cluster);
    showProblems(problems, cluster);
    const internal = cluster.topics - topics.length;
    figures.set("size", count(topics.length), [
      counted(cluster.partitions, "partition"),
      internal > 0 ? `, plus ${counted(internal, "internal topic")}` : null,
    ]);
    const isNew = topics.length === 0;
    if (isNew && first.hidden) first.replaceChildren(welcome(cluster));
    first.hidden = !isNew;
    topicsPanel.hidden = isNew;
    topics.sort((one, other) =>
      (other.produced_bytes_per_second ?? 0) - (one.produced_bytes_per_second ?? 0) ||
      other.size_bytes - one.size_bytes
    );
    topicsPanel.note.textContent = topics.length > MAX_TOPICS
      ? `${MAX_TOPICS} of ${count(topics.length)}`
      : "";
    busiest.update(topics.slice(0, MAX_TOPICS));
    charts.draw();
    showRates();
    showLag();
  }, LOOK_MS);

  function showRates() {
    const event = live.lastRates;
    if (event?.rates) {
      figures.set(
        "in",
        byteRate(event.rates.produced_bytes_per_second),
        rate(event.rates.produced_records_per_second),
      );
      figures.set(
        "out",
        byteRate(event.rates.fetched_bytes_per_second),
        rate(event.rates.fetched_records_per_second),
      );
      figures.set(
        "requests",
        rate(event.rates.requests_per_second, ""),
        counted(event.connections_open, "connection"),
      );
    }
  }

  function showLag() {
    if (live.lastLag) {
      const { groups } = live.lastLag;
      const sum = groups.reduce((total, each) => total + each.lag, 0);
      figures.set("lag", count(sum), `records, ${counted(groups.length, "group")}`);
      behind.update(groups.slice(0, MAX_GROUPS));
      groupsPanel.note.textContent = groups.length > MAX_GROUPS
        ? `${MAX_GROUPS} of ${count(groups.length)}`
        : "";
    }
  }

  page.on(live, "rates", () => {
    showRates();
    charts.draw();
  });
  page.on(live, "lag", showLag);
}

function showCluster(page, cluster, figures) {
  const used = 1 - cluster.disk_free_bytes / Math.max(1, cluster.disk_total_bytes);
  const room = `${bytes(cluster.disk_free_bytes)} free of ${bytes(cluster.disk_total_bytes)}`;
  figures.set("disk", bytes(cluster.size_bytes), [
    room,
    meter(used, `The disk is ${Math.round(used * 100)} % full`),
  ]);
  page.sub.replaceChildren(
    badge(cluster.is_ready ? "Ready" : "Not ready", cluster.is_ready ? "good" : "bad"),
    ` strandlog ${cluster.version} · Kafka at `,
    h("code", {}, cluster.kafka_address),
    ` · up ${duration(cluster.now_ms - cluster.started_ms)}`,
  );
}

function showNotReady(banner, { is_ready: isReady, reasons }) {
  banner.hidden = isReady;
  banner.replaceChildren("Not ready:", h("ul", {}, reasons.map((reason) => h("li", {}, reason))));
}

function showProblems(banner, { problems }) {
  banner.hidden = problems.length === 0;
  const more = problems.length - MAX_PROBLEMS;
  banner.replaceChildren(
    h("a", { href: "#/broker" }, counted(problems.length, "problem")),
    h(
      "ul",
      {},
      problems.slice(0, MAX_PROBLEMS).map((problem) => h("li", {}, problem)),
      more > 0 ? h("li", {}, `and ${count(more)} more`) : null,
    ),
  );
}

function throughput(page) {
  const traffic = new Chart(page, {
    label: "Throughput",
    format: byteRate,
    windowMs: WINDOW_MS,
    empty: "Waiting for the first data point",
  });
  const requests = new Chart(page, {
    label: "Records and requests per second",
    format: short,
    windowMs: WINDOW_MS,
    isSmall: true,
    empty: "Waiting for the first data point",
  });
  const lag = new Chart(page, {
    label: "Lag by group",
    format: compact,
    isWhole: true,
    windowMs: WINDOW_MS,
    isSmall: true,
    empty: "No consumer groups yet",
  });
  const element = h(
    "div",
    { class: "stack" },
    panel("Throughput", traffic.element),
    h(
      "div",
      { class: "columns" },
      panel("Records and requests per second", requests.element),
      panel("Lag by group", lag.element),
    ),
  );

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
      {
        title: "In",
        kind: "number",
        start: "down",
        value: (row) => row.produced_bytes_per_second,
        show: (row) => byteRate(row.produced_bytes_per_second),
      },
      {
        title: "Offsets",
        kind: "number small-hidden",
        start: "down",
        value: (row) => row.offsets,
        show: (row) => count(row.offsets),
      },
      {
        title: "Size",
        kind: "number",
        start: "down",
        value: (row) => row.size_bytes,
        show: (row) => bytes(row.size_bytes),
      },
    ],
  });
}

function groupTable() {
  return new Table({
    label: "Groups with the highest lag",
    key: (row) => row.group,
    empty: () =>
      nothing("No groups", "A consumer group shows up here as soon as it joins or commits."),
    columns: groupColumns("Lag"),
  });
}

function welcome(cluster) {
  if (session.wantsLogin) return nothing("Sign in to see topics");
  return nothing(
    "No topics yet",
    "Create a topic here, or produce to a new one with any Kafka client.",
    permit(
      h("a", { class: "button main", href: "#/topics?new=1" }, "Create topic"),
      session.status.can_create_topics,
      session.lacks("CREATE", "any topic"),
    ),
    command(`echo hello | strandlog produce greetings --create -b ${cluster.kafka_address}`),
  );
}
