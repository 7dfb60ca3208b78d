// A table of records; a row expands to the details of its record.

import { get, path } from "../api.js";
import { h } from "../dom.js";
import { bytes, count, time } from "../format.js";
import { payloadView, preview } from "../payload.js";

const WHOLE_BYTES = 1024 * 1024;
const COLUMNS = [["Time"], ["Partition", "number small-hidden"], ["Offset", "number"], ["Key"], [
  "Value",
  "value",
], ["Size", "number small-hidden"]];

export class RecordTable {
  constructor(topic) {
    this.topic = topic;
    this.rows = new Map(); // "partition/offset" → row
    this.body = h("tbody");
    const heads = COLUMNS.map(([title, kind]) => h("th", { scope: "col", class: kind }, title));
    this.element = h("div", {
      class: "scroll records",
      tabindex: "0",
      role: "region",
      "aria-label": "Records, table",
    }, h("table", { "aria-label": "Records" }, h("thead", {}, h("tr", {}, heads)), this.body));
  }

  get size() {
    return this.rows.size;
  }

  clear() {
    this.rows.clear();
    this.body.replaceChildren();
  }

  /** Adds records in display order, before or after the existing rows. */
  add(records, isBefore) {
    const fresh = records.filter((record) => !this.rows.has(nameOf(record)));
    const rows = fresh.map((record) => this.row(record));
    if (isBefore) this.body.prepend(...rows);
    else this.body.append(...rows);
    fresh.forEach((record, number) => this.rows.set(nameOf(record), rows[number]));
  }

  /** Removes rows from the bottom until at most `most` are left. */
  keep(most) {
    while (this.rows.size > most) {
      const last = this.body.lastElementChild;
      if (last.classList.contains("detail")) last.remove();
      else {
        this.rows.delete(last.dataset.record);
        last.remove();
      }
    }
  }

  row(record) {
    const name = nameOf(record);
    const [day, clock] = time(record.timestamp_ms).split(/(?<= )/);
    const open = h("button", {
      type: "button",
      class: "open",
      "aria-expanded": "false",
      "aria-label": `Partition ${record.partition}, offset ${record.offset}`,
    }, count(record.offset));
    const row = h(
      "tr",
      { "data-record": name },
      h(
        "td",
        { class: "soft when", title: iso(record.timestamp_ms) },
        h("span", { class: "small-hidden" }, day),
        clock,
      ),
      h("td", { class: "number small-hidden" }, String(record.partition)),
      h("td", { class: "number" }, open),
      h("td", {}, h("div", { class: "key" }, preview(record.key))),
      h("td", { class: "value" }, h("div", { class: "preview" }, preview(record.value))),
      h("td", { class: "number small-hidden" }, bytes(record.size_bytes)),
    );
    row.addEventListener("click", (event) => {
      if (getSelection().isCollapsed || event.target === open) this.toggle(row, open, record);
    });
    return row;
  }

  toggle(row, open, record) {
    const isOpen = open.getAttribute("aria-expanded") === "true";
    open.setAttribute("aria-expanded", String(!isOpen));
    row.classList.toggle("opened", !isOpen);
    if (isOpen) {
      row.nextElementSibling.remove();
      return;
    }
    const cell = h("td", { colspan: String(COLUMNS.length) }, details(record));
    row.after(h("tr", { class: "detail" }, cell));
    if ([record.key, record.value].some((payload) => payload?.is_truncated)) {
      this.whole(record, cell);
    }
  }

  /** Loads up to WHOLE_BYTES of a key and value that the list shows truncated. */
  async whole(record, cell) {
    const query = {
      partition: record.partition,
      offset: record.offset,
      limit: 1,
      format: "plain",
      max_value_bytes: WHOLE_BYTES,
    };
    try {
      const { records } = await get(path("topics", this.topic, "records"), { query });
      const found = records.find((each) => each.offset === record.offset);
      if (found) cell.replaceChildren(details(found));
    } catch (problem) {
      cell.append(h("p", { class: "wrong" }, problem.message));
    }
  }
}

function nameOf(record) {
  return `${record.partition}/${record.offset}`;
}

function iso(ms) {
  const at = new Date(ms);
  return Number.isNaN(at.getTime()) ? "" : at.toISOString();
}

function details(record) {
  const headers = record.headers.length
    ? h(
      "div",
      { class: "payload" },
      h("h3", {}, `Headers (${record.headers.length})`),
      h(
        "dl",
        { class: "pairs-list" },
        record.headers.map((
          { name, value },
        ) => [
          h("dt", { class: "mono" }, name || h("span", { class: "null" }, "empty")),
          h("dd", { class: "mono" }, preview(value)),
        ]),
      ),
    )
    : null;
  const facts = `Partition ${record.partition}, offset ${count(record.offset)} · ${
    time(record.timestamp_ms)
  } · ${bytes(record.size_bytes)}`;
  return h(
    "div",
    { class: "details" },
    h("p", { class: "soft" }, facts),
    payloadView("Value", record.value),
    payloadView("Key", record.key),
    headers,
  );
}
