// Client for the broker's JSON API. Failed calls throw a Problem, whose message is for the user.
//
// If the session has ended, a GET waits until the user has signed in again and is then repeated; any
// other call fails, because the user must decide whether to repeat it.

import { session, SESSION_ADDRESS } from "./session.js";

const PREFIX = "/api/v1";
const TIMEOUT_MS = 15_000;

export class Problem extends Error {
  constructor(status, title, detail, retryMs = 0) {
    super(detail);
    this.status = status;
    this.title = title;
    this.retryMs = retryMs; // how long to wait before the next try
  }
}

/** Builds an API path; the parts may contain any characters. */
export function path(...parts) {
  return `${PREFIX}/${parts.map(encodeURIComponent).join("/")}`;
}

export function withQuery(address, query) {
  const pairs = Object.entries(query ?? {}).filter(([, value]) =>
    value !== null && value !== undefined && value !== ""
  );
  return pairs.length ? `${address}?${new URLSearchParams(pairs)}` : address;
}

async function call(method, address, { query, body, signal } = {}) {
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const request = {
    method,
    signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
    headers: { "x-requested-with": "strandlog" }, // a 401 must not open the browser's own dialog
  };
  if (method !== "GET" && method !== "DELETE") {
    request.headers["content-type"] = "application/json";
    request.body = JSON.stringify(body ?? {});
  }
  let answer;
  try {
    answer = await fetch(withQuery(address, query), request);
    if (answer.status === 204) return null;
    if (answer.ok) return await answer.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    const isSlow = error.name === "TimeoutError";
    throw new Problem(
      0,
      isSlow ? "No response" : "Not reachable",
      isSlow
        ? `The broker did not respond within ${TIMEOUT_MS / 1000} s.`
        : "The broker does not respond. Is it running?",
    );
  }
  const problem = await answer.json().catch(() => ({}));
  if (answer.status === 401 && !(method === "POST" && address === SESSION_ADDRESS)) {
    session.lose();
    if (method === "GET") {
      await session.untilBack(signal);
      return call(method, address, { query, body, signal });
    }
  }
  throw new Problem(
    answer.status,
    answer.status === 403 ? "Not allowed" : problem.title ?? answer.statusText,
    problem.detail ?? `Status ${answer.status}`,
    1000 * (Number(answer.headers.get("retry-after")) || 0),
  );
}

/** Returns who is signed in, or null, without showing the login page. */
export async function peekSession() {
  const answer = await fetch(SESSION_ADDRESS, { headers: { "x-requested-with": "strandlog" } });
  return answer.ok ? await answer.json() : null;
}

/** Asks the broker who is signed in. A lost session shows the login page. */
export async function checkSession() {
  session.take(await call("GET", SESSION_ADDRESS));
}

export const get = (address, options) => call("GET", address, options);
export const post = (address, body, options) => call("POST", address, { ...options, body });
export const patch = (address, body, options) => call("PATCH", address, { ...options, body });
export const remove = (address, options) => call("DELETE", address, options);
