// Calls of A2A 1.0 over JSON-RPC, as the chat makes them, each recorded for the view of the wire.

import { events, Failure, loggedOut } from "./api.js";
import { id } from "./format.js";
import { URIS } from "./payments.js";

export const RESUME = "urn:dragoman:resume:v1";
export const GRANT = "urn:dragoman:grant:v1";
export const SCHEMAS = "urn:dragoman:skill-schema:v1";
const KEPT = 200; // exchanges
const LONGEST = 200_000; // characters of a recorded event

export class Fault extends Error {
  constructor(error) {
    super(error.message || "The agent answered with an error.");
    this.code = error.code;
    this.data = error.data;
  }
}

// The server did not answer, or its answer broke off.
export class Away extends Error {}

// What was sent and received, for all conversations of one agent.
export class Wire {
  exchanges = [];
  listeners = new Set();

  record(exchange) {
    const last = this.exchanges[this.exchanges.length - 1];
    const again = exchange.repeat && last?.repeat && last.params.id === exchange.params.id;
    if (again) exchange.times = (last.times || 1) + 1;
    this.exchanges = [...this.exchanges.slice(0, again ? -1 : undefined).slice(-KEPT), exchange];
    this.changed();
    return exchange;
  }

  changed() {
    for (const listener of this.listeners) listener();
  }
}

export class Agent {
  constructor(path) {
    this.url = `/console/${path}/`;
    this.wire = new Wire();
    this.number = 0;
  }

  // A call that repeats the one before takes its place in the record.
  async request(method, params, { signal, headers = {}, repeat = false } = {}) {
    const sent = {
      "content-type": "application/json",
      "a2a-version": "1.0",
      "x-dragoman-console": "1",
      "a2a-extensions": URIS.join(", "),
      ...headers,
    };
    const body = { jsonrpc: "2.0", id: ++this.number, method, params };
    const exchange = this.wire.record({
      key: id(), at: Date.now(), method, url: this.url, sent, body, status: 0, received: {},
      events: [], state: "open", params, repeat,
    });
    try {
      const response = await fetch(this.url, {
        method: "POST", headers: sent, body: JSON.stringify(body), signal, cache: "no-store",
      });
      exchange.status = response.status;
      exchange.received = Object.fromEntries(response.headers);
      this.wire.changed();
      if ([502, 503, 504].includes(response.status)) throw new Away(`HTTP ${response.status}`);
      if (loggedOut(response)) throw new Failure(401, "The session has ended.");
      return { response, exchange };
    } catch (error) {
      exchange.state = signal?.aborted ? "interrupted" : "failed";
      exchange.error = String(error.message || error);
      this.wire.changed();
      throw signal?.aborted || !(error instanceof TypeError) ? error : new Away(exchange.error);
    }
  }

  async call(method, params, options) {
    const { response, exchange } = await this.request(method, params, options);
    return this.whole(response, exchange);
  }

  // The result of an answer that is not a stream.
  async whole(response, exchange) {
    let text;
    try {
      text = await response.text();
    } catch (error) {
      exchange.state = "failed";
      exchange.error = String(error.message || error);
      this.wire.changed();
      throw new Away(exchange.error);
    }
    exchange.state = "done";
    exchange.events.push({ data: text.slice(0, LONGEST), at: Date.now() });
    this.wire.changed();
    return result(text, exchange, this.wire);
  }

  // Yields the results of a stream, each with the place of its event.
  async *stream(method, params, options = {}) {
    const headers = { accept: "text/event-stream", "a2a-extensions": [RESUME, ...URIS].join(", "), ...options.headers };
    const { response, exchange } = await this.request(method, params, { ...options, headers });
    const kind = response.headers.get("content-type") || "";
    if (!kind.startsWith("text/event-stream")) {
      yield { place: "", value: await this.whole(response, exchange) };
      return;
    }
    try {
      for await (const event of events(response)) {
        exchange.place = event.id || exchange.place;
        exchange.events.push({ id: event.id, data: event.data.slice(0, LONGEST), at: Date.now() });
        if (exchange.events.length > 2000) exchange.events.splice(10, 500);
        this.wire.changed();
        yield { place: event.id, value: result(event.data, exchange, this.wire) };
      }
      exchange.state = "done";
    } catch (error) {
      if (exchange.undecoded) throw error;
      exchange.state = options.signal?.aborted ? "interrupted" : "failed";
      exchange.error = String(error.message || error);
      throw options.signal?.aborted || !(error instanceof TypeError) ? error : new Away(exchange.error);
    } finally {
      if (exchange.state === "open") exchange.state = options.signal?.aborted ? "interrupted" : "closed";
      this.wire.changed();
    }
  }
}

// The result of an answer. One that cannot be decoded is noted, with the place where.
function result(text, exchange, wire) {
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    return undecoded(`It is not JSON: ${error.message}`);
  }
  if (found?.error) throw new Fault(found.error);
  if (found?.message && found.result === undefined) throw new Error(found.message); // of the console
  const result = found?.result;
  if (result === null || typeof result !== "object") return undecoded("result: it must be an object");
  const sends = exchange.method.startsWith("Send") || exchange.method === "SubscribeToTask";
  if (sends && !RESULTS.some((name) => result[name]?.constructor === Object)) {
    return undecoded(`result: it must have one of ${RESULTS.join(", ")}`);
  }
  return result;

  function undecoded(why) {
    exchange.undecoded = why;
    exchange.state = "failed";
    wire.changed();
    throw new Error(`The answer could not be decoded. ${why}.`);
  }
}

const RESULTS = ["task", "message", "statusUpdate", "artifactUpdate"];

// -- the fold of events into tasks

export function folded(task, value) {
  if (value.task) return value.task;
  const update = value.statusUpdate;
  if (update) {
    const known = task || { id: update.taskId, contextId: update.contextId };
    const history = [...(known.history || [])];
    if (known.status?.message) history.push(known.status.message);
    return { ...known, status: update.status, history, metadata: { ...known.metadata, ...update.metadata } };
  }
  const chunk = value.artifactUpdate;
  if (chunk) {
    const known = task || { id: chunk.taskId, contextId: chunk.contextId, status: { state: "TASK_STATE_WORKING" } };
    const artifacts = [...(known.artifacts || [])];
    const index = artifacts.findIndex((each) => each.artifactId === chunk.artifact.artifactId);
    if (index < 0) artifacts.push(chunk.artifact);
    else if (chunk.append) artifacts[index] = joined(artifacts[index], chunk.artifact);
    else artifacts[index] = chunk.artifact;
    return { ...known, artifacts };
  }
  return task;
}

function joined(artifact, more) {
  const parts = [...artifact.parts];
  for (const part of more.parts) {
    const last = parts[parts.length - 1];
    if (last?.text !== undefined && part.text !== undefined && !part.filename) {
      parts[parts.length - 1] = { ...last, text: last.text + part.text };
    } else parts.push(part);
  }
  return { ...artifact, parts };
}

export const stateName = (task) =>
  (task?.status?.state || "").replace(/^TASK_STATE_/, "").toLowerCase().replace(/_/g, "-");

// Whether it waits for somebody else than the agent.
export const interrupted = (task) => ["input-required", "auth-required"].includes(stateName(task));

export const ended = (task) => ["completed", "failed", "canceled", "rejected"].includes(stateName(task));

// A part as A2A has it, in the form that is drawn.
export function drawn(part) {
  const more = { mediaType: part.mediaType, filename: part.filename };
  if (part.text !== undefined) return { kind: "text", text: part.text, ...more };
  if (part.url !== undefined) return { kind: "link", url: part.url, ...more };
  if (part.raw !== undefined) return { kind: "file", raw: part.raw, size: Math.floor((part.raw.length * 3) / 4), ...more };
  return { kind: "data", data: part.data, ...more };
}
