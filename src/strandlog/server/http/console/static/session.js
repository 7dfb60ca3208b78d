// The user's session: who is signed in, and what that user may do.
//
// The browser holds the session as a cookie that scripts cannot read. The broker checks every
// request; the permissions here only decide what the console offers.
//
// Events: "change" when the user becomes known, and when another user, or none, is signed in; "lost"
// when a request was answered with 401; "back" when the same user is signed in again.

export const SESSION_ADDRESS = "/api/v1/session";
class UserSession extends EventTarget {
  constructor() {
    super();
    this.status = null; // the broker's response; null until it is known
    this.isLost = false;
  }

  get user() {
    return this.status?.user ?? null;
  }

  get mode() {
    return this.status?.authentication ?? "required";
  }

  /** Whether a user may sign in: none is signed in, and the broker has users. */
  get offersLogin() {
    return this.user === null && this.mode !== "none" && this.status?.has_users;
  }

  /** Whether signing in may show more: no user is signed in, and not everything is allowed. */
  get wantsLogin() {
    return this.offersLogin && !this.status?.can_create_topics;
  }

  /** Returns whether the user may perform an operation on the cluster. */
  may(operation) {
    return this.status?.cluster_operations.includes(operation) ?? false;
  }

  /** Returns why an action is not available. */
  lacks(operation, resource) {
    return `${
      this.status?.principal ?? "The user"
    } lacks the permission ${operation} on ${resource}.`;
  }

  /** Stores the broker's response to a login, or to the request for the current user. */
  take(status) {
    const isSame = this.status !== null && this.status.principal === status.principal;
    const wasLost = this.isLost;
    this.status = status;
    this.isLost = false;
    if (!isSame) this.dispatchEvent(new Event("change"));
    else if (wasLost) this.dispatchEvent(new Event("back"));
  }

  /** Called when a request was answered with 401. */
  lose() {
    if (this.isLost) return;
    this.isLost = true;
    this.dispatchEvent(new Event("lost"));
  }

  /** Resolves when a user is signed in again; rejects if the signal aborts first. */
  untilBack(signal) {
    if (!this.isLost) return Promise.resolve();
    return new Promise((resolve, reject) => {
      for (const name of ["back", "change"]) {
        this.addEventListener(name, resolve, { once: true, signal });
      }
      signal?.addEventListener("abort", () => reject(signal.reason), { once: true });
    });
  }
}

export const session = new UserSession();
