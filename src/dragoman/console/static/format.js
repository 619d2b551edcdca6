// Times, sizes and short names as people read them.

export function age(text, now = Date.now()) {
  const then = typeof text === "number" ? text * 1000 : Date.parse(text);
  if (!then) return "";
  const seconds = Math.max(0, Math.round((now - then) / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

export function clock(text) {
  const date = new Date(typeof text === "number" ? text * 1000 : text);
  if (Number.isNaN(date.getTime())) return "";
  const time = date.toLocaleTimeString([], { hour12: false });
  const today = date.toDateString() === new Date().toDateString();
  const day = today ? "" : `${date.toLocaleDateString([], { day: "numeric", month: "short" })} `;
  return `${day}${time}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

export function moment(text) {
  const date = new Date(typeof text === "number" ? text * 1000 : text);
  return Number.isNaN(date.getTime()) ? "" : date.toLocaleString([], { hour12: false });
}

export function size(bytes) {
  if (bytes < 1024) return `${bytes} bytes`;
  if (bytes < 1024 * 1024) return `${(bytes / 1024).toFixed(1)} KiB`;
  return `${(bytes / 1024 / 1024).toFixed(1)} MiB`;
}

// Ids begin with a time, so the end tells them apart.
export const shortId = (id) => (id.length > 14 ? `${id.slice(0, 4)}…${id.slice(-8)}` : id);

export const number = (value) => value.toLocaleString("en");

// A readable form of a text that may hold control characters or marks of direction.
export const plain = (text) =>
  String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");

// The host of a link of the web; empty if it is another kind of address.
export function linkHost(url) {
  try {
    const parsed = new URL(url);
    return /^https?:$/.test(parsed.protocol) && !parsed.username ? parsed.host : "";
  } catch {
    return "";
  }
}

export function id() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
