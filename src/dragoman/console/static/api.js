// Requests to the operator's API, and streams of its events.

const BASE = "/console/api/";
const MINE = { "x-dragoman-console": "1" };
// Streams of all tabs together: a browser has six connections for one origin. One is for the chat.
const SLOTS = 3;
export const CHAT = 1;

export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// A server without the console for this browser answers as if there were none.
export const loggedOut = (response) => response.status === 404 && !response.headers.get("content-security-policy");

async function answered(response) {
  if (response.ok) return response;
  let message = `HTTP ${response.status}`;
  try {
    message = (await response.json()).message || message;
  } catch {
    // the body is not of the console
  }
  if (loggedOut(response)) throw new Failure(401, "The session has ended.");
  throw new Failure(response.status, message);
}

export async function get(path, signal) {
  const response = await fetch(BASE + path, { headers: MINE, signal, cache: "no-store" });
  return (await answered(response)).json();
}

export async function act(path, body = {}) {
  const headers = { ...MINE, "content-type": "application/json" };
  const options = { method: "POST", headers, body: JSON.stringify(body) };
  return (await answered(await fetch(BASE + path, options))).json();
}

export const address = (path) => BASE + path;

// -- server-sent events

export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      let end;
      while ((end = rest.search(/\r?\n\r?\n/)) >= 0) {
        const block = rest.slice(0, end);
        rest = rest.slice(end).replace(/^\r?\n\r?\n/, "");
        const event = { event: "message", id: "", data: "" };
        const data = [];
        for (const line of block.split(/\r?\n/)) {
          const colon = line.indexOf(":");
          if (colon <= 0) continue;
          const name = line.slice(0, colon);
          const text = line.slice(colon + 1).replace(/^ /, "");
          if (name === "data") data.push(text);
          else if (name in event) event[name] = text;
        }
        event.data = data.join("\n");
        if (data.length) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// Runs `work` with one of the streams that all tabs share; returns false if none is free. `more`
// is how many of them are for this kind of work only.
export async function withSlot(work, more = 0) {
  if (!navigator.locks) return more > 0 ? (await work(), true) : false;
  for (let slot = SLOTS + more - 1; slot >= 0; slot--) {
    const options = { ifAvailable: true };
    const ran = await navigator.locks.request(`dragoman-stream-${slot}`, options, async (lock) => {
      if (!lock) return false;
      await work();
      return true;
    });
    if (ran) return true;
  }
  return false;
}

export const pause = (milliseconds, signal) =>
  new Promise((done) => {
    if (signal.aborted) return done();
    const timer = setTimeout(done, milliseconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });

// Follows something until `stop` is called: by a stream if one is free, else by repeated reads.
// `stream` and `read` are functions that return the path; `on` gets the events, `online` whether
// the server answers.
export function follow({ stream, on, read, online, every = 1000 }) {
  const control = new AbortController();
  const { signal } = control;
  const streaming = async () => {
    const response = await answered(
      await fetch(BASE + stream(), { headers: MINE, signal, cache: "no-store" }),
    );
    online(true);
    for await (const event of events(response)) on(event.event, JSON.parse(event.data));
  };
  (async () => {
    let wait = 300;
    while (!signal.aborted) {
      try {
        if (await withSlot(streaming)) {
          wait = 300;
          await pause(200, signal); // the server has ended the stream
          continue;
        }
        await read(signal);
        online(true);
        wait = 300;
        await pause(every, signal);
      } catch (error) {
        if (signal.aborted) return;
        online(false, error);
        if (error.status === 404) return;
        if (error.status === 401) wait = 3000; // somebody may log in again in another tab
        await pause(wait, signal);
        wait = Math.min(wait * 1.6, 3000);
      }
    }
  })();
  return () => control.abort();
}
