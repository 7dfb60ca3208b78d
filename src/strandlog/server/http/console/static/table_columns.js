// Addresses of pages, and table columns and cells that several pages share.

import { breakable, h } from "./dom.js";
import { bytes, count, duration, isUnlimited } from "./format.js";
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

/** Shows the name of a setting. A phone has no column for the source, so it is below the name. */
export function settingName({ name, help, origin }) {
  const source = origin === "default" ? null : badge(origin);
  return [
    h("span", { title: help }, breakable(name)),
    h("div", { class: "small-only" }, source),
  ];
}

/** Shows the value of a setting; many milliseconds or bytes are also shown in a larger unit. */
export function settingValue(name, value) {
  const number = value === "" ? NaN : Number(value);
  if (isUnlimited(number) && number > 0) return [h("span", { title: value }, "no limit")];
  const words = !(number >= 1000)
    ? /retention\.(ms|bytes)$/.test(name) && isUnlimited(number) ? "no limit" : null
    : name.endsWith(".ms")
    ? duration(number)
    : name.endsWith(".bytes")
    ? bytes(number)
    : null;
  return [
    h("code", {}, breakable(value || "–")),
    words ? h("div", { class: "hint" }, words) : null,
  ];
}
