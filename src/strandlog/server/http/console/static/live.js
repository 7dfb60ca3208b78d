// One stream of rates and lag for all pages of this tab, and the data points of the last minutes.
//
// The stream is closed while the tab is hidden, because browsers limit the connections per server.
// Without the permission to describe the cluster there is no stream. The data points of the time
// before the stream come from the history that the broker keeps; they survive a reload, unless
// another user signs in.

import { checkSession, get, path, withQuery } from "./api.js";
import { session } from "./session.js";

export const WINDOW_MS = 5 * 60_000;
const KEPT = "strandlog.live";
const SAMPLE_MS = 5000; // shortest interval between two points of the broker's history
const MAX_GROUPS = 50;
const MAX_LINES = 6;

class Live extends EventTarget {
  constructor() {
    super();
    this.state = "connecting";
    this.rates = []; // {at, bytesIn, bytesOut, recordsIn, requests}, oldest first
    this.lag = new Map(); // group → [{at, lag}]
    this.lastRates = null;
    this.lastLag = null;
    this.source = null;
    this.isDiscarded = false;
    this.restore();
  }

  start() {
    document.addEventListener(
      "visibilitychange",
      () => (document.hidden ? this.close() : this.open()),
    );
    addEventListener("pagehide", () => this.keep());
    session.addEventListener("lost", () => this.close());
    session.addEventListener("back", () => document.hidden || this.open());
    if (!document.hidden) this.open();
  }

  open() {
    if (this.source || session.isLost) return;
    if (!session.may("DESCRIBE")) {
      this.become("off");
      return;
    }
    this.become("connecting");
    this.source = new EventSource(withQuery("/api/v1/live", { interval_ms: 1000 }));
    this.source.addEventListener("rates", (event) => this.takeRates(JSON.parse(event.data)));
    this.source.addEventListener("lag", (event) => this.takeLag(JSON.parse(event.data)));
    this.source.addEventListener("problem", (event) => ended(JSON.parse(event.data)));
    this.source.addEventListener("error", () => this.lost());
    this.fill().catch(() => {}); // the stream shows whether the broker responds
  }

  /** Adds the broker's history where this tab has no data points. */
  async fill() {
    const { rates, lag } = await get(path("history"));
    this.rates = merged(this.rates, rates.map((each) => point(each.timestamp_ms, each.rates)));
    for (const { group, points } of lag) {
      const older = points.map((each) => ({ at: each.timestamp_ms, lag: each.lag }));
      this.lag.set(group, merged(this.lag.get(group) ?? [], older));
    }
    this.dispatchEvent(new Event("rates"));
    this.dispatchEvent(new Event("lag"));
  }

  close() {
    this.source?.close();
    this.source = null;
  }

  /** Reconnects after an error response, such as a 401: the browser does not do so itself. */
  lost() {
    this.become("lost");
    if (this.source?.readyState === EventSource.CLOSED) {
      this.source = null;
      checkSession().catch(() => {}); // shows the login page if the session is lost
      setTimeout(() => document.hidden || this.open(), 2000);
    }
  }

  become(state) {
    if (this.state === state) return;
    this.state = state;
    this.dispatchEvent(new Event("state"));
  }

  takeRates(event) {
    this.become("live");
    this.lastRates = event;
    if (event.rates) {
      this.rates.push(point(event.timestamp_ms, event.rates));
      forget(this.rates, event.timestamp_ms);
    }
    this.dispatchEvent(new Event("rates"));
  }

  takeLag(event) {
    this.lastLag = event;
    for (const { group, lag } of event.groups.slice(0, MAX_GROUPS)) {
      const points = this.lag.get(group) ?? [];
      points.push({ at: event.timestamp_ms, lag });
      this.lag.set(group, points);
    }
    for (const [group, points] of this.lag) {
      forget(points, event.timestamp_ms);
      if (!points.length) this.lag.delete(group);
    }
    this.dispatchEvent(new Event("lag"));
  }

  /** Returns chart series for the groups with the highest lag, or for only one group. */
  lagLines(only = null) {
    return [...this.lag]
      .filter(([group]) => only === null || group === only)
      .map(([group, points]) => ({
        name: group,
        x: points.map((point) => point.at),
        y: points.map((point) => point.lag),
      }))
      .sort((one, other) => Math.max(0, ...other.y) - Math.max(0, ...one.y))
      .slice(0, MAX_LINES);
  }

  /** Forgets the data points, because another user will see this tab. */
  discard() {
    this.isDiscarded = true;
    sessionStorage.removeItem(KEPT);
  }

  keep() {
    if (this.isDiscarded) return;
    try {
      sessionStorage.setItem(KEPT, JSON.stringify({ rates: this.rates, lag: [...this.lag] }));
    } catch { /* the storage is full: after a reload, the data points are lost */ }
  }

  restore() {
    try {
      const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "{}");
      this.rates = kept.rates ?? [];
      this.lag = new Map(kept.lag ?? []);
      forget(this.rates, Date.now());
      for (const points of this.lag.values()) forget(points, Date.now());
    } catch { /* ignore unusable stored data */ }
  }
}

function point(at, rates) {
  return {
    at,
    bytesIn: rates.produced_bytes_per_second,
    bytesOut: rates.fetched_bytes_per_second,
    recordsIn: rates.produced_records_per_second,
    requests: rates.requests_per_second,
  };
}

/** Returns the points and, where there are none, those of the broker's history. */
export function merged(points, history) {
  const isMissing = ({ at }) => !points.some((each) => Math.abs(each.at - at) < SAMPLE_MS);
  return [...history.filter(isMissing), ...points].sort((one, other) => one.at - other.at);
}

/** Removes points that are older than the window; points are ordered by time. */
export function forget(points, now) {
  while (points.length && points[0].at < now - WINDOW_MS) points.shift();
}

/** Shows the login page if a stream ended because the session ended. */
function ended(problem) {
  if (problem.status === 401) session.lose();
}

export const live = new Live();

/** Opens a stream of a topic's newest records; returns a function that closes it. */
export function tail(query, { records, problem, state }) {
  const source = new EventSource(
    withQuery("/api/v1/live", { rates: false, lag: false, format: "plain", ...query }),
  );
  source.addEventListener("open", () => state("live"));
  source.addEventListener("records", (event) => records(JSON.parse(event.data)));
  source.addEventListener("problem", (event) => {
    source.close();
    const found = JSON.parse(event.data);
    ended(found);
    problem(found);
  });
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) checkSession().catch(() => {});
    state("lost");
  });
  return () => source.close();
}
