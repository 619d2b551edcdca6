// The chat with an agent: its conversations, and one of them. It calls the agent as its caller, and
// what it shows is in the agent's log.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { get } from "./api.js";
import { Agent, ended, Fault, interrupted, stateName } from "./a2a.js";
import { Composer } from "./composer.js";
import { current, follow } from "./following.js";
import { age, id, plain, shortId } from "./format.js";
import { LogIn } from "./login.js";
import { keepContext, keepReply, keepTask, keptContexts, keptReplies, keptTasks } from "./kept.js";
import { asksPayment } from "./payments.js";
import { Remote } from "./remote.js";
import { go, withParameters } from "./route.js";
import { Message, TaskTalk, Welcome } from "./talk.js";
import { Wire } from "./wire.js";

const agents = new Map(); // what was recorded of the wire outlives a change of the view
const LOOK = 3000; // milliseconds between two looks at a task that waits for somebody

export function Chat({ route, session, reload, onOnline }) {
  const key = route.argument || session.agents?.[0]?.key || "";
  const about = (session.agents || []).find((each) => each.key === key);
  if (!about) return html`<section class="page"><p class="empty">There is no such agent.</p></section>`;
  if (session.needsCaller) {
    return html`<section class="page scrolls"><div class="narrow"><h1>Chat with ${about.name}</h1>
      <p>The agent calls need a caller. Log in as one; to see the console does not make you one.</p>
      <${LogIn} session=${session} done=${reload} /></div></section>`;
  }
  return html`<${Conversation} key=${key} agent=${about} route=${route} session=${session} reload=${reload} onOnline=${onOnline} />`;
}

// The inspector does not know who it is for the agent.
function whoCalls(session) {
  if (session.source !== "agent") return `as ${session.caller || "anonymous"}`;
  return (session.schemes || []).some((each) => each.used) ? "with credentials" : "";
}

function connection(about) {
  if (!agents.has(about.key)) agents.set(about.key, new Agent(about.path));
  return agents.get(about.key);
}

function Conversation({ agent: about, route, session, reload, onOnline }) {
  const agent = connection(about);
  const context = route.parameters.get("context") || "";
  const [card, setCard] = useState(null);
  const [tasks, setTasks] = useState([]);
  const [replies, setReplies] = useState([]); // direct replies, and messages that have no task yet
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(0);
  const [contexts, setContexts] = useState([]);
  const [loading, setLoading] = useState(false);
  const [wire, setWire] = useState(false);
  const [dropped, setDropped] = useState(null);
  const [over, setOver] = useState(false);
  const running = useRef(new Map()); // the streams of this conversation, by task
  const shown = useRef({ context: "" }); // the conversation on the page; another one is another object
  const known = useRef([]);
  const end = useRef(null);
  known.current = tasks;

  useEffect(() => {
    get("agents").then(({ agents: found }) => {
      const mine = found.find((each) => each.key === about.key);
      setCard(mine?.card || null);
      if (mine?.error) setError(mine.error);
    }, (failed) => setError(failed.message));
    list();
    return () => stopAll();
  }, [about.key]);

  useEffect(() => {
    // a message may have been sent before the page was drawn
    if (context === shown.current.context && (tasks.length || replies.length || running.current.size)) return;
    stopAll();
    const here = (shown.current = { context });
    setTasks([]);
    setReplies(context && session.source === "agent" ? keptReplies(context) : []);
    setError("");
    if (context) load(here);
  }, [context, about.key]);

  // A task that waits for somebody may be answered in another window.
  const waiting = tasks.filter(interrupted).map((task) => task.id).join(" ");
  useEffect(() => {
    if (!waiting || session.source !== "app") return;
    const control = new AbortController();
    const here = shown.current;
    const timer = setInterval(async () => {
      if (document.hidden) return;
      for (const each of waiting.split(" ")) {
        if (running.current.has(each)) continue;
        try {
          const found = await current(agent, each, control.signal);
          if (here !== shown.current || running.current.has(each)) return;
          if (interrupted(found)) continue;
          put(here, found);
          if (!ended(found)) resume(found);
        } catch {
          return; // the next look says it
        }
      }
    }, LOOK);
    return () => (clearInterval(timer), control.abort());
  }, [waiting]);

  function stopAll() {
    running.current.forEach((control) => control.abort("left"));
    running.current.clear();
  }

  async function load(here) {
    setLoading(true);
    let found = [];
    try {
      found = (await agent.call("ListTasks", { contextId: here.context, pageSize: 100, includeArtifacts: true, historyLength: 1000 })).tasks || [];
    } catch (failed) {
      found = await keptTasks(agent, here.context); // some agents cannot list
      if (!found.length && !keptReplies(here.context).length && here === shown.current) setError(failed.message);
    }
    if (session.source === "app") await loadReplies(here, found);
    if (here !== shown.current) return;
    setLoading(false);
    setTasks(found.sort((a, b) => (a.id < b.id ? -1 : 1)));
    for (const task of found) if (!ended(task) && !interrupted(task)) resume(task);
  }

  // What was said without a task is in the log too, but in no list of tasks. A message that has no
  // answer yet, and no task, is looked at again.
  async function loadReplies(here, found) {
    try {
      const { said } = await get(`agents/${encodeURIComponent(about.key)}/conversation?context=${encodeURIComponent(here.context)}`);
      const unknown = (each) => !each.taskId || (each.kind === "message" && !found.some((task) => task.id === each.taskId));
      const fresh = said.filter(unknown).map((each, index) => ({ ...each, messageId: `said ${index}`, at: Date.parse(each.at) + index / 1000, loaded: true }));
      if (here !== shown.current) return;
      setReplies((all) => [...fresh, ...all.filter((each) => !each.loaded)]);
      if (fresh.some((each) => each.taskId)) setTimeout(() => here === shown.current && !running.current.size && load(here), LOOK);
    } catch (failed) {
      if (here === shown.current) setError(failed.message);
    }
  }

  async function list() {
    const seen = new Map();
    try {
      const found = await agent.call("ListTasks", { pageSize: 100, historyLength: 50, includeArtifacts: false });
      for (const task of found.tasks || []) {
        if (!seen.has(task.contextId)) seen.set(task.contextId, { context: task.contextId, at: task.status.timestamp, text: "" });
        const first = (task.history || []).find((each) => each.role === "ROLE_USER");
        const said = beginning(first?.parts || []);
        if (said) seen.get(task.contextId).text = said;
      }
    } catch {
      // some agents cannot list
    }
    for (const each of keptContexts(about.key)) if (!seen.has(each.context)) seen.set(each.context, each);
    setContexts([...seen.values()].sort((a, b) => (a.at < b.at ? 1 : -1)));
  }

  function put(here, task) {
    if (session.source === "agent") keepTask(task);
    if (here !== shown.current) return;
    setTasks((all) => {
      const index = all.findIndex((each) => each.id === task.id);
      if (index < 0) return [...all, task];
      const next = all.slice();
      next[index] = task;
      return next;
    });
  }

  function adopt(here, name) {
    if (!name || here.context || here !== shown.current) return;
    here.context = name;
    go(withParameters(`/chat/${about.key}`, new URLSearchParams(), { context: name }));
  }

  // Follows a task, or sends a message first, until nothing is to be followed.
  async function run(key, { send, task }) {
    const here = shown.current;
    const control = new AbortController();
    running.current.set(key, control);
    setBusy((n) => n + 1);
    setError("");
    try {
      await follow(agent, {
        send,
        task,
        signal: control.signal,
        online: onOnline,
        find: (taskId) => known.current.find((each) => each.id === taskId),
        on: (found) => {
          if (here === shown.current && !running.current.has(found.id)) {
            running.current.delete(key);
            running.current.set((key = found.id), control);
          }
          put(here, found);
          adopt(here, found.contextId);
        },
        onReply: (message) => {
          if (message.contextId && session.source === "agent") keepReply(message.contextId, send, message);
          if (message.contextId) keepContext(about.key, { context: message.contextId, at: new Date().toISOString(), text: beginning(send?.parts || []) });
          if (here !== shown.current) return;
          setReplies((all) => [...all.filter((each) => each.messageId !== send?.messageId), ...(send ? [send] : []), message]);
          adopt(here, message.contextId);
        },
      });
    } catch (failed) {
      if (here !== shown.current || control.signal.reason === "left") return;
      if (control.signal.aborted) setError("The stream was interrupted. The agent goes on; resume to see what it did meanwhile.");
      else setError(failed.message);
      if (failed instanceof Fault && send?.taskId) put(here, await current(agent, send.taskId));
    } finally {
      setBusy((n) => n - 1);
      if (running.current.get(key) === control) running.current.delete(key);
      list();
    }
  }

  const resume = (task) => run(task.id, { task });

  function send(parts, { skill, metadata, task, references } = {}) {
    const message = { messageId: id(), role: "ROLE_USER", parts };
    if (context) message.contextId = context;
    if (task) message.taskId = task.id;
    if (references?.length) message.referenceTaskIds = references;
    const more = { ...metadata, ...(skill ? { skill } : {}) };
    if (Object.keys(more).length) message.metadata = more;
    if (task) put(shown.current, { ...task, history: [...(task.history || []), ...(task.status?.message ? [task.status.message] : []), message], status: { ...task.status, message: undefined, state: "TASK_STATE_WORKING" } });
    else setReplies((all) => [...all, message]);
    run(task?.id || message.messageId, { send: message });
  }

  async function cancel(task) {
    try {
      put(shown.current, await agent.call("CancelTask", { id: task.id }));
    } catch (failed) {
      setError(failed.message);
    }
  }

  const open = [...tasks].reverse().find((task) => interrupted(task) && !asksPayment(task));
  const alone = replies.filter((each) => !tasks.some((task) => (task.history || []).some((said) => said.messageId === each.messageId)));
  useEffect(() => {
    end.current?.scrollIntoView({ block: "end" });
  }, [tasks.length, alone.length, stateName(tasks[tasks.length - 1])]);

  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    if (event.dataTransfer.files.length) setDropped([...event.dataTransfer.files]);
  };
  return html`<section class="page chat" aria-label=${`Chat with ${about.name}`}>
    <aside class="contexts" aria-label="Conversations">
      ${(session.agents || []).length > 1 && html`<label><span class="hidden">Agent</span>
        <select value=${about.key} onChange=${(event) => go(`/chat/${event.target.value}`)}>
          ${session.agents.map((each) => html`<option key=${each.key} value=${each.key}>${each.name}</option>`)}
        </select></label>`}
      <a class="button" href=${`#/chat/${about.key}`}>New conversation</a>
      <ul>${contexts.map((each) => html`<li key=${each.context}><a href=${`#/chat/${about.key}?context=${encodeURIComponent(each.context)}`}
        aria-current=${each.context === context ? "true" : undefined}><span class="clip">${plain(each.text || shortId(each.context))}</span>
        <time class="dim" datetime=${each.at}>${age(each.at)}</time></a></li>`)}</ul>
    </aside>
    <div class=${`talk ${over ? "over" : ""}`} onDragOver=${(event) => (event.preventDefault(), setOver(true))}
      onDragLeave=${() => setOver(false)} onDrop=${drop}>
      <header class="talk-head"><h1>${about.name}</h1>
        <span class="dim">${whoCalls(session)}</span><span class="grow"></span>
        <button class="quiet" aria-pressed=${wire} onClick=${() => setWire(!wire)}>Wire</button></header>
      <div class="messages" tabindex="0" role="log" aria-live="polite" aria-label="Messages">
        ${loading && !tasks.length && html`<p class="dim" role="status">Reading the conversation …</p>`}
        ${!loading && !tasks.length && !alone.length && html`<${Welcome} card=${card} onPick=${(text) => send([{ text }])} />`}
        ${inOrder(tasks, alone).map(({ task, message }) => (task
          ? html`<${TaskTalk} key=${task.id} task=${task} session=${session} running=${running.current.has(task.id)}
              onStop=${() => running.current.get(task.id)?.abort()} onResume=${() => resume(task)} onCancel=${() => cancel(task)}
              onAnswer=${(parts, more) => send(parts, { ...more, task })} />`
          : html`<${Message} key=${message.messageId} message=${message} />`))}
        ${busy > 0 && html`<p class="dim" role="status">The agent is working …</p>`}
        ${session.source === "agent" && html`<${Remote} session=${session} busy=${busy > 0} reload=${reload} />`}
        ${error && html`<p class="bad" role="alert">${error}</p>`}
        <div ref=${end}></div>
      </div>
      <${Composer} card=${card} answers=${open} route=${route} dropped=${dropped}
        onSend=${(parts, more) => send(parts, { ...more, task: open })} onNew=${(parts, more) => send(parts, more)} />
    </div>
    ${wire && html`<${Wire} agent=${agent} about=${about} session=${session} onClose=${() => setWire(false)} />`}
  </section>`;
}

// The beginning of what a message says, whatever it is made of.
function beginning(parts) {
  const part = parts.find((each) => each.text) || parts[0] || {};
  return (part.text || part.filename || (part.data ? JSON.stringify(part.data) : "")).slice(0, 100);
}

// Tasks and direct replies as they came. A time-ordered id says when a task began; a task with
// another id, and a message that has just been sent, stay at the end.
function inOrder(tasks, messages) {
  const found = [
    ...tasks.map((task) => ({ task, at: began(task.id) })),
    ...messages.map((message) => ({ message, at: message.at || Infinity })),
  ];
  return found.sort((a, b) => (a.at < b.at ? -1 : a.at > b.at ? 1 : 0));
}

function began(taskId) {
  const time = /^([0-9a-f]{8})-([0-9a-f]{4})-7/.exec(taskId);
  return time ? parseInt(time[1] + time[2], 16) : Infinity;
}
