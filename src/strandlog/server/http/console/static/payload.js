// Displays a key or a value: formatted JSON, text or a hex dump.
//
// JSON is formatted from its tokens instead of being parsed into JavaScript values, because large
// numbers would lose precision. A payload that the broker decoded with a schema is JSON text.

import { copy, h } from "./dom.js";
import { bytes } from "./format.js";

const MAX_JSON = 300_000; // maximum number of characters that are formatted and coloured
const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|[{}[\],:]|\s+/gy;
const HEX_COLUMNS = 16;
const CONTROL = /(?![\t\n\r])\p{Cc}/gu;
const DELETE = 0x7f;

/** Replaces control characters, which are not visible, with symbols such as ␀. */
function visible(text) {
  return text.replace(CONTROL, (letter) => {
    const code = letter.codePointAt(0);
    return code > DELETE ? "�" : String.fromCodePoint(code === DELETE ? 0x2421 : 0x2400 + code);
  });
}

function isJson(text) {
  if (!/^\s*[[{]/.test(text)) return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** Splits JSON into tokens without whitespace; returns null if it is invalid. */
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

/** Formats JSON as nodes with one item per line; returns null if that is not possible. */
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

/** Returns a hex dump with offset, hex codes and text, 16 bytes per line. */
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

/** Returns a one-line preview of a payload. */
export function preview(payload) {
  if (payload === null) return h("span", { class: "null" }, "null");
  if (payload.kind === "base64") return hexLine(bytesOf(payload));
  return payload.data === ""
    ? h("span", { class: "null" }, "empty")
    : visible(payload.data.slice(0, 300));
}

function hexLine(data) {
  return [...data.subarray(0, 32)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

function schemaText({ id, subject, type }) {
  const names = { AVRO: "Avro", JSON: "JSON", PROTOBUF: "Protobuf" };
  return `${names[type] ?? type} schema ${id}, ${subject}`;
}

/** Shows a payload, with a choice of formats. */
export function payloadView(title, payload) {
  if (payload === null) {
    return h("div", { class: "payload" }, h("h3", {}, title), h("p", { class: "null" }, "null"));
  }
  const isText = payload.kind === "text";
  const isDecoded = payload.schema && !payload.schema.error;
  const ways = isText
    ? [...(isJson(payload.data) ? ["JSON", "Text"] : ["Text"]), ...(isDecoded ? [] : ["Hex"])]
    : ["Hex"];
  const shown = h("pre", { tabindex: "0", "aria-label": title });
  const buttons = ways.map((way) =>
    h("button", { type: "button", class: "light", onclick: () => show(way) }, way)
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
    else {
      shown.replaceChildren(
        ...((way === "JSON" && pretty(payload.data)) || [visible(payload.data)]),
      );
    }
  }

  const isBinary = payload.data.search(CONTROL) >= 0 && ways.includes("Hex");
  show(isBinary ? "Hex" : ways[0]);
  return h(
    "div",
    { class: "payload" },
    h(
      "div",
      { class: "fields" },
      h("h3", {}, title),
      h("span", { class: "hint" }, size),
      payload.schema ? h("span", { class: "hint" }, schemaText(payload.schema)) : null,
      buttons,
      h("button", {
        type: "button",
        class: "light",
        "aria-label": `Copy the ${title.toLowerCase()}`,
        onclick: () => copy(payload.data),
      }, "Copy"),
    ),
    payload.schema?.error
      ? h("p", { class: "wrong" }, `Not decoded: ${payload.schema.error}`)
      : null,
    shown,
  );
}
