// One topic: partitions, settings and their origin, consumer groups and throughput.

import { get, patch, path, post, remove } from "../api.js";
import { Chart } from "../chart.js";
import { groupColumns, settingName, settingValue, topicAddress } from "../table_columns.js";
import { breakable, h, toast } from "../dom.js";
import { byteRate, bytes, count, counted, duration, rate, retention, short } from "../format.js";
import { forget, merged, WINDOW_MS } from "../live.js";
import {
  badge,
  dialog,
  field,
  Figures,
  forbidden,
  nothing,
  panel,
  permit,
  Table,
} from "../components.js";
import { session } from "../session.js";

const LOOK_MS = 2000;
const OFFSETS_HELP =
  "Transaction markers have offsets too. Compaction removes records, but no offsets.";

// The data points of each topic, kept for the next visit to its page.
const seen = new Map();

export function topic(page) {
  const name = page.route.parts[1];
  const here = topicAddress(name);
  const actions = [
    ["READ", h("a", { class: "button main", href: `${here}/records` }, "Records")],
    ["WRITE", h("a", { class: "button", href: `${here}/produce` }, "Produce")],
    [
      "ALTER",
      h("button", { type: "button", onclick: () => grow(name, last, again) }, "Add partitions"),
    ],
    [
      "DELETE",
      h(
        "button",
        { class: "danger", type: "button", onclick: () => deleteTopic(page, name, last) },
        "Delete",
      ),
    ],
  ];
  page.begin(name, {
    crumbs: [["Topics", "#/topics"]],
    actions: actions.map(([, element]) => element),
  });
  const figures = new Figures({
    offsets: "Offsets",
    size: "Size",
    in: "In",
    partitions: "Partitions",
    kept: "Retention",
  });
  const chart = new Chart(page, {
    label: `Records per second produced to ${name}`,
    format: short,
    windowMs: WINDOW_MS,
    isSmall: true,
    empty: "Waiting for the first data point",
  });
  const partitions = partitionTable(here);
  const settings = settingTable(name, () => again(), (operation) => may(operation));
  const onlyOwn = h("input", { type: "checkbox", onchange: () => drawSettings() });
  const readers = readerTable();
  const lake = new Figures({ state: "State", lag: "Lag", rows: "Rows", format: "Format" });
  const lakePanel = panel("Lake table", lake.element);
  const settingsPanel = panel("Settings", settings.element);
  settingsPanel.head.append(
    h("label", { class: "inline" }, onlyOwn, "Only changed from the default"),
  );
  let last = null;
  const may = (operation) => last.operations.includes(operation);

  const again = page.watch((loading) => get(path("topics", name), loading), (found) => {
    if (!figures.element.isConnected) {
      page.show(
        figures.element,
        h(
          "div",
          { class: "columns" },
          panel("Records in per second", chart.element),
          panel("Consumer groups", readers.element),
        ),
        lakePanel,
        panel("Partitions", partitions.element),
        settingsPanel,
      );
    }
    last = found;
    for (const [operation, element] of actions) {
      permit(element, may(operation), session.lacks(operation, `topic '${name}'`));
    }
    showFigures(figures, found);
    lakePanel.hidden = found.table === null;
    if (found.table) showLake(lake, found.table);
    partitions.update(found.partitions);
    drawSettings();
    readers.update(found.readers);
    note(name, found.summary.produced_records_per_second);
    draw();
  }, LOOK_MS);
  get(path("topics", name, "history"), page).then(({ points }) => {
    const history = points.map((each) => ({
      at: each.timestamp_ms,
      value: each.produced_records_per_second,
    }));
    seen.set(name, merged(seen.get(name) ?? [], history));
    draw();
  }).catch(() => {}); // the page shows why the broker does not respond

  function draw() {
    const points = seen.get(name) ?? [];
    const x = points.map((point) => point.at);
    chart.update([{ name: "records", x, y: points.map((point) => point.value) }]);
  }

  function drawSettings() {
    settings.update(
      last.config.filter((row) =>
        !onlyOwn.checked || row.value !== row.default || row.origin !== "default"
      ),
    );
  }
}

function note(name, value) {
  const points = seen.get(name) ?? [];
  const now = Date.now();
  if (value !== null) points.push({ at: now, value });
  forget(points, now);
  seen.set(name, points);
}

function showFigures(figures, { summary }) {
  figures.set(
    "offsets",
    count(summary.offsets),
    h("span", { title: OFFSETS_HELP }, "records and transaction markers"),
  );
  figures.set("size", bytes(summary.size_bytes), counted(summary.segments, "segment"));
  figures.set(
    "in",
    rate(summary.produced_records_per_second),
    byteRate(summary.produced_bytes_per_second),
  );
  figures.set("partitions", count(summary.partitions), summary.is_internal ? "internal" : "");
  figures.set(
    "kept",
    retention(summary),
    `cleanup: ${summary.cleanup_policy || "none"}`,
  );
}

function showLake(figures, table) {
  const { error, checked_ms_ago: age } = table;
  const state = error ? "failed" : age === null ? "not synced yet" : "ok";
  const checked = age === null ? "" : `checked ${duration(age)} ago`;
  figures.set(
    "state",
    badge(state, { failed: "bad", ok: "good" }[state] ?? ""),
    error || checked,
  );
  const held = table.open_transaction_lag;
  figures.set(
    "lag",
    count(table.lag),
    held ? `${count(held)} wait for an open transaction` : "offsets that are not in the table",
  );
  figures.set(
    "rows",
    table.rows === null ? "–" : count(table.rows),
    table.version === null ? "" : `version ${table.version}`,
  );
  figures.set("format", table.format, breakable(table.folder));
}

function readerTable() {
  return new Table({
    label: "Groups that read this topic",
    key: (row) => row.group,
    empty: () =>
      nothing("No consumer groups yet", "A group shows up here as soon as it commits an offset."),
    columns: groupColumns("Lag, records"),
  });
}

function partitionTable(here) {
  return new Table({
    label: "Partitions",
    key: (row) => row.partition,
    sort: [0, 1],
    columns: [
      {
        title: "Partition",
        value: (row) => row.partition,
        show: (row) =>
          h("a", {
            href: `${here}/records?partition=${row.partition}`,
            "aria-label": `Records of partition ${row.partition}`,
          }, String(row.partition)),
      },
      {
        title: "First offset",
        kind: "number small-hidden",
        value: (row) => row.start_offset,
        show: (row) => count(row.start_offset),
      },
      {
        title: "End offset",
        kind: "number",
        value: (row) => row.end_offset,
        show: (row) => count(row.end_offset),
      },
      {
        title: "Last stable offset",
        kind: "number small-hidden",
        value: (row) => row.last_stable_offset,
        show: (row) => count(row.last_stable_offset),
      },
      {
        title: "Offsets",
        kind: "number",
        start: "down",
        value: (row) => row.end_offset - row.start_offset,
        show: (row) => count(row.end_offset - row.start_offset),
      },
      {
        title: "Size",
        kind: "number",
        start: "down",
        value: (row) => row.size_bytes,
        show: (row) => bytes(row.size_bytes),
      },
      {
        title: "Segments",
        kind: "number small-hidden",
        start: "down",
        value: (row) => row.segments,
      },
      {
        title: "State",
        value: (row) => row.failure,
        show: (
          row,
        ) => (row.failure ? h("span", {}, badge("failed"), " ", row.failure) : badge("ok", "good")),
      },
    ],
  });
}

function settingTable(topicName, changed, may) {
  return new Table({
    label: "Settings",
    key: (row) => row.name,
    empty: () =>
      may("DESCRIBE_CONFIGS")
        ? nothing("All at the default", "Nothing is set for this topic or by the broker.")
        : forbidden(session.lacks("DESCRIBE_CONFIGS", `topic '${topicName}'`)),
    columns: [
      {
        title: "Setting",
        kind: "name",
        value: (row) => [row.name, row.origin],
        order: (row) => row.name,
        show: settingName,
      },
      {
        title: "Value",
        kind: "wide",
        value: (row) => row.value,
        show: (row) => settingValue(row.name, row.value),
      },
      {
        title: "Source",
        kind: "small-hidden",
        value: (row) => row.origin,
        show: (row) =>
          badge(
            row.origin,
            row.origin === "topic" ? "good" : row.origin === "broker" ? "warn" : "",
          ),
      },
      {
        title: "Default",
        kind: "wide soft small-hidden",
        value: (row) => row.default,
        show: (row) => settingValue(row.name, row.default),
      },
      {
        title: "Description",
        kind: "soft wide small-hidden",
        isFixed: true,
        value: (row) => row.help,
      },
      {
        title: "Change",
        isFixed: true,
        value: (row) => [row.value, row.origin, may("ALTER_CONFIGS")],
        show: (row) =>
          permit(
            h("button", {
              type: "button",
              class: "light",
              "aria-label": `Change ${row.name}`,
              onclick: () => change(topicName, row, changed),
            }, "Change"),
            may("ALTER_CONFIGS"),
            session.lacks("ALTER_CONFIGS", `topic '${topicName}'`),
          ),
      },
    ],
  });
}

function change(topicName, row, changed) {
  const input = h("input", { name: "value", value: row.value, spellcheck: "false" });
  const back = h("input", {
    type: "checkbox",
    name: "back",
    onchange: () => (input.disabled = back.checked),
  });
  dialog({
    title: row.name,
    action: "Save",
    content: [
      h("p", { class: "soft" }, row.help),
      field("Value", input, `${row.kind}${row.allowed ? `: ${row.allowed}` : ""}`),
      row.origin === "topic"
        ? h("label", { class: "inline" }, back, `Reset to the default: ${row.default || "nothing"}`)
        : null,
    ],
    submit: async () => {
      await patch(path("topics", topicName), {
        config: { [row.name]: back.checked ? null : input.value },
      });
      toast(`${row.name} changed`);
      changed();
    },
  });
}

function grow(name, last, changed) {
  if (!last) return;
  const now = last.summary.partitions;
  const input = h("input", {
    name: "partitions",
    type: "number",
    min: String(now + 1),
    value: String(now + 1),
  });
  dialog({
    title: `Add partitions to ${name}`,
    action: "Add",
    content: [
      field(
        "New number of partitions",
        input,
        `It has ${now} now. Partitions cannot be removed again, and keys may map to different partitions.`,
      ),
    ],
    submit: async () => {
      await post(path("topics", name, "partitions"), { partitions: Number(input.value) });
      toast(`${name} has ${counted(Number(input.value), "partition")}`);
      changed();
    },
  });
}

function deleteTopic(page, name, last) {
  const input = h("input", { name: "confirm", autocomplete: "off", spellcheck: "false" });
  const size = last
    ? ` Up to ${counted(last.summary.offsets, "record")}, ${bytes(last.summary.size_bytes)}.`
    : "";
  dialog({
    title: `Delete ${name}?`,
    action: "Delete topic",
    isDanger: true,
    content: [
      h("p", {}, `This permanently deletes all its records.${size}`),
      field(`Type ${name} to confirm`, input),
    ],
    submit: async () => {
      if (input.value !== name) throw new Error(`The name does not match: type ${name}.`);
      await page.deleting(() => remove(path("topics", name)));
      toast(`${name} deleted`);
      location.hash = "#/topics";
    },
  });
}
