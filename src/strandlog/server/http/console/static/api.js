// Client of the broker's JSON API. Failed calls throw a Problem whose message says what to do.

const PREFIX = "/api/v1";
const TIMEOUT_MS = 15_000;

export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail);
    this.status = status;
    this.title = title;
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
  const request = { method, signal: signal ? AbortSignal.any([signal, timeout]) : timeout };
  if (method !== "GET" && method !== "DELETE") {
    request.headers = { "content-type": "application/json" };
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
  throw new Problem(
    answer.status,
    problem.title ?? answer.statusText,
    problem.detail ?? `Status ${answer.status}`,
  );
}

export const get = (address, options) => call("GET", address, options);
export const post = (address, body, options) => call("POST", address, { ...options, body });
export const patch = (address, body, options) => call("PATCH", address, { ...options, body });
export const remove = (address, options) => call("DELETE", address, options);
