// Formats numbers, sizes, times and durations.

const NOTHING = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Formats 1234567 as 1,234,567. */
export function count(number) {
  return number === null || number === undefined ? NOTHING : whole.format(number);
}

/** Returns "1 topic", "2 topics". */
export function counted(number, word, plural = `${word}s`) {
  return `${count(number)} ${number === 1 ? word : plural}`;
}

/** Returns "3 topics", or "2 of 3 topics" if not all are shown. */
export function someOf(shown, all, word) {
  return shown === all ? counted(all, word) : `${count(shown)} of ${counted(all, word)}`;
}

const STEPS = ["", "k", "M", "G", "T", "P"];

function scaled(number) {
  let step = 0;
  let left = Math.abs(number);
  while (left >= 999.5 && step < STEPS.length - 1) {
    left /= 1000;
    step += 1;
  }
  const digits = step === 0 && Number.isInteger(number)
    ? 0
    : left >= 99.95
    ? 0
    : left >= 9.995
    ? 1
    : 2;
  return [`${number < 0 ? "−" : ""}${left.toFixed(digits)}`, STEPS[step]];
}

/** Formats 1234567 as 1.23 MB. */
export function bytes(number) {
  if (number === null || number === undefined) return NOTHING;
  const [text, step] = scaled(number);
  return `${text} ${step}B`;
}

/** Formats 1234.5 as 1.23 k; the caller appends the unit. */
export function short(number) {
  if (number === null || number === undefined) return NOTHING;
  const [text, step] = scaled(number);
  return step ? `${text} ${step}` : text;
}

/** Formats a number on an axis: 13,105, but 1.23 M for a million and more. */
export function compact(number) {
  return number >= 1e6 ? short(number) : count(number);
}

export function byteRate(number) {
  return number === null || number === undefined ? NOTHING : `${bytes(number)}/s`;
}

/** Formats 1234.5 as 1.23 k records/s, or without a unit as 1.23 k/s. */
export function rate(number, unit = "records") {
  if (number === null || number === undefined) return NOTHING;
  return unit ? `${short(number)} ${unit}/s` : `${short(number)}/s`;
}

/** Formats a number of seconds, for example as 3.2 ms. */
export function seconds(number) {
  if (number === null || number === undefined) return NOTHING;
  if (number === 0) return "0 ms";
  if (number < 0.001) return `${(number * 1e6).toFixed(0)} µs`;
  if (number < 0.9995) return `${(number * 1000).toPrecision(3).replace(/\.0+$/, "")} ms`;
  return number < 60 ? `${number.toPrecision(3).replace(/\.0+$/, "")} s` : duration(number * 1000);
}

const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]];
const LARGEST = 2 ** 62; // "no limit" is 2**63 - 1, which a JavaScript number cannot represent

/** Returns whether the value of a setting means that there is no limit. */
export function isUnlimited(number) {
  return number < 0 || number >= LARGEST;
}

/** Formats a number of milliseconds, for example as 3 d 4 h. */
export function duration(ms) {
  if (ms === null || ms === undefined) return NOTHING;
  if (isUnlimited(ms)) return "no limit";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const parts = [];
  let left = ms;
  for (const [unit, size] of UNITS) {
    const number = Math.floor(left / size);
    if (number) parts.push(`${number} ${unit}`);
    left -= number * size;
  }
  return parts.slice(0, 2).join(" ");
}

/** Formats the retention of a topic; it does not apply to a topic that is only compacted. */
export function retention({ cleanup_policy: policy, retention_ms: ms, retention_bytes: limit }) {
  if (!policy.split(",").includes("delete")) return policy === "" ? "no limit" : NOTHING;
  if (isUnlimited(limit)) return duration(ms);
  return isUnlimited(ms) ? bytes(limit) : `${duration(ms)}, ${bytes(limit)}`;
}

const two = (number) => String(number).padStart(2, "0");

/** Formats a timestamp as 2026-11-16 06:21:05.123, in local time. */
export function time(ms) {
  if (ms === null || ms === undefined || ms < 0) return NOTHING;
  const at = new Date(ms);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const clock = [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":");
  return `${day} ${clock}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

/** Formats the time since a timestamp, for example as 5 s ago. */
export function ago(ms, now) {
  const passed = now - ms;
  return passed < 2000 ? "now" : `${duration(passed)} ago`;
}

/** Formats a timestamp as the value of a datetime-local input. */
export function fieldTime(ms) {
  return time(ms).slice(0, 19).replace(" ", "T");
}
