// The scenes of scenes.py for the JavaScript callers, which print the same lines about them.
// Usage: node CALLER URL BINDING [SCENE...], in a folder that has the packages.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { setTimeout as pause } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const PATIENCE = 15_000;
const BYTES = Buffer.from([0, 255, 254, ...Buffer.from(" bytes")]).toString("base64");
const QUIET = 400; // in which a server may send signs of life
const FILE = "https://files.example/a?b=c";
const ENDED = ["completed", "failed", "canceled", "rejected"];

// What the SDK has no way to say.
export class Absent extends Error {}

// A part of the SDK, or another package.
export const sdk = (part = "") => load(`@a2a-js/sdk/dist/${part}index.js`);
export const load = (path) => import(`${pathToFileURL(process.cwd())}/node_modules/${path}`);

export const newId = randomUUID;

// ---- one form for all ------------------------------------------------------------------------

// A task, message or event in one form, from the JSON of any dialect.
export function plain(told) {
  if (!("status" in told || "artifact" in told || "parts" in told)) [told] = Object.values(told);
  if (told.artifact) {
    return { kind: "artifact", append: !!told.append, artifact: artifactOf(told.artifact) };
  }
  if (!told.status) return { kind: "message", ...messageOf(told) };
  const said = told.status.message;
  const found = {
    state: stateOf(told.status.state),
    said: said ? text(messageOf(said).parts) : "",
    context: told.contextId ?? "",
  };
  if ("taskId" in told) return { kind: "status", final: told.final ?? null, ...found };
  return {
    kind: "task",
    id: told.id,
    artifacts: (told.artifacts ?? []).map(artifactOf),
    history: (told.history ?? []).map(messageOf),
    ...found,
  };
}

const stateOf = (name) => name.replace("TASK_STATE_", "").toLowerCase().replaceAll("_", "-");
const text = (parts) => parts.map((part) => part.text ?? "").join("");
const artifactOf = (told) => ({ name: told.name ?? "", parts: told.parts.map(partOf) });
const messageOf = (told) => ({
  role: String(told.role).replace("ROLE_", "").toLowerCase(),
  parts: (told.parts ?? []).map(partOf),
});

function partOf(told) {
  if (told.file) {
    const { bytes, uri, name, mimeType } = told.file;
    return { ...(bytes ? { bytes } : { url: uri }), name, type: mimeType };
  }
  if ("raw" in told || "url" in told) {
    const held = "raw" in told ? { bytes: told.raw } : { url: told.url };
    return { ...held, name: told.filename, type: told.mediaType };
  }
  return "data" in told ? { data: told.data } : { text: told.text ?? "" };
}

// What an SDK throws: its class, and the code that it carries in some way.
function fault(error) {
  const code = error.code ?? error.errorResponse?.error?.code ?? error.statusCode ?? null;
  return { error: error.constructor.name, said: String(error.message).slice(0, 300), code };
}

// ---- a place for webhooks --------------------------------------------------------------------

async function sink() {
  const posts = [];
  const server = createServer((request, response) => {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", () => {
      posts.push({ headers: request.headers, body: JSON.parse(Buffer.concat(chunks)) });
      response.end();
    });
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return {
    url: `http://127.0.0.1:${server.address().port}/hook`,
    async ended() {
      while (!posts.some((post) => ENDED.includes(plain(post.body).state))) await pause(20);
      server.close();
      server.closeAllConnections();
      return posts;
    },
  };
}

// ---- the scenes ------------------------------------------------------------------------------

const said = (words) => [{ text: words }];

function needs(caller, name) {
  if (!caller[name]) throw new Absent();
}

const begun = async (caller, words) =>
  plain(await caller.send(said(words), { wait: false })).id;

async function until(caller, task, ...states) {
  for (;;) {
    const found = plain(await caller.get(task));
    if (states.includes(found.state)) return found;
    await pause(20);
  }
}

async function error(doing) {
  try {
    await doing();
  } catch (met) {
    if (met instanceof Absent) throw met;
    return fault(met);
  }
  return { error: null, said: "", code: null };
}

async function all(stream) {
  const events = [];
  for await (const event of stream) events.push(plain(event));
  return events;
}

function streamed(events) {
  const chunks = events.filter((event) => event.kind === "artifact");
  return {
    kinds: events.map((event) => event.kind),
    states: events.filter((event) => event.state).map((event) => event.state),
    append: chunks.map((chunk) => chunk.append),
    text: chunks.map((chunk) => text(chunk.artifact.parts)).join(""),
    final: events.filter((event) => event.kind === "status").map((event) => event.final),
  };
}

async function asked(caller) {
  const first = plain(await caller.send(said("ask")));
  const ids = { task: first.id, context: first.context };
  return [first, plain(await caller.send(said("this one"), ids))];
}

const values = (set) => [...new Set(set)].sort();
const spoken = (history) => history.map((one) => [one.role, text(one.parts)]);

const SCENES = {
  card: (caller) => caller.card(),

  send: async (caller) => plain(await caller.send(said("hello é 😀"))),

  async poll(caller) {
    const first = plain(await caller.send(said("count 20"), { wait: false }));
    const done = await until(caller, first.id, ...ENDED);
    return { first: first.state, state: done.state, artifacts: done.artifacts };
  },

  async data(caller) {
    const data = { list: [1, 1.5, true, "x"], deep: { text: "" } };
    return plain(await caller.send([{ data }]));
  },

  "file bytes": async (caller) =>
    plain(await caller.send([{ bytes: BYTES, name: "a.png", type: "image/png" }])),

  "file url": async (caller) =>
    plain(await caller.send([{ url: FILE, name: "a.csv", type: "text/csv" }])),

  stream: async (caller) => streamed(await all(caller.stream(said("count 5")))),

  async "stream reply"(caller) {
    const events = await all(caller.stream(said("say hi")));
    return { kinds: events.map((event) => event.kind), text: text(events[0].parts ?? []) };
  },

  "stream refused": (caller) => error(() => all(caller.stream([]))),

  async ask(caller) {
    const [first, done] = await asked(caller);
    return {
      asked: first.state,
      said: first.said,
      "same task": done.id === first.id,
      "same context": done.context === first.context,
      state: done.state,
      artifacts: done.artifacts,
    };
  },

  async history(caller) {
    const [, done] = await asked(caller);
    const whole = plain(await caller.get(done.id));
    const short = plain(await caller.get(done.id, 1));
    return { whole: spoken(whole.history), short: spoken(short.history) };
  },

  async listing(caller) {
    needs(caller, "list");
    const first = plain(await caller.send(said("one")));
    const second = plain(await caller.send(said("two"), { context: first.context }));
    const listed = (await caller.list(first.context)).map(plain);
    return {
      found: String(listed.map((task) => task.id)) === String([second.id, first.id]),
      states: listed.map((task) => task.state),
    };
  },

  async cancel(caller) {
    const task = await begun(caller, "wait");
    await until(caller, task, "working");
    return { state: plain(await caller.cancel(task)).state };
  },

  async "cancel ended"(caller) {
    const { id } = plain(await caller.send(said("hello")));
    return error(() => caller.cancel(id));
  },

  "cancel unknown": (caller) => error(() => caller.cancel("unknown")),
  "get unknown": (caller) => error(() => caller.get("unknown")),

  async subscribe(caller) {
    const task = await begun(caller, "wait");
    await until(caller, task, "working");
    const events = [];
    let heard;
    const first = new Promise((resolve) => (heard = resolve));
    const listening = (async () => {
      for await (const event of caller.subscribe(task)) heard(events.push(plain(event)));
    })();
    await Promise.race([listening, first, pause(1000)]); // some say nothing at first
    await pause(QUIET);
    await caller.cancel(task);
    await listening;
    return streamed(events);
  },

  "subscribe unknown": (caller) => error(() => all(caller.subscribe("unknown"))),

  async webhook(caller) {
    const task = await begun(caller, "wait");
    const given = { id: "one", url: "http://127.0.0.1:9/a", token: "secret" };
    try {
      const made = await caller.addWebhook(task, given);
      return { made, got: await caller.webhook(task, "one") };
    } finally {
      await caller.cancel(task);
    }
  },

  async "webhook list"(caller) {
    const task = await begun(caller, "wait");
    try {
      for (const id of ["one", "two"]) {
        await caller.addWebhook(task, { id, url: `http://127.0.0.1:9/${id}` });
      }
      return { ids: (await caller.webhooks(task)).map((one) => one.id).sort() };
    } finally {
      await caller.cancel(task);
    }
  },

  async "webhook delete"(caller) {
    const task = await begun(caller, "wait");
    try {
      await caller.addWebhook(task, { id: "one", url: "http://127.0.0.1:9/one" });
      await caller.deleteWebhook(task, "one");
      return await error(() => caller.webhook(task, "one"));
    } finally {
      await caller.cancel(task);
    }
  },

  async delivery(caller) {
    const { url, ended } = await sink();
    await caller.send(said("count 2"), { webhook: { id: "one", url, token: "secret" } });
    const posts = await ended();
    return {
      type: values(posts.map((post) => post.headers["content-type"])),
      token: values(posts.map((post) => post.headers["x-a2a-notification-token"])),
      keys: values(posts.map(({ body }) => body.kind ?? Object.keys(body).sort().join())),
      last: plain(posts.at(-1).body).state,
    };
  },

  reply: async (caller) => plain(await caller.send(said("say hi"))),
  fail: async (caller) => plain(await caller.send(said("fail"))),
  extended: (caller) => error(() => caller.extendedCard()),
  refused: (caller) => error(() => caller.send([])),
};

// ---- the play --------------------------------------------------------------------------------

async function played(scene, caller) {
  const late = pause(PATIENCE).then(() => {
    throw new Error(`no end after ${PATIENCE} ms`);
  });
  try {
    return { ok: true, seen: await Promise.race([scene(caller), late]) };
  } catch (met) {
    if (met instanceof Absent) return { ok: "absent", seen: {} };
    return { ok: false, seen: { ...fault(met), where: String(met.stack).split("\n") } };
  }
}

// Meet the agent at the URL over the binding, and print a line for each scene.
export async function play(connect) {
  const [url, binding, ...names] = process.argv.slice(2);
  process.on("unhandledRejection", () => {}); // of a scene that was given up
  const caller = await connect(url, binding);
  for (const name of names.length ? names : Object.keys(SCENES)) {
    const line = { scene: name, ...(await played(SCENES[name], caller)) };
    process.stdout.write(`${JSON.stringify(line)}\n`);
  }
  process.exit();
}
