// UI components: figures, tables, states and dialogs. Styles: components.css and views.css.

import { breakable, copy, h, icon, present, toast } from "./dom.js";
import { count } from "./format.js";

/** Creates a panel with a heading and a `note` next to it. */
export function panel(title, ...children) {
  const note = h("span", { class: "note" });
  const element = h(
    "section",
    { class: "panel", "aria-label": title },
    h("header", {}, h("h2", {}, title), note),
    children,
  );
  return Object.assign(element, { note, head: element.firstChild });
}

/** A row of figures; `set(name, value, more)` updates one. */
export class Figures {
  constructor(names) {
    this.parts = new Map();
    this.element = h("dl", { class: "figures" });
    for (const [name, title] of Object.entries(names)) {
      const value = h("div", { class: "value" }, "–");
      const more = h("div", { class: "more" });
      this.parts.set(name, { value, more });
      this.element.append(
        h("div", { class: "figure" }, h("dt", {}, title), h("dd", {}, value, more)),
      );
    }
  }

  set(name, value, more = "") {
    const parts = this.parts.get(name);
    parts.value.replaceChildren(...present(value));
    parts.more.replaceChildren(...present(more));
  }
}

const STATES = {
  Stable: "good",
  Empty: "",
  Dead: "bad",
  PreparingRebalance: "warn",
  CompletingRebalance: "warn",
  running: "good",
  scheduled: "good",
  silent: "warn",
  stopped: "",
  failed: "bad",
};

export function badge(text, kind = STATES[text] ?? "") {
  return h("span", { class: `badge ${kind}` }, text);
}

/** Creates a usage bar. The policy forbids style attributes, so the width is set by script. */
export function meter(share, label) {
  const inside = h("span");
  inside.style.width = `${Math.min(100, Math.max(0, share * 100))}%`;
  return h("div", { class: "meter", role: "img", "aria-label": label }, inside);
}

// -- states -----------------------------------------------------------------------------------

export function nothing(title, words, ...actions) {
  return h(
    "div",
    { class: "state" },
    icon("nothing"),
    h("strong", {}, title),
    words ? h("p", {}, words) : null,
    actions.length ? h("div", { class: "actions" }, actions) : null,
  );
}

export function failed(problem, again) {
  return h(
    "div",
    { class: "state failed", role: "alert" },
    icon(problem.status === 403 ? "locked" : "trouble"),
    h("strong", {}, problem.title ?? "Something went wrong"),
    h("p", {}, problem.message),
    again
      ? h("div", { class: "actions" }, h("button", { type: "button", onclick: again }, "Try again"))
      : null,
  );
}

export function loading(lines = 5) {
  return h(
    "div",
    { class: "skeleton", role: "status", "aria-label": "Loading" },
    Array.from({ length: lines }, () => h("span")),
  );
}

/** Shows a shell command with a button that copies it. */
export function command(text) {
  return h(
    "div",
    { class: "command" },
    h("code", {}, text.split(" ").map((word) => [h("span", { class: "word" }, word), " "])),
    h("button", {
      class: "light",
      type: "button",
      "aria-label": `Copy: ${text}`,
      onclick: () => copy(text),
    }, "Copy"),
  );
}

// -- tables -----------------------------------------------------------------------------------

const MAX_ROWS = 300;
const MORE_ROWS = 1000;

/**
 * A table that updates its rows in place, so that the focused element keeps the focus. It shows the
 * first MAX_ROWS rows, and a button for more: ten thousand rows would block the page.
 *
 * A column has a `title` and a function `value` of the row. A cell is redrawn when its value
 * changes; the value is also the sort key, unless the column has an `order`. Optional properties
 * are `show` (renders the cell), `kind` (a CSS class; "name" makes the cell the row header),
 * `start` ("down" if the first click sorts in descending order) and `isFixed` (not sortable).
 */
export class Table {
  constructor({ label, columns, key, sort = null, empty = null }) {
    this.columns = columns;
    this.key = key;
    this.sort = sort; // [column index, 1 or -1]
    this.empty = empty;
    this.rows = [];
    this.shown = new Map();
    this.heads = columns.map((column, number) => this.head(column, number));
    this.body = h("tbody");
    this.table = h(
      "table",
      { "aria-label": label },
      h("thead", {}, h("tr", {}, this.heads)),
      this.body,
    );
    this.state = h("div", { hidden: true });
    this.limit = MAX_ROWS;
    this.more = h("button", { type: "button", onclick: () => this.showMore() });
    this.foot = h("div", { class: "state more-rows", hidden: true }, this.more);
    this.element = h(
      "div",
      {},
      h(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": `${label}, table` },
        this.table,
      ),
      this.foot,
      this.state,
    );
    this.mark();
  }

  showMore() {
    this.limit += MORE_ROWS;
    this.update(this.rows);
  }

  head(column, number) {
    const content = column.isFixed
      ? column.title
      : h("button", { type: "button", onclick: () => this.turn(number) }, column.title);
    return h("th", { scope: "col", class: column.kind }, content);
  }

  turn(number) {
    const first = this.columns[number].start === "down" ? -1 : 1;
    this.sort = this.sort?.[0] === number ? [number, -this.sort[1]] : [number, first];
    this.mark();
    this.update(this.rows);
  }

  mark() {
    this.heads.forEach((head, number) => {
      if (this.sort?.[0] === number) {
        head.setAttribute("aria-sort", this.sort[1] > 0 ? "ascending" : "descending");
      } else head.removeAttribute("aria-sort");
    });
  }

  update(rows) {
    this.rows = rows;
    this.table.hidden = rows.length === 0;
    this.state.hidden = rows.length > 0;
    if (!rows.length && this.empty) this.state.replaceChildren(this.empty());
    const left = rows.length - this.limit;
    this.foot.hidden = left <= 0;
    this.more.textContent = `Show ${count(Math.min(left, MORE_ROWS))} more of ${
      count(rows.length)
    }`;
    const kept = new Map();
    const focus = this.focused();
    const elements = this.sorted(rows).slice(0, this.limit).map((row) => {
      const key = this.key(row);
      const old = this.shown.get(key) ?? { element: h("tr"), values: [] };
      this.fill(old, row);
      kept.set(key, old);
      return old.element;
    });
    this.shown = kept;
    if (!sameChildren(this.body, elements)) this.body.replaceChildren(...elements);
    giveBack(focus, kept);
  }

  /** Returns the focused cell, so that the focus can be restored after an update. */
  focused() {
    const cell = this.body.contains(document.activeElement)
      ? document.activeElement.closest("th, td")
      : null;
    if (!cell) return null;
    const found = [...this.shown].find(([, { element }]) => element === cell.parentElement);
    return found
      ? { key: found[0], column: cell.cellIndex, element: document.activeElement }
      : null;
  }

  sorted(rows) {
    if (!this.sort) return rows;
    const [number, direction] = this.sort;
    const order = this.columns[number].order ?? this.columns[number].value;
    return [...rows].sort((one, other) => direction * compare(order(one), order(other)));
  }

  fill(old, row) {
    this.columns.forEach((column, number) => {
      const value = column.value(row);
      const mark = typeof value === "object" ? JSON.stringify(value) : value;
      if (old.values[number] === mark && old.element.children[number]) return;
      old.values[number] = mark;
      const isName = column.kind?.split(" ").includes("name");
      const cell = h(
        isName ? "th" : "td",
        { class: column.kind, scope: isName ? "row" : null },
        column.show ? column.show(row) : isName ? breakable(value) : String(value ?? "–"),
      );
      if (old.element.children[number]) old.element.children[number].replaceWith(cell);
      else old.element.append(cell);
    });
  }
}

function giveBack(focus, rows) {
  if (!focus || document.activeElement === focus.element) return;
  const cell = rows.get(focus.key)?.element.children[focus.column];
  const target = focus.element.isConnected ? focus.element : cell?.querySelector("a, button");
  target?.focus({ preventScroll: true });
}

function sameChildren(body, elements) {
  return body.children.length === elements.length &&
    elements.every((element, number) => body.children[number] === element);
}

function compare(one, other) {
  if (one === other) return 0;
  if (one === null || one === undefined) return 1;
  if (other === null || other === undefined) return -1;
  if (typeof one === "string") return one.localeCompare(other, "en", { numeric: true });
  return one < other ? -1 : 1;
}

// -- permissions ------------------------------------------------------------------------------

/**
 * Enables or disables a button or link, and returns it. If disabled, it stays visible; its title
 * and a click on it show the reason.
 */
export function permit(element, isAllowed, reason) {
  if (isAllowed) {
    if (element.getAttribute("aria-disabled")) element.removeAttribute("title");
    element.removeAttribute("aria-disabled");
    return element;
  }
  if (!element.dataset.guarded) {
    element.dataset.guarded = "1";
    element.addEventListener("click", refuse, { capture: true });
  }
  element.setAttribute("aria-disabled", "true");
  element.title = reason;
  return element;
}

function refuse(event) {
  const element = event.currentTarget;
  if (element.getAttribute("aria-disabled") !== "true") return;
  event.preventDefault();
  event.stopImmediatePropagation();
  toast(element.title);
}

/** Shows that the user may not see something. */
export function forbidden(reason) {
  return h(
    "div",
    { class: "state", role: "note" },
    icon("locked"),
    h("strong", {}, "Not allowed"),
    h("p", {}, reason),
  );
}

// -- forms and dialogs --------------------------------------------------------------------------

let hints = 0;

/** Labels an input with a title. Screen readers announce the hint after the title. */
export function field(title, input, hint) {
  if (!hint) return h("label", {}, h("span", {}, title), input);
  const name = `hint-${(hints += 1)}`;
  input.setAttribute("aria-labelledby", `${name}-title`);
  input.setAttribute("aria-describedby", name);
  return h(
    "label",
    {},
    h("span", { id: `${name}-title` }, title),
    input,
    h("span", { class: "hint", id: name }, hint),
  );
}

export function select(name, choices, chosen, more = {}) {
  const options = choices.map(([value, text]) =>
    h("option", { value, selected: value === chosen }, text)
  );
  return h("select", { name, ...more }, options);
}

/** Appends an option for each partition to a select element. */
export function offerPartitions(element, number) {
  for (let each = 0; each < number; each += 1) {
    element.append(h("option", { value: String(each) }, String(each)));
  }
}

let dialogs = 0;

/**
 * Opens a dialog with a form and returns it. `submit` receives the form; if it throws, the message
 * is shown and the dialog stays open.
 */
export function dialog({ title, content, action, submit, isDanger = false, isBroad = false }) {
  const wrong = h("p", { class: "wrong", role: "alert" });
  const name = `dialog-${(dialogs += 1)}`;
  const done = h("button", { class: isDanger ? "danger" : "main", type: "submit" }, action);
  const cancel = h(
    "button",
    { type: "button", onclick: () => element.close() },
    submit ? "Cancel" : "Close",
  );
  const form = h(
    "form",
    { novalidate: true, onsubmit: send },
    h("h2", { id: name }, title),
    h("div", { class: "form" }, content),
    wrong,
    h("div", { class: "actions" }, cancel, submit ? done : null),
  );
  const element = h("dialog", {
    "aria-labelledby": name,
    class: isBroad ? "broad" : null,
    onclose: () => element.remove(),
  }, form);

  async function send(event) {
    event.preventDefault();
    wrong.textContent = "";
    done.disabled = true;
    try {
      await submit(form);
      element.close();
    } catch (problem) {
      wrong.textContent = problem.message;
    } finally {
      done.disabled = false;
    }
  }

  document.body.append(element);
  element.showModal();
  return Object.assign(element, { form, done, wrong });
}

/** An editable list of name and value pairs. */
export class Pairs {
  constructor({ first, second, add, name }) {
    this.titles = [first, second];
    this.list = h("div", { class: "pairs" });
    this.element = h(
      "fieldset",
      { class: "plain" },
      h("legend", {}, name),
      this.list,
      h("button", { type: "button", class: "light", onclick: () => this.add().focus() }, add),
    );
  }

  add(first = "", second = "") {
    const inputs = [
      h("input", { value: first, spellcheck: "false" }),
      h("input", { value: second, spellcheck: "false" }),
    ];
    const row = h(
      "div",
      { class: "pair" },
      field(this.titles[0], inputs[0]),
      field(this.titles[1], inputs[1]),
      h("button", {
        type: "button",
        class: "quiet",
        "aria-label": "Remove",
        onclick: () => row.remove(),
      }, "✕"),
    );
    row.inputs = inputs;
    this.list.append(row);
    return inputs[0];
  }

  get values() {
    return [...this.list.children].map((row) => row.inputs.map((input) => input.value)).filter((
      [name],
    ) => name !== "");
  }
}
