// Resets a group's offsets: first a preview, then the reset.

import { path, post } from "../api.js";
import { h, toast } from "../dom.js";
import { count, counted, fieldTime } from "../format.js";
import { dialog, field, nothing, select, Table } from "../components.js";

const TARGETS = [["earliest", "Earliest"], ["latest", "Latest"], ["offset", "Offset"], [
  "time",
  "Time",
]];

export function reset(group, changed) {
  const topics = [...new Set(group.positions.map((each) => each.topic))];
  const topic = select(
    "topic",
    [...(topics.length ? [["", "All its topics"]] : []), ...topics.map((name) => [name, name])],
    "",
    { onchange: stale },
  );
  const other = h("input", {
    name: "other",
    spellcheck: "false",
    oninput: stale,
    placeholder: topics.length ? "Or another topic" : "A topic",
  });
  const place = select("to", TARGETS, "earliest", { onchange: choose });
  const offset = h("input", {
    name: "offset",
    type: "number",
    min: "0",
    value: "0",
    oninput: stale,
  });
  const time = h("input", {
    name: "time",
    type: "datetime-local",
    step: "1",
    value: fieldTime(Date.now()),
    oninput: stale,
  });
  const offsetField = field("Offset", offset);
  const timeField = field("Time", time);
  const table = changeTable();
  const result = h("div", { hidden: true }, table.element);
  const summary = h("p", { role: "status" });
  const preview = h("button", { type: "button", onclick: look }, "Preview");
  const members = group.members.length;
  const content = [
    members
      ? h(
        "p",
        { class: "banner" },
        `This group has ${
          counted(members, "member")
        }. Stop them first: they would continue from their own positions.`,
      )
      : null,
    h(
      "div",
      { class: "row" },
      topics.length ? field("Topic", topic) : null,
      field(topics.length ? "Other topic" : "Topic", other),
      field("Reset to", place),
      offsetField,
      timeField,
    ),
    h("div", { class: "actions" }, preview),
    summary,
    result,
  ];
  const shown = dialog({
    title: `Reset the offsets of ${group.group}`,
    action: "Reset offsets",
    content,
    submit: apply,
    isBroad: true,
  });
  choose();

  function choose() {
    offsetField.hidden = place.value !== "offset";
    timeField.hidden = place.value !== "time";
    stale();
  }

  function stale() {
    shown.done.disabled = true;
    summary.textContent = "Preview the reset first.";
    result.hidden = true;
  }

  function wanted(isDryRun) {
    const body = { to: place.value, is_dry_run: isDryRun };
    const name = other.value.trim() || topic.value;
    if (name) body.topic = name;
    if (place.value === "offset") body.offset = Number(offset.value);
    if (place.value === "time") body.time_ms = new Date(time.value).getTime();
    return body;
  }

  async function look() {
    shown.wrong.textContent = "";
    try {
      const found = await post(path("groups", group.group, "reset"), wanted(true));
      const moved = found.changes.filter((each) => each.before !== each.after);
      table.update(found.changes);
      result.hidden = found.changes.length === 0;
      const lag = found.changes.reduce((sum, each) => sum + each.lag_after, 0);
      summary.textContent = `${counted(moved.length, "partition")} of ${
        count(found.changes.length)
      } would move; lag after that: ${counted(lag, "record")}.`;
      shown.done.disabled = found.members > 0 || moved.length === 0;
    } catch (problem) {
      shown.wrong.textContent = problem.message;
    }
  }

  async function apply() {
    const found = await post(path("groups", group.group, "reset"), wanted(false));
    toast(`${group.group}: ${counted(found.changes.length, "offset")} set`);
    changed();
  }
}

function changeTable() {
  return new Table({
    label: "Preview of the reset",
    key: (row) => `${row.topic}/${row.partition}`,
    empty: () => nothing("No offsets to reset"),
    columns: [
      { title: "Topic", kind: "name", value: (row) => row.topic },
      { title: "Partition", kind: "number", value: (row) => row.partition },
      {
        title: "Now",
        kind: "number",
        value: (row) => row.before,
        show: (row) => count(row.before),
      },
      {
        title: "After",
        kind: "number",
        value: (row) => row.after,
        show: (row) => count(row.after),
      },
      {
        title: "Moves by",
        kind: "number",
        value: (row) => row.after - (row.before ?? row.after),
        show: (row) => signed(row.before === null ? null : row.after - row.before),
      },
      {
        title: "Lag after",
        kind: "number",
        value: (row) => row.lag_after,
        show: (row) => count(row.lag_after),
      },
    ],
  });
}

function signed(number) {
  if (number === null) return "new";
  return number > 0 ? `+${count(number)}` : count(number).replace("-", "−");
}
