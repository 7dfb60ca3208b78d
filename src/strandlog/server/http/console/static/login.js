// The login page and the user menu.
//
// The page is a dialog that covers everything, so that a page with half-written input is still
// there after a session has ended and the same user has signed in again.

import { peekSession, post, remove } from "./api.js";
import { field } from "./components.js";
import { h, toast } from "./dom.js";
import { live } from "./live.js";
import { session, SESSION_ADDRESS } from "./session.js";

let shown = null;

/** Shows the login page. If `canCancel` is set, the user can close it without signing in. */
export function askForLogin(words, { canCancel = false } = {}) {
  if (shown) return;
  const user = h("input", {
    name: "user",
    autocomplete: "username",
    autocapitalize: "off",
    spellcheck: "false",
    required: true,
    maxlength: "255",
  });
  const password = h("input", {
    name: "password",
    type: "password",
    autocomplete: "current-password",
    required: true,
  });
  const wrong = h("p", { class: "wrong", role: "alert" });
  const button = h("button", { class: "main", type: "submit" }, "Sign in");
  const cancel = h("button", { type: "button", onclick: () => element.close() }, "Cancel");
  const form = h(
    "form",
    { class: "panel", novalidate: true, onsubmit: send },
    h("img", { src: "/console/icon.svg", alt: "", width: "40", height: "40" }),
    h("h1", { id: "login-title" }, "Sign in to strandlog"),
    words ? h("p", { class: "soft", role: "status" }, words) : null,
    isSecureContext ? null : h(
      "p",
      { class: "banner" },
      "This connection is not encrypted: the network can read the password.",
    ),
    h("div", { class: "form" }, field("User", user), field("Password", password)),
    wrong,
    h("div", { class: "actions" }, canCancel ? cancel : null, button),
  );
  let isDone = canCancel;
  const element = h("dialog", {
    class: "login",
    "aria-labelledby": "login-title",
    onclose: closed,
  }, form);

  async function send(event) {
    event.preventDefault();
    wrong.textContent = "";
    const empty = [user, password].find((input) => input.value === "");
    if (empty) {
      wrong.textContent = `Enter the ${empty.name}.`;
      empty.focus();
      return;
    }
    button.disabled = true;
    try {
      const status = await post(SESSION_ADDRESS, { user: user.value, password: password.value });
      isDone = true;
      element.close();
      session.take(status);
    } catch (problem) {
      wrong.textContent = problem.status === 401 ? "Wrong user or password." : problem.message;
      password.value = "";
      password.focus();
    } finally {
      button.disabled = false;
    }
  }

  /** Opens the page again if it was closed without a login; browsers close dialogs on Escape. */
  function closed() {
    if (!isDone) {
      element.showModal();
      return;
    }
    document.removeEventListener("visibilitychange", look);
    shown = null;
    element.remove();
  }

  /** Continues if the user has signed in in another tab. */
  async function look() {
    const status = document.hidden ? null : await peekSession().catch(() => null);
    if (status === null || canCancel || !element.open) return;
    isDone = true;
    element.close();
    session.take(status);
  }

  document.addEventListener("visibilitychange", look);
  shown = element;
  document.body.append(element);
  element.showModal();
  user.focus();
}

async function signOut() {
  try {
    await remove(SESSION_ADDRESS);
  } catch (problem) {
    if (problem.status !== 401) {
      toast(problem.message);
      return;
    }
  }
  startOver();
}

/** Reloads the page for another user, so that nothing that the previous user saw remains. */
export function startOver() {
  live.discard();
  location.reload();
}

const METHODS = {
  session: "Signed in with a password",
  password: "The browser sends a password",
  token: "The browser sends a token",
  certificate: "Signed in with a certificate",
};

/** Shows the user menu, or a button to sign in. */
export function showUser(place) {
  if (session.user === null && !session.offersLogin) {
    place.replaceChildren();
    return;
  }
  if (session.user === null) {
    place.replaceChildren(
      h("button", {
        type: "button",
        onclick: () => askForLogin("", { canCancel: true }),
      }, "Sign in"),
    );
    return;
  }
  const out = h("button", { type: "button", onclick: signOut }, "Sign out");
  const menu = h(
    "div",
    { id: "user-menu", class: "user-menu panel", popover: "auto" },
    h("strong", {}, session.user),
    h("span", { class: "soft" }, METHODS[session.status.method]),
    session.status.method === "session" ? out : null,
  );
  const button = h(
    "button",
    {
      type: "button",
      class: "quiet user",
      popovertarget: "user-menu",
      title: `Signed in as ${session.user}`,
      "aria-label": `User menu of ${session.user}`,
    },
    h("span", {}, session.user),
    h("span", { "aria-hidden": "true" }, "▾"),
  );
  place.replaceChildren(button, menu);
}

/** Shows the login page because a request was answered with 401. */
export function sessionLost() {
  const words = "Your session has ended. Sign in to continue where you were.";
  askForLogin(session.user === null ? "" : words);
}
