// Creates elements without parsing markup: strings always become text nodes, so the contents of a
// record or a name can never inject HTML.

const SVG = "http://www.w3.org/2000/svg";

/** Creates an element. Attributes that are null or false are omitted; on… adds a listener. */
export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...present(children));
  return element;
}

/** Flattens children for append() and drops those that are null, undefined or false. */
export function present(children) {
  return [children].flat(Infinity).filter((child) =>
    child !== null && child !== undefined && child !== false
  );
}

const LONG_PART = 24; // characters

/**
 * Returns a name that may break after its dots, dashes, underscores, slashes and colons. A part that
 * is too long for a column may break anywhere.
 */
export function breakable(name) {
  return name.split(/(?<=[._\-/:])/).flatMap((
    part,
  ) => [part.length > LONG_PART ? h("span", { class: "anywhere" }, part) : part, h("wbr")]);
}

const ICONS = {
  overview: "M4 13h4v7H4zM10 4h4v16h-4zM16 9h4v11h-4z",
  topics: "M4 6h16M4 12h16M4 18h10",
  groups:
    "M9 11a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM3 20c0-3.5 2.5-6 6-6s6 2.5 6 6M16 5a3 3 0 0 1 0 6M17.500 14.500c2.200.700 3.500 2.600 3.500 5.500",
  pipelines: "M4 6h5l3 6h8M4 18h5l3-6M17 9l3 3-3 3",
  broker: "M4 5h16v6H4zM4 13h16v6H4zM8 8h.01M8 16h.01",
  nothing: "M4 8l8-4 8 4v8l-8 4-8-4zM4 8l8 4 8-4M12 12v8",
  locked: "M6 11h12v9H6zM8.500 11V8a3.500 3.500 0 0 1 7 0v3M12 15v1.500",
  trouble: "M12 4l9 16H3zM12 10v4M12 17h.01",
};

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  for (
    const [key, value] of Object.entries({
      viewBox: "0 0 24 24",
      fill: "none",
      stroke: "currentColor",
      "stroke-width": "1.8",
      "stroke-linecap": "round",
      "stroke-linejoin": "round",
      "aria-hidden": "true",
    })
  ) svg.setAttribute(key, value);
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** Shows a message that disappears after a few seconds. */
export function toast(text) {
  const shown = h("div", { class: "toast" }, text);
  document.getElementById("toasts").append(shown);
  setTimeout(() => shown.remove(), 5000);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch {
    toast("The browser does not allow this page to copy");
  }
}
