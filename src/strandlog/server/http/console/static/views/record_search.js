// The search form above the records: start position and filter.

import { h } from "../dom.js";
import { fieldTime } from "../format.js";
import { field, offerPartitions, select } from "../components.js";

const BEGINNINGS = [["newest", "Newest"], ["oldest", "Oldest"], ["offset", "Offset"], [
  "time",
  "Time",
]];
const TRANSACTIONS = [["committed", "Committed"], ["all", "Also open and aborted"]];
const WHERE = [["value", "Value"], ["key", "Key"], ["header", "Header"], ["path", "JSON path"]];
const NEWEST_RECORDS = 100;
const NEWEST_MATCHES = 1000;

export function searchForm(given, { look, toggleLive }) {
  const partition = select("partition", [["", "All"]], "", { onchange: look });
  const from = select("from", BEGINNINGS, given.get("from") ?? "newest", {
    onchange: () => choose(true),
  });
  const offset = h("input", {
    name: "offset",
    type: "number",
    min: "0",
    value: given.get("offset") ?? "0",
  });
  const time = h("input", {
    name: "time",
    type: "datetime-local",
    step: "1",
    value: given.get("time") ?? fieldTime(Date.now() - 3_600_000),
  });
  const transactions = select(
    "transactions",
    TRANSACTIONS,
    given.get("transactions") ?? "committed",
    { onchange: look },
  );
  const where = select("where", WHERE, given.get("where") ?? "value", {
    onchange: () => choose(false),
  });
  const search = h("input", {
    name: "search",
    type: "search",
    value: given.get("search") ?? "",
    spellcheck: "false",
  });
  const equals = h("input", {
    name: "equals",
    value: given.get("equals") ?? "",
    spellcheck: "false",
    placeholder: '"AA" or 12',
  });
  const live = h(
    "button",
    { type: "button", "aria-pressed": "false", onclick: toggleLive },
    "Live tail",
  );
  const offsetField = field("Offset", offset);
  const timeField = field("Time", time);
  const equalsField = field("Equals", equals);
  const element = h(
    "form",
    { class: "fields", onsubmit: submitted, "aria-label": "Search records" },
    field("Partition", partition),
    field("Start from", from),
    offsetField,
    timeField,
    field("Transactions", transactions),
    field("Search in", where),
    h("div", { class: "grow" }, field("Search", search)),
    equalsField,
    h("button", { class: "main", type: "submit" }, "Search"),
    live,
  );

  function submitted(event) {
    event.preventDefault();
    look();
  }

  function choose(isLooking) {
    offsetField.hidden = from.value !== "offset";
    timeField.hidden = from.value !== "time";
    equalsField.hidden = where.value !== "path";
    search.placeholder = {
      value: "Text in the value",
      key: "Text in the key",
      header: "A name, or name=text",
      path: "flight.origin",
    }[where.value];
    if (isLooking && from.value !== "offset" && from.value !== "time") look();
  }

  function filter() {
    const text = search.value;
    if (!text) return {};
    return where.value === "path" ? { path: text, equals: equals.value } : { [where.value]: text };
  }

  function place() {
    return { partition: partition.value, committed: transactions.value === "committed" };
  }

  function query() {
    const begin = {
      newest: { last: search.value ? NEWEST_MATCHES : NEWEST_RECORDS },
      oldest: {},
      offset: { offset: offset.value || 0 },
      time: { time_ms: new Date(time.value).getTime() },
    }[from.value];
    return { ...place(), ...begin, ...filter() };
  }

  function address() {
    const kept = {
      partition: partition.value,
      from: from.value === "newest" ? "" : from.value,
      transactions: transactions.value === "committed" ? "" : transactions.value,
    };
    if (from.value === "offset") kept.offset = offset.value;
    if (from.value === "time") kept.time = time.value;
    if (search.value) {
      Object.assign(kept, {
        where: where.value,
        search: search.value,
        equals: where.value === "path" ? equals.value : "",
      });
    }
    if (live.getAttribute("aria-pressed") === "true") kept.live = "1";
    const pairs = Object.entries(kept).filter(([, value]) => value !== "");
    return pairs.length ? `?${new URLSearchParams(pairs)}` : "";
  }

  choose(false);
  return {
    element,
    query,
    filter,
    address,
    place,
    isNewest: () => from.value === "newest",
    isSearching: () => search.value !== "",
    startFromOldest() {
      from.value = "oldest";
      choose(true);
    },
    setPartitions(number) {
      offerPartitions(partition, number);
      partition.value = given.get("partition") ?? "";
      if (partition.selectedIndex < 0) partition.value = "";
    },
    setLive(isLive) {
      live.setAttribute("aria-pressed", String(isLive));
      live.textContent = isLive ? "Pause" : "Live tail";
    },
  };
}
