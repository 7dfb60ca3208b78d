// Addresses of pages, and table columns that several pages share.

import { breakable, h } from "./dom.js";
import { count } from "./format.js";
import { badge } from "./components.js";

export const topicAddress = (name) => `#/topics/${encodeURIComponent(name)}`;
export const groupAddress = (name) => `#/groups/${encodeURIComponent(name)}`;
export const pipelineAddress = (name) => `#/pipelines/${encodeURIComponent(name)}`;

/** A column with the name of each row, linked to its page. */
export function linkColumn(title, of, address) {
  return {
    title,
    kind: "name",
    value: of,
    show: (row) => h("a", { href: address(of(row)) }, breakable(of(row))),
  };
}

/** The columns of a group: name, state, members and lag. Unknown values are null. */
export function groupColumns(lagTitle) {
  return [
    linkColumn("Group", (row) => row.group, groupAddress),
    {
      title: "State",
      value: (row) => row.state,
      show: (row) => (row.state ? badge(row.state) : "–"),
    },
    { title: "Members", kind: "number small-hidden", start: "down", value: (row) => row.members },
    {
      title: lagTitle,
      kind: "number",
      start: "down",
      value: (row) => row.lag,
      show: (row) => count(row.lag),
    },
  ];
}
