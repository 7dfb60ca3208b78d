// All topics: size, throughput and retention.

import { get, path, post } from "../api.js";
import { linkColumn, topicAddress } from "../table_columns.js";
import { h, toast } from "../dom.js";
import {
  byteRate,
  bytes,
  count,
  counted,
  isUnlimited,
  rate,
  retention,
  someOf,
} from "../format.js";
import { dialog, field, nothing, Pairs, panel, permit, select, Table } from "../components.js";
import { session } from "../session.js";

const LOOK_MS = 3000;
const STARS = "strandlog.stars";

export function topics(page) {
  const stars = new Set(JSON.parse(localStorage.getItem(STARS) ?? "[]"));
  const search = h("input", {
    type: "search",
    placeholder: "Filter by name",
    value: page.route.query.get("filter") ?? "",
    oninput: draw,
  });
  const internal = h("input", { type: "checkbox", onchange: () => again() });
  page.begin("Topics", { actions: [createButton()] });
  const table = topicTable(stars, star);
  const listed = panel("Topics", table.element);
  const tools = h(
    "div",
    { class: "fields" },
    h("div", { class: "grow" }, field("Filter", search)),
    h("label", { class: "inline" }, internal, "Show internal topics"),
  );
  let found = [];

  const again = page.watch(
    () => get(path("topics"), { ...page, query: { internal: internal.checked } }),
    (answer) => {
      if (!tools.isConnected) page.show(tools, listed);
      found = answer.topics;
      draw();
    },
    LOOK_MS,
  );

  function draw() {
    const part = search.value.trim().toLowerCase();
    const rows = found.filter((row) => row.name.toLowerCase().includes(part));
    table.empty = found.length
      ? () =>
        nothing(
          "No such topic",
          `None of ${counted(found.length, "topic")} has “${search.value}” in its name.`,
        )
      : () =>
        session.wantsLogin ? nothing("Sign in to see topics") : nothing(
          "No topics yet",
          session.status.can_create_topics
            ? "Create one here, or produce to a new one with any Kafka client."
            : "There are no topics that you have permission to see.",
          createButton(),
        );
    listed.note.textContent = someOf(rows.length, found.length, "topic");
    table.update(rows);
  }

  function star(name) {
    if (!stars.delete(name)) stars.add(name);
    localStorage.setItem(STARS, JSON.stringify([...stars]));
    draw();
  }

  if (page.route.query.has("new") && session.status.can_create_topics) {
    history.replaceState(null, "", "#/topics"); // a reload must not open the dialog again
    createTopic();
  }
}

function createButton() {
  return permit(
    h("button", { class: "main", type: "button", onclick: createTopic }, "Create topic"),
    session.status.can_create_topics,
    session.lacks("CREATE", "any topic"),
  );
}

function topicTable(stars, star) {
  return new Table({
    label: "Topics",
    key: (row) => row.name,
    sort: [0, 1],
    columns: [
      {
        title: "★",
        value: (row) => (stars.has(row.name) ? `0${row.name}` : `1${row.name}`),
        isFixed: false,
        show: (row) =>
          h("button", {
            type: "button",
            class: "quiet star",
            "aria-pressed": String(stars.has(row.name)),
            "aria-label": `Keep ${row.name} on top`,
            onclick: () => star(row.name),
          }, stars.has(row.name) ? "★" : "☆"),
      },
      linkColumn("Topic", (row) => row.name, topicAddress),
      {
        title: "Partitions",
        kind: "number small-hidden",
        start: "down",
        value: (row) => row.partitions,
        show: (row) => count(row.partitions),
      },
      {
        title: "Offsets",
        kind: "number",
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
      {
        title: "Records in",
        kind: "number small-hidden",
        start: "down",
        value: (row) => row.produced_records_per_second,
        show: (row) => rate(row.produced_records_per_second, ""),
      },
      {
        title: "Bytes in",
        kind: "number small-hidden",
        start: "down",
        value: (row) => row.produced_bytes_per_second,
        show: (row) => byteRate(row.produced_bytes_per_second),
      },
      { title: "Cleanup policy", kind: "soft small-hidden", value: (row) => row.cleanup_policy },
      {
        title: "Retention",
        kind: "soft small-hidden",
        value: retention,
        order: (row) => isUnlimited(row.retention_ms) ? Infinity : row.retention_ms,
      },
      {
        title: "Browse",
        kind: "small-hidden",
        isFixed: true,
        value: () => "",
        show: (row) =>
          h("a", {
            href: `${topicAddress(row.name)}/records`,
            "aria-label": `Records of ${row.name}`,
          }, "Records"),
      },
    ],
  });
}

const DAY_MS = 86_400_000;
const KEEP = [
  ["", "Broker default"],
  [String(DAY_MS / 24), "1 hour"],
  [String(DAY_MS), "1 day"],
  [String(7 * DAY_MS), "7 days"],
  [String(30 * DAY_MS), "30 days"],
  ["-1", "No limit"],
];
const CLEANING = [["", "Broker default"], ["delete", "delete: drop old records"], [
  "compact",
  "compact: keep the newest record of each key",
], ["compact,delete", "compact and delete"]];

function createTopic() {
  const name = h("input", {
    name: "topic",
    required: true,
    autocomplete: "off",
    spellcheck: "false",
  });
  const partitions = h("input", {
    name: "partitions",
    type: "number",
    min: "1",
    placeholder: "Broker default",
  });
  const keep = select("retention", KEEP, "");
  const cleaning = select("cleanup", CLEANING, "");
  const others = new Pairs({
    name: "Other settings",
    first: "Setting",
    second: "Value",
    add: "Add a setting",
  });
  dialog({
    title: "Create topic",
    action: "Create",
    content: [
      field("Name", name, "Letters, digits, dots, dashes and underscores."),
      h(
        "div",
        { class: "row" },
        field("Partitions", partitions),
        field("Retention", keep),
        field("Cleanup policy", cleaning),
      ),
      others.element,
    ],
    submit: async () => {
      const config = Object.fromEntries(others.values);
      if (keep.value) config["retention.ms"] = keep.value;
      if (cleaning.value) config["cleanup.policy"] = cleaning.value;
      const body = { name: name.value.trim(), config };
      if (partitions.value) body.partitions = Number(partitions.value);
      await post(path("topics"), body);
      toast(`Topic ${body.name} created`);
      location.hash = topicAddress(body.name);
    },
  });
}
