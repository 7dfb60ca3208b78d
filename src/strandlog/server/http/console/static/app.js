// The frame of the console: routing, navigation, theme and keyboard shortcuts.

import { recolour } from "./chart.js";
import { checkSession } from "./api.js";
import { h, icon } from "./dom.js";
import { live } from "./live.js";
import { sessionLost, showUser, startOver } from "./login.js";
import { Page } from "./page.js";
import { session } from "./session.js";
import { dialog, failed, forbidden, nothing } from "./components.js";
import { broker } from "./views/broker.js";
import { group } from "./views/group.js";
import { groups } from "./views/groups.js";
import { overview } from "./views/overview.js";
import { pipeline } from "./views/pipeline.js";
import { pipelines } from "./views/pipelines.js";
import { produce } from "./views/produce.js";
import { records } from "./views/records.js";
import { topic } from "./views/topic.js";
import { topics } from "./views/topics.js";

// Each page's name, title, address and shortcut key, and the operation on the cluster that it
// requires.
const ALL_PAGES = [
  ["overview", "Overview", "#/", "o", "DESCRIBE"],
  ["topics", "Topics", "#/topics", "t"],
  ["groups", "Groups", "#/groups", "g"],
  ["pipelines", "Pipelines", "#/pipelines", "p", "DESCRIBE"],
  ["broker", "Broker", "#/broker", "b", "DESCRIBE"],
];
let pages = []; // those that the user may see

// The routes; an empty segment matches any name.
const ROUTES = [
  [[], overview],
  [["topics"], topics],
  [["topics", ""], topic],
  [["topics", "", "records"], records],
  [["topics", "", "produce"], produce],
  [["groups"], groups],
  [["groups", ""], group],
  [["pipelines"], pipelines],
  [["pipelines", ""], pipeline],
  [["broker"], broker],
];

/** Splits a hash such as "#/topics/a%2Fb?x=1" into path segments and query parameters. */
function parse(hash) {
  const [address, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = address === "" ? [] : address.split("/").map(decoded);
  return { parts, query: new URLSearchParams(query) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function viewOf(parts) {
  const fits = (pattern) =>
    pattern.length === parts.length &&
    pattern.every((each, number) => each === "" || each === parts[number]);
  return ROUTES.find(([pattern]) => fits(pattern))?.[1] ?? lost;
}

function lost(page) {
  page.begin("No such page");
  page.show(
    h(
      "div",
      { class: "panel" },
      nothing(
        "Page not found",
        "This page does not exist.",
        h("a", { class: "button", href: "#/" }, "Go to the overview"),
      ),
    ),
  );
}

function neededFor(name) {
  return ALL_PAGES.find(([page]) => page === name)?.[4];
}

function denied(page, name, needed) {
  page.begin(ALL_PAGES.find(([each]) => each === name)[1]);
  page.show(h("div", { class: "panel" }, forbidden(session.lacks(needed, "the cluster"))));
}

const main = document.getElementById("main");
let current = null;

function open(isFirst) {
  const route = parse(location.hash);
  if (route.parts.length === 0 && !session.may("DESCRIBE")) {
    location.replace("#/topics"); // the overview shows all topics and groups
    return;
  }
  current?.end();
  for (const left of document.querySelectorAll("dialog[open]:not(.login)")) left.close();
  current = new Page(main, route);
  main.replaceChildren();
  const needed = route.parts.length === 1 ? neededFor(route.parts[0]) : null;
  if (needed && !session.may(needed)) denied(current, route.parts[0], needed);
  else viewOf(route.parts)(current);
  markPage(route.parts[0] ?? "overview");
  if (isFirst !== true) {
    scrollTo(0, 0);
    current.heading.focus({ preventScroll: true });
  }
}

/** Skips the navigation without changing the address, which selects the page. */
function skip(event) {
  event.preventDefault();
  main.focus();
}

function markPage(name) {
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.page === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function buildNavigation() {
  pages = ALL_PAGES.filter(([, , , , needed]) => !needed || session.may(needed));
  const links = pages.map(([name, title, address]) =>
    h("a", { href: address, "data-page": name }, icon(name), title)
  );
  document.getElementById("nav").replaceChildren(...links);
}

// -- theme ------------------------------------------------------------------------------------

const system = matchMedia("(prefers-color-scheme: dark)");

function theme() {
  return document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");
}

function labelThemeButton() {
  const other = theme() === "dark" ? "light" : "dark";
  const button = document.getElementById("theme");
  button.textContent = theme() === "dark" ? "☀" : "☾";
  button.title = `Switch to ${other} (t)`;
  button.setAttribute("aria-label", `Switch to ${other} colours`);
}

function switchTheme() {
  const other = theme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = other;
  localStorage.setItem("strandlog.theme", other);
  labelThemeButton();
  recolour();
}

// -- keys -------------------------------------------------------------------------------------

const GO_MS = 1500; // maximum time between the two keys of a shortcut
let goSeenMs = -Infinity;

function typed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) {
    return;
  }
  if (event.target.closest("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const target = pages.find(([, , , key]) => key === event.key);
  if (event.timeStamp < goSeenMs + GO_MS && target) location.hash = target[2];
  else if (event.key === "g") {
    goSeenMs = performance.now();
    return;
  } else if (event.key === "/") {
    const search = main.querySelector("input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  } else if (event.key === "t") switchTheme();
  else if (event.key === "?") showKeys();
  goSeenMs = -Infinity;
}

function showKeys() {
  const keys = [
    ...pages.map(([, title, , key]) => [["g", key], title]),
    [["/"], "Search or filter on this page"],
    [["t"], "Switch between light and dark"],
    [["?"], "Show this list"],
    [["Esc"], "Leave a field or close a dialog"],
  ];
  const rows = keys.map((
    [pressed, meaning],
  ) => [h("dt", {}, pressed.map((key) => [h("kbd", {}, key), " "])), h("dd", {}, meaning)]);
  dialog({ title: "Keyboard shortcuts", content: h("dl", { class: "pairs-list" }, rows) });
}

// -- connection -------------------------------------------------------------------------------

const WORDS = { live: "Live", connecting: "Connecting", lost: "No connection", off: "" };

function showConnection() {
  const shown = document.getElementById("connection");
  shown.className = `connection ${live.state}`;
  shown.textContent = WORDS[live.state];
}

// -- start ------------------------------------------------------------------------------------

let isStarted = false;

/** Shows the console to the user who is signed in. */
function begin() {
  if (isStarted) {
    startOver();
    return;
  }
  isStarted = true;
  buildNavigation();
  showUser(document.getElementById("user"));
  showConnection();
  live.start();
  addEventListener("hashchange", open);
  open(true);
}

function findUser() {
  main.replaceChildren();
  checkSession().catch((problem) =>
    main.replaceChildren(h("div", { class: "panel" }, failed(problem, findUser)))
  );
}

session.addEventListener("change", begin);
session.addEventListener("lost", sessionLost);
labelThemeButton();
live.addEventListener("state", showConnection);
document.getElementById("theme").addEventListener("click", switchTheme);
document.querySelector(".skip").addEventListener("click", skip);
document.getElementById("keys").addEventListener("click", showKeys);
document.addEventListener("keydown", typed);
/**
 * Checks who is signed in: another tab may have signed out, or signed in another user, whose cookie
 * this tab now sends.
 */
function checkUser() {
  if (!document.hidden && isStarted && !session.isLost) checkSession().catch(() => {});
}

document.addEventListener("visibilitychange", checkUser);
addEventListener("pageshow", (event) => event.persisted && checkUser()); // from the page cache
system.addEventListener("change", () => {
  labelThemeButton();
  recolour();
});
findUser();
