// The records of a topic from an offset, a time, the oldest or the newest record, with a filter, or
// as a live tail.
//
// The address contains the search, so that it can be bookmarked. A live tail keeps the last
// MAX_KEPT records, even while it is paused.

import { get, path } from "../api.js";
import { topicAddress } from "../table_columns.js";
import { h } from "../dom.js";
import { bytes, count, counted } from "../format.js";
import { tail } from "../live.js";
import { failed, forbidden, loading, nothing, panel, permit } from "../components.js";
import { session } from "../session.js";
import { searchForm } from "./record_search.js";
import { RecordTable } from "./record_table.js";

const PAGE_RECORDS = 100;
const PREVIEW_BYTES = 4096;
const MAX_KEPT = 2000;
const LIVE_MS = 500;
const LIVE_RECORDS = 100;

export function records(page) {
  const name = page.route.parts[1];
  const here = topicAddress(name);
  const toProduce = h("a", { class: "button", href: `${here}/produce` }, "Produce");
  page.begin("Records", {
    crumbs: [["Topics", "#/topics"], [name, here]],
    actions: [toProduce],
  });
  const form = searchForm(page.route.query, { look, toggleLive });
  const status = h("span", { class: "note", role: "status" });
  const table = new RecordTable(name);
  const area = h("div", {}, loading());
  const more = h("button", { type: "button", hidden: true, onclick: () => lookOn() }, "Show more");
  const results = panel("Records", area, h("div", { class: "state", hidden: true }, more));
  results.note.replaceWith(status);
  const foot = results.lastChild;
  let cursor = null;
  let isMissingOlder = false; // a limit stopped the search of the newest records
  let looking = null;
  let endLive = null;
  let skipped = 0;

  page.show(h("div", { class: "panel" }, h("div", { class: "body" }, form.element)), results);
  page.on(page.signal, "abort", () => endLive?.());
  get(path("topics", name), page).then((found) => {
    const may = (operation) => found.operations.includes(operation);
    permit(toProduce, may("WRITE"), session.lacks("WRITE", `topic '${name}'`));
    if (!may("READ")) {
      const reason = session.lacks("READ", `topic '${name}'`);
      page.show(h("div", { class: "panel" }, forbidden(reason)));
      return;
    }
    form.setPartitions(found.summary.partitions);
    if (page.route.query.get("live")) toggleLive();
    else look();
  }).catch((problem) => page.signal.aborted || page.showFailure(problem, () => records(page)));

  /** Starts a new search from the form. */
  async function look() {
    stopLive();
    table.clear();
    cursor = null;
    history.replaceState(null, "", `${here}/records${form.address()}`);
    area.replaceChildren(loading());
    await lookOn();
  }

  async function lookOn() {
    looking?.abort();
    looking = new AbortController();
    const mine = looking;
    more.disabled = true;
    try {
      const place = cursor ? { ...form.place(), ...form.filter(), cursor } : form.query();
      const query = {
        ...place,
        limit: PAGE_RECORDS,
        format: "plain",
        max_value_bytes: PREVIEW_BYTES,
      };
      const found = await get(path("topics", name, "records"), {
        query,
        signal: AbortSignal.any([mine.signal, page.signal]),
      });
      take(found);
    } catch (problem) {
      if (mine.signal.aborted || page.signal.aborted) return;
      if (table.size) status.textContent = problem.message;
      else area.replaceChildren(failed(problem, look));
    } finally {
      more.disabled = false;
    }
  }

  function take(found) {
    ({ cursor, is_missing_older: isMissingOlder } = found);
    const isNewestFirst = form.isNewest();
    table.add(isNewestFirst ? [...found.records].reverse() : found.records, false);
    drawTable();
    foot.hidden = more.hidden = found.is_at_end;
    more.textContent = table.size ? "Show more" : "Search further";
    const looked = `searched ${counted(found.scanned_records, "record")}, ${
      bytes(found.scanned_bytes)
    }, in ${found.elapsed_ms} ms`;
    const trouble = found.problems.length ? `; ${found.problems[0]}` : "";
    const waiting = found.uncommitted_offsets && found.is_at_end
      ? `; ${counted(found.uncommitted_offsets, "offset")} after an open transaction not shown`
      : "";
    const end = isMissingOlder
      ? "; older records not read"
      : found.is_at_end && !isNewestFirst
      ? "; end of the topic"
      : "";
    status.textContent = `${
      counted(table.size, "record")
    } shown; ${looked}${end}${waiting}${trouble}`;
  }

  function drawTable() {
    if (table.size) {
      if (!table.element.isConnected) area.replaceChildren(table.element);
      return;
    }
    if (endLive) {
      area.replaceChildren(
        nothing("Waiting for records", "New records of this topic appear here."),
      );
    } else if (form.isSearching() && isMissingOlder) {
      area.replaceChildren(
        nothing(
          "Nothing found",
          "None of the newest records matches. The search stopped before the older ones.",
          h("button", { type: "button", onclick: form.startFromOldest }, "Search from the oldest"),
        ),
      );
    } else if (form.isSearching()) {
      area.replaceChildren(
        nothing("Nothing found", "None of the records searched so far matches."),
      );
    } else {area.replaceChildren(
        nothing(
          "No records",
          "Produce records here or with any Kafka client.",
          h("a", { class: "button", href: `${here}/produce` }, "Produce"),
        ),
      );}
  }

  // -- live -------------------------------------------------------------------------------------

  function toggleLive() {
    if (endLive) {
      stopLive();
      status.textContent = `Paused; ${counted(table.size, "record")} kept`;
      return;
    }
    looking?.abort();
    foot.hidden = true;
    skipped = 0;
    if (!form.isNewest()) table.clear(); // only newer records may go above the existing ones
    const query = {
      topic: name,
      ...form.place(),
      ...form.filter(),
      limit: LIVE_RECORDS,
      interval_ms: LIVE_MS,
      max_value_bytes: PREVIEW_BYTES,
    };
    endLive = tail(query, {
      records: takeLive,
      problem: endedLive,
      state: (state) => showLive(state),
    });
    form.setLive(true);
    history.replaceState(null, "", `${here}/records${form.address()}`);
    drawTable();
    showLive("connecting");
  }

  function stopLive() {
    endLive?.();
    endLive = null;
    form.setLive(false);
  }

  function takeLive(event) {
    skipped += event.skipped;
    table.add(event.records.reverse(), true);
    table.keep(MAX_KEPT);
    drawTable();
    showLive("live");
  }

  function endedLive(problem) {
    stopLive();
    status.textContent = problem.detail;
  }

  function showLive(state) {
    if (!endLive) return;
    const words =
      { live: "Live", connecting: "Connecting", lost: "No connection; trying again" }[state];
    const most = table.size === MAX_KEPT ? `, the maximum` : "";
    const missed = skipped ? `; ${count(skipped)} went by too fast to show` : "";
    status.textContent = `${words}; ${counted(table.size, "record")}${most}${missed}`;
  }
}
