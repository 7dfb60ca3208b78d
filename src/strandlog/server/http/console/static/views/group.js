// One group: members, committed offsets, lag and offset reset.

import { get, path, remove } from "../api.js";
import { Chart } from "../chart.js";
import { linkColumn, topicAddress } from "../table_columns.js";
import { h, toast } from "../dom.js";
import { ago, compact, count, counted } from "../format.js";
import { live, WINDOW_MS } from "../live.js";
import { badge, dialog, Figures, nothing, panel, permit, Table } from "../components.js";
import { session } from "../session.js";
import { reset } from "./group_reset.js";

const LOOK_MS = 2000;

export function group(page) {
  const name = page.route.parts[1];
  const actions = [
    [
      "READ",
      h(
        "button",
        { class: "main", type: "button", onclick: () => last && reset(last, again) },
        "Reset offsets",
      ),
    ],
    [
      "DELETE",
      h(
        "button",
        { class: "danger", type: "button", onclick: () => deleteGroup(page, name) },
        "Delete group",
      ),
    ],
  ];
  page.begin(name, {
    crumbs: [["Groups", "#/groups"]],
    actions: actions.map(([, element]) => element),
  });
  const figures = new Figures({
    state: "State",
    lag: "Lag",
    members: "Members",
    partitions: "Partitions",
  });
  const over = new Chart(page, {
    label: `Lag of ${name}`,
    format: compact,
    isWhole: true,
    windowMs: WINDOW_MS,
    isSmall: true,
    empty: "Waiting for the first data point",
  });
  const by = new Chart(page, {
    label: "Lag by partition",
    format: compact,
    isWhole: true,
    isByName: true,
    isSmall: true,
    empty: "No offsets yet",
  });
  const positions = positionTable();
  const members = memberTable();
  let last = null;

  const again = page.watch((loading) => get(path("groups", name), loading), (found) => {
    if (!figures.element.isConnected) {
      page.show(
        figures.element,
        h(
          "div",
          { class: "columns" },
          panel("Lag over time", over.element),
          panel("Lag by partition", by.element),
        ),
        panel("Offsets", positions.element),
        panel("Members", members.element),
      );
    }
    last = found;
    for (const [operation, element] of actions) {
      const isAllowed = found.operations.includes(operation);
      permit(element, isAllowed, session.lacks(operation, `group '${name}'`));
    }
    figures.set(
      "state",
      badge(found.state),
      found.protocol_name ? `${found.protocol_name}, generation ${found.generation}` : "",
    );
    figures.set("lag", count(found.lag), "records");
    figures.set("members", count(found.members.length), found.protocol_type);
    figures.set(
      "partitions",
      count(found.positions.length),
      counted(new Set(found.positions.map((each) => each.topic)).size, "topic"),
    );
    positions.update(found.positions);
    members.update(found.members);
    over.update(live.lagLines(name));
    const worst = [...found.positions].sort((one, other) => other.lag - one.lag).slice(0, 40).sort((
      one,
      other,
    ) => one.topic.localeCompare(other.topic) || one.partition - other.partition);
    const isOneTopic = new Set(worst.map((each) => each.topic)).size === 1;
    by.update([{
      name: "lag",
      x: worst.map((each) =>
        isOneTopic ? String(each.partition) : `${each.topic}-${each.partition}`
      ),
      y: worst.map((each) => each.lag),
    }]);
  }, LOOK_MS);
  page.on(live, "lag", () => last && over.update(live.lagLines(name)));
}

function positionTable() {
  return new Table({
    label: "Offsets",
    key: (row) => `${row.topic}/${row.partition}`,
    empty: () => nothing("No offsets", "This group has not committed anything yet."),
    columns: [
      linkColumn("Topic", (row) => row.topic, topicAddress),
      { title: "Partition", kind: "number", value: (row) => row.partition },
      {
        title: "Committed",
        kind: "number",
        value: (row) => row.offset,
        show: (row) =>
          h("a", {
            href: `${
              topicAddress(row.topic)
            }/records?partition=${row.partition}&from=offset&offset=${
              Math.min(Math.max(row.offset, row.start_offset), row.end_offset)
            }`,
            "aria-label":
              `Records of ${row.topic}, partition ${row.partition} from offset ${row.offset}`,
          }, count(row.offset)),
      },
      {
        title: "End offset",
        kind: "number small-hidden",
        value: (row) => row.end_offset,
        show: (row) => count(row.end_offset),
      },
      {
        title: "Lag, records",
        kind: "number",
        start: "down",
        value: (row) => row.lag,
        show: (row) => count(row.lag),
      },
      {
        title: "Last commit",
        kind: "soft small-hidden",
        start: "down",
        value: (row) => row.committed_ms,
        show: (row) =>
          h(
            "span",
            { title: new Date(row.committed_ms).toISOString() },
            ago(row.committed_ms, Date.now()),
          ),
      },
      { title: "Member", kind: "soft wide small-hidden", value: (row) => row.member_id ?? "–" },
    ],
  });
}

function memberTable() {
  return new Table({
    label: "Members",
    key: (row) => row.member_id,
    empty: () => nothing("No members", "This group has no active members. Its offsets are kept."),
    columns: [
      { title: "Member", kind: "name", value: (row) => row.member_id },
      { title: "Client", kind: "wide small-hidden", value: (row) => row.client_id || "–" },
      { title: "Host", kind: "small-hidden", value: (row) => row.client_host },
      {
        title: "Partitions",
        kind: "wide",
        value: (row) =>
          row.partitions.map((each) => `${each.topic}-${each.partition}`).join(", ") || "–",
      },
    ],
  });
}

function deleteGroup(page, name) {
  dialog({
    title: `Delete group ${name}?`,
    action: "Delete group",
    isDanger: true,
    content: [
      h(
        "p",
        {},
        "This deletes its committed offsets. If the group is used again, auto.offset.reset determines where its consumers start.",
      ),
    ],
    submit: async () => {
      await page.deleting(() => remove(path("groups", name)));
      toast(`${name} deleted`);
      location.hash = "#/groups";
    },
  });
}
