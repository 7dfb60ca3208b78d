// All consumer groups and their lag.

import { get, path } from "../api.js";
import { Chart } from "../chart.js";
import { groupColumns } from "../table_columns.js";
import { h } from "../dom.js";
import { compact, counted, someOf } from "../format.js";
import { live, WINDOW_MS } from "../live.js";
import { field, nothing, panel, Table } from "../components.js";

const LOOK_MS = 3000;

export function groups(page) {
  page.begin("Groups");
  const search = h("input", {
    type: "search",
    placeholder: "Filter by group or topic",
    oninput: () => draw(),
  });
  const internal = h("input", { type: "checkbox", onchange: () => again() });
  const chart = new Chart(page, {
    label: "Lag by group",
    format: compact,
    isWhole: true,
    windowMs: WINDOW_MS,
    isSmall: true,
    empty: "No lag yet",
  });
  const table = groupTable();
  const listed = panel("Groups", table.element);
  const tools = h(
    "div",
    { class: "fields" },
    h("div", { class: "grow" }, field("Filter", search)),
    h("label", { class: "inline" }, internal, "Show groups of Spark sinks"),
  );
  let found = [];

  const again = page.watch(
    () => get(path("groups"), { ...page, query: { internal: internal.checked } }),
    (answer) => {
      if (!listed.isConnected) page.show(panel("Lag by group", chart.element), tools, listed);
      found = answer.groups;
      draw();
      chart.update(live.lagLines());
    },
    LOOK_MS,
  );
  page.on(live, "lag", () => chart.update(live.lagLines()));

  function draw() {
    const part = search.value.trim().toLowerCase();
    const rows = found.filter((row) =>
      [row.group, ...row.topics].some((text) => text.toLowerCase().includes(part))
    );
    table.empty = found.length
      ? () =>
        nothing(
          "No such group",
          `None of ${counted(found.length, "group")} has “${search.value}” in its name or topics.`,
        )
      : () =>
        nothing(
          "No groups yet",
          "A consumer with a group.id shows up here as soon as it joins or commits.",
        );
    listed.note.textContent = someOf(rows.length, found.length, "group");
    table.update(rows);
  }
}

function groupTable() {
  const [group, state, members, lag] = groupColumns("Lag, records");
  return new Table({
    label: "Groups",
    key: (row) => row.group,
    sort: [4, -1],
    columns: [
      group,
      state,
      { ...members, kind: "number small-hidden" },
      { title: "Topics", kind: "wide small-hidden", value: (row) => row.topics.join(", ") || "–" },
      lag,
    ],
  });
}
