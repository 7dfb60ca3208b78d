// Displays a key or a value: formatted JSON, text or a hex dump.
//
// JSON is laid out from its text, never parsed into numbers of this language, which would change
// large ones.

import { copy, h } from "./dom.js";
import { bytes } from "./format.js";

const MAX_JSON = 300_000; // characters that are laid out and coloured
const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|[{}[\],:]|\s+/gy;
const HEX_COLUMNS = 16;

function isJson(text) {
  if (!/^\s*[[{]/.test(text)) return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** Tokens of JSON text without white space; null when it is none. */
function tokens(text) {
  const found = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.length) {
    const match = TOKEN.exec(text);
    if (!match) return null;
    if (match[0].trim()) found.push(match[0]);
  }
  return found;
}

function coloured(token, isKey) {
  if (token.startsWith('"')) return h("span", { class: isKey ? "json-key" : "json-text" }, token);
  if (/^[-\d]/.test(token)) return h("span", { class: "json-number" }, token);
  return /^[tfn]/.test(token) ? h("span", { class: "json-word" }, token) : token;
}

/** JSON text with one thing a line, as nodes; null when it cannot be laid out. */
function pretty(text) {
  const found = text.length <= MAX_JSON ? tokens(text) : null;
  if (!found) return null;
  const out = [];
  let depth = 0;
  const line = () => out.push(`\n${"  ".repeat(depth)}`);
  found.forEach((token, number) => {
    const next = found[number + 1];
    if (token === "}" || token === "]") {
      depth -= 1;
      const before = found[number - 1];
      if (before !== "{" && before !== "[") line();
    }
    out.push(coloured(token, next === ":"));
    if (token === "{" || token === "[") {
      depth += 1;
      if (next !== "}" && next !== "]") line();
    } else if (token === ",") line();
    else if (token === ":") out.push(" ");
  });
  return out;
}

/** Bytes as offset, hexadecimal and text, sixteen a line. */
function hex(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += HEX_COLUMNS) {
    const part = [...data.subarray(at, at + HEX_COLUMNS)];
    const codes = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·"))
      .join("");
    lines.push(
      `${at.toString(16).padStart(8, "0")}  ${codes.padEnd(HEX_COLUMNS * 3 - 1)}  ${text}`,
    );
  }
  return lines.join("\n");
}

function bytesOf(payload) {
  if (payload.kind === "base64") {
    return Uint8Array.from(atob(payload.data), (letter) => letter.charCodeAt(0));
  }
  return new TextEncoder().encode(payload.data);
}

/** A payload in one line. */
export function preview(payload) {
  if (payload === null) return h("span", { class: "null" }, "null");
  if (payload.kind === "base64") return hexLine(bytesOf(payload));
  return payload.data === "" ? h("span", { class: "null" }, "empty") : payload.data.slice(0, 300);
}

function hexLine(data) {
  return [...data.subarray(0, 32)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

/** A payload with a choice of how it is shown. */
export function payloadView(title, payload) {
  if (payload === null) {
    return h("div", { class: "payload" }, h("h3", {}, title), h("p", { class: "null" }, "null"));
  }
  const isText = payload.kind === "text";
  const ways = isText
    ? (isJson(payload.data) ? ["JSON", "Text", "Hex"] : ["Text", "Hex"])
    : ["Hex"];
  const shown = h("pre", { tabindex: "0", "aria-label": title });
  const buttons = ways.map((way) =>
    h("button", { type: "button", class: "quiet", onclick: () => show(way) }, way)
  );
  const size = payload.is_truncated
    ? `${bytes(bytesOf(payload).length)} of ${bytes(payload.size_bytes)} shown`
    : bytes(payload.size_bytes);

  function show(way) {
    buttons.forEach((button) =>
      button.setAttribute("aria-pressed", String(button.textContent === way))
    );
    shown.classList.toggle("hex", way === "Hex");
    if (way === "Hex") shown.replaceChildren(hex(bytesOf(payload)));
    else shown.replaceChildren(...((way === "JSON" && pretty(payload.data)) || [payload.data]));
  }

  show(ways[0]);
  return h(
    "div",
    { class: "payload" },
    h(
      "div",
      { class: "fields" },
      h("h3", {}, title),
      h("span", { class: "hint" }, size),
      buttons,
      h("button", {
        type: "button",
        class: "quiet",
        "aria-label": `Copy the ${title.toLowerCase()}`,
        onclick: () => copy(payload.data),
      }, "Copy"),
    ),
    shown,
  );
}
