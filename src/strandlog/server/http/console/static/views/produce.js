// Produces a record from a form.

import { get, path, post } from "../api.js";
import { topicAddress } from "../table_columns.js";
import { h } from "../dom.js";
import { count, time } from "../format.js";
import { field, forbidden, nothing, offerPartitions, Pairs, panel, select } from "../components.js";
import { session } from "../session.js";

const FORMS = [["json", "JSON"], ["text", "Text"], ["base64", "Base64"], [
  "null",
  "Null (a tombstone)",
]];
const ACKS = [["all", "all: wait until durable"], ["leader", "leader: wait for the write"], [
  "none",
  "none: do not wait",
]];
const MAX_SENT = 20;

export function produce(page) {
  const name = page.route.parts[1];
  const here = topicAddress(name);
  page.begin("Produce", {
    crumbs: [["Topics", "#/topics"], [name, here]],
    actions: [h("a", { class: "button", href: `${here}/records?live=1` }, "Live tail")],
  });
  const partition = select("partition", [["", "By key"]], "");
  const acks = select("acks", ACKS, "all");
  const key = h("input", {
    name: "key",
    spellcheck: "false",
    autocomplete: "off",
    placeholder: "No key",
  });
  const form = select("form", FORMS, "json", { onchange: check });
  const value = h("textarea", {
    name: "value",
    rows: "9",
    spellcheck: "false",
    oninput: check,
    onkeydown: quickly,
  });
  const headers = new Pairs({
    name: "Headers",
    first: "Name",
    second: "Value",
    add: "Add a header",
  });
  const wrong = h("p", { class: "wrong", role: "alert" });
  const send = h("button", { class: "main", type: "submit", title: "Ctrl+Enter" }, "Send");
  const sent = h("ul", { "aria-live": "polite" });
  const sentArea = h(
    "div",
    { class: "body" },
    nothing("Nothing sent yet", "Records that you send are listed here with their offsets."),
  );
  const element = h(
    "form",
    { class: "form body", novalidate: true, onsubmit: submitted },
    h("div", { class: "row" }, field("Key", key), field("Partition", partition)),
    h("div", { class: "row" }, field("Value format", form), field("Acks", acks)),
    field("Value", value),
    headers.element,
    wrong,
    h("div", {}, send),
  );
  const again = () =>
    get(path("topics", name), page).then((found) => {
      page.actions.hidden = false;
      if (!found.operations.includes("WRITE")) {
        const reason = session.lacks("WRITE", `topic '${name}'`);
        page.show(h("div", { class: "panel" }, forbidden(reason)));
        return;
      }
      offerPartitions(partition, found.summary.partitions);
      page.show(
        h(
          "div",
          { class: "columns" },
          panel(`Record for ${name}`, element),
          panel("Sent", sentArea),
        ),
      );
      value.value = value.value || '{\n  "hello": "world"\n}';
      value.focus({ preventScroll: true });
    }).catch((problem) => page.signal.aborted || page.showFailure(problem, again));
  again();

  /** Checks a JSON value; shows and returns the error message, or an empty string. */
  function check() {
    value.disabled = form.value === "null";
    let words = "";
    if (form.value === "json" && value.value.trim()) {
      try {
        JSON.parse(value.value);
      } catch (error) {
        words = `Not JSON: ${error.message}.`;
      }
    }
    value.setAttribute("aria-invalid", String(words !== ""));
    wrong.textContent = words;
    return words;
  }

  function quickly(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      element.requestSubmit();
    }
  }

  function record() {
    const found = {
      headers: headers.values.map(([header, text]) => ({ name: header, value: text })),
    };
    if (key.value) found.key = key.value;
    // JSON is sent as text, so that its numbers and whitespace are preserved exactly as typed.
    if (form.value === "base64") found.value_base64 = value.value.trim();
    else if (form.value !== "null") found.value = value.value;
    return found;
  }

  async function submitted(event) {
    event.preventDefault();
    if (check()) return;
    if (form.value === "json" && !value.value.trim()) {
      wrong.textContent = "The value is empty: enter JSON, or choose Text or Null.";
      return;
    }
    send.disabled = true;
    try {
      const body = { records: [record()], acks: acks.value };
      if (partition.value !== "") body.partition = Number(partition.value);
      const { results } = await post(path("topics", name, "records"), body);
      listSent(results[0]);
    } catch (problem) {
      wrong.textContent = problem.message;
    } finally {
      send.disabled = false;
    }
  }

  function listSent(result) {
    if (!sent.isConnected) sentArea.replaceChildren(sent);
    const link = result
      ? h("a", {
        href: `${here}/records?partition=${result.partition}&from=offset&offset=${result.offset}`,
      }, `partition ${result.partition}, offset ${count(result.offset)}`)
      : "sent; without acks the offset is unknown";
    sent.prepend(h("li", {}, h("span", { class: "soft" }, `${time(Date.now())} `), link));
    while (sent.children.length > MAX_SENT) sent.lastChild.remove();
  }
}
