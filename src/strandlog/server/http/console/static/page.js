// The page of a view. Opening another page aborts its requests and removes its listeners.

import { h, present } from "./dom.js";
import { failed, loading } from "./components.js";

// After a slow response, a page waits five times as long as the response took, up to MAX_PAUSE_MS.
const PAUSES = 5;
const MAX_PAUSE_MS = 15_000;
const LONG_TITLE = 60; // characters

export class Page {
  constructor(root, route) {
    this.root = root;
    this.route = route;
    this.ending = new AbortController();
    this.signal = this.ending.signal;
    this.stale = h("div", { class: "banner", role: "status", hidden: true });
    this.heading = h("h1", { tabindex: "-1" });
    this.sub = h("div", { class: "sub" });
    this.actions = h("div", { class: "actions" });
    this.content = h("div", { class: "stack" });
  }

  /** Shows the page header. `crumbs` are [label, address] pairs of the parent pages. */
  begin(title, { crumbs = [], sub = "", actions = [] } = {}) {
    document.title = title === "Overview" ? "strandlog" : `${title} · strandlog`;
    this.heading.textContent = title;
    this.heading.classList.toggle("long", title.length > LONG_TITLE);
    this.sub.replaceChildren(...present(sub));
    const back = crumbs.map((
      [words, address],
      number,
    ) => [number ? " / " : null, h("a", { href: address }, words)]);
    const trail = crumbs.length
      ? h("nav", { class: "crumbs", "aria-label": "Breadcrumb" }, back)
      : null;
    this.actions.replaceChildren(...present(actions));
    this.actions.hidden = false;
    const head = h(
      "div",
      { class: "head" },
      h("div", { class: "grow" }, trail, this.heading, this.sub),
      this.actions,
    );
    this.root.replaceChildren(head, this.stale, this.content);
  }

  show(...children) {
    this.content.replaceChildren(...present(children));
  }

  /** Shows an error instead of the content, without the actions, which would fail as well. */
  showFailure(problem, again) {
    this.actions.hidden = true;
    this.show(h("div", { class: "panel" }, failed(problem, again)));
  }

  end() {
    this.ending.abort();
  }

  /** Adds a listener that is removed when the page is closed. */
  on(target, name, listener) {
    target.addEventListener(name, listener, { signal: this.signal });
  }

  /**
   * Deletes the topic or group that the page shows. The page does not reload meanwhile, because
   * that would report the topic or group as not found.
   */
  async deleting(change) {
    this.hold?.();
    try {
      await change();
    } catch (problem) {
      this.reload?.();
      throw problem;
    }
  }

  /**
   * Loads and shows data periodically while the tab is visible. `load` receives the signal that
   * aborts it. A skeleton is shown until the first load completes. If the first load fails, the
   * error is shown; if a later one fails, the last data stays visible with a notice, unless the data
   * is gone or no longer permitted. Without permission, periodic loading stops. A slow response
   * makes the pause after it longer. Returns a function that reloads immediately.
   */
  watch(load, show, everyMs) {
    let isThere = false;
    let timer = null;
    let loads = null;
    this.show(loading());
    const again = async () => {
      this.hold(); // one load at a time, and one timer
      let isDenied = false;
      let pauseMs = everyMs;
      const began = performance.now();
      loads = new AbortController();
      const signal = AbortSignal.any([this.signal, loads.signal]);
      try {
        const found = await load({ signal });
        if (signal.aborted) return;
        if (!isThere) this.content.replaceChildren();
        isThere = true;
        this.stale.hidden = true;
        this.actions.hidden = false;
        pauseMs = Math.max(everyMs, Math.min(MAX_PAUSE_MS, PAUSES * (performance.now() - began)));
        show(found);
      } catch (problem) {
        if (signal.aborted) return;
        isDenied = problem.status === 403; // asking again would be denied again
        if (!(problem instanceof Error) || problem.status === undefined) console.error(problem);
        if (everyMs) pauseMs = Math.max(everyMs, problem.retryMs ?? 0);
        if (isThere && problem.status !== 404 && !isDenied) this.showStale(problem);
        else {
          isThere = false;
          this.showFailure(problem, again);
        }
      }
      if (everyMs && !isDenied && !signal.aborted) timer = setTimeout(look, pauseMs);
    };
    const look = () => {
      if (document.hidden) {
        document.addEventListener("visibilitychange", again, { once: true, signal: this.signal });
      } else again();
    };
    this.hold = () => {
      clearTimeout(timer);
      loads?.abort();
    };
    this.reload = again;
    this.on(this.signal, "abort", () => clearTimeout(timer));
    again();
    return again;
  }

  showStale(problem) {
    this.stale.textContent = `Not up to date: ${problem.message} Retrying.`;
    this.stale.hidden = false;
  }
}
