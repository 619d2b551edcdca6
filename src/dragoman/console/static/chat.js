// The chat with an agent: conversations, questions, approvals, files. It calls the agent as its
// caller, and everything that it shows is in the agent's log.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { get } from "./api.js";
import { Agent, drawn, ended, folded, GRANT, SCHEMAS, stateName } from "./a2a.js";
import { age, id, plain, shortId } from "./format.js";
import { Form } from "./forms.js";
import { LogIn } from "./login.js";
import { Remote } from "./remote.js";
import { Json, Parts } from "./parts.js";
import { go, withParameters } from "./route.js";
import { Wire } from "./wire.js";

const agents = new Map(); // what was recorded of the wire outlives a change of the view
const LARGEST = 8 * 1024 * 1024; // bytes of one file

export function Chat({ route, session, reload }) {
  const key = route.argument || session.agents?.[0]?.key || "";
  const about = (session.agents || []).find((each) => each.key === key);
  if (!about) return html`<section class="page"><p class="empty">There is no such agent.</p></section>`;
  if (session.needsCaller) {
    return html`<section class="page scrolls"><div class="narrow"><h1>Chat with ${about.name}</h1>
      <p>The agent calls need a caller. Log in as one; to see the console does not make you one.</p>
      <${LogIn} session=${session} done=${reload} /></div></section>`;
  }
  return html`<${Conversation} key=${key} agent=${about} route=${route} session=${session} reload=${reload} />`;
}

function connection(about) {
  if (!agents.has(about.key)) agents.set(about.key, new Agent(about.path));
  return agents.get(about.key);
}

function Conversation({ agent: about, route, session, reload }) {
  const agent = connection(about);
  const context = route.parameters.get("context") || "";
  const [card, setCard] = useState(null);
  const [tasks, setTasks] = useState([]);
  const [replies, setReplies] = useState([]);
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(0);
  const [contexts, setContexts] = useState([]);
  const [loaded, setLoaded] = useState("");
  const [wire, setWire] = useState(false);
  const running = useRef(new Map());
  const end = useRef(null);

  useEffect(() => {
    get("agents").then(({ agents: found }) => {
      const mine = found.find((each) => each.key === about.key);
      setCard(mine?.card || null);
      if (mine?.error) setError(mine.error);
    }, (failed) => setError(failed.message));
    list();
    return () => running.current.forEach((each) => each.abort());
  }, [about.key]);

  useEffect(() => {
    if (context === loaded && tasks.length) return;
    setReplies([]);
    setError("");
    if (!context) return (setTasks([]), setLoaded(""));
    let stopped = false;
    (async () => {
      try {
        const found = await agent.call("ListTasks", { contextId: context, pageSize: 100, includeArtifacts: true, historyLength: 1000 });
        if (stopped) return;
        const known = (found.tasks || []).sort((a, b) => (a.id < b.id ? -1 : 1));
        setTasks(known);
        setLoaded(context);
        for (const task of known) if (["working", "submitted"].includes(stateName(task))) resume(task);
      } catch (failed) {
        await remembered(failed);
      }
    })();
    async function remembered(failed) {
      const ids = JSON.parse(sessionStorage.getItem(`tasks ${context}`) || "[]");
      const known = [];
      for (const each of ids) {
        try {
          known.push(await agent.call("GetTask", { id: each }));
        } catch {
          // the agent has forgotten it
        }
      }
      if (stopped) return;
      if (known.length) (setTasks(known), setLoaded(context));
      else setError(failed.message);
    }
    return () => { stopped = true; };
  }, [context, about.key]);

  async function list() {
    try {
      const found = await agent.call("ListTasks", { pageSize: 100, historyLength: 50, includeArtifacts: false });
      const seen = new Map();
      for (const task of found.tasks || []) {
        if (!seen.has(task.contextId)) seen.set(task.contextId, { context: task.contextId, at: task.status.timestamp, text: "" });
        const first = (task.history || []).find((each) => each.role === "ROLE_USER");
        const said = first?.parts?.find((part) => part.text)?.text;
        if (said) seen.get(task.contextId).text = said;
      }
      setContexts([...seen.values()]);
    } catch {
      setContexts([]); // some agents cannot list
    }
  }

  function put(task) {
    if (session.source === "agent" && task.contextId) {
      const name = `tasks ${task.contextId}`;
      const ids = JSON.parse(sessionStorage.getItem(name) || "[]");
      if (!ids.includes(task.id)) sessionStorage.setItem(name, JSON.stringify([...ids, task.id]));
    }
    setTasks((known) => {
      const index = known.findIndex((each) => each.id === task.id);
      if (index < 0) return [...known, task];
      const next = known.slice();
      next[index] = task;
      return next;
    });
  }

  async function follow(stream, control, task = null) {
    if (task) running.current.set(task.id, control);
    setBusy((n) => n + 1);
    setError("");
    try {
      for await (const { place, value } of stream) {
        if (value.message) {
          setReplies((known) => [...known, value.message]);
          continue;
        }
        const taskId = value.task?.id || value.statusUpdate?.taskId || value.artifactUpdate?.taskId;
        if (!task && !value.task) task = find(taskId);
        task = folded(task, value);
        if (place) task = { ...task, place };
        if (!running.current.has(task.id)) running.current.set(task.id, control);
        put(task);
        if (task.contextId && task.contextId !== contextNow()) {
          setLoaded(task.contextId);
          go(withParameters(`/chat/${about.key}`, new URLSearchParams(), { context: task.contextId }));
        }
      }
    } catch (failed) {
      if (control.signal.aborted) setError("The stream was interrupted. The agent goes on; resume to see what it did meanwhile.");
      else setError(failed.message);
    } finally {
      setBusy((n) => n - 1);
      if (task) running.current.delete(task.id);
      list();
    }
  }

  const known = useRef([]);
  known.current = tasks;
  const find = (taskId) => known.current.find((each) => each.id === taskId) || null;
  const contextNow = () => new URLSearchParams(location.hash.split("?")[1] || "").get("context") || "";

  function send(parts, { skill, metadata, task, references } = {}) {
    const message = { messageId: id(), role: "ROLE_USER", parts };
    if (context) message.contextId = context;
    if (task) message.taskId = task.id;
    if (references?.length) message.referenceTaskIds = references;
    const more = { ...metadata, ...(skill ? { skill } : {}) };
    if (Object.keys(more).length) message.metadata = more;
    const control = new AbortController();
    if (task) put({ ...task, history: [...(task.history || []), ...(task.status?.message ? [task.status.message] : []), message], status: { ...task.status, message: undefined, state: "TASK_STATE_WORKING" } });
    else setReplies((all) => [...all, { ...message, pending: true }]);
    const options = { signal: control.signal, headers: { "idempotency-key": message.messageId } };
    follow(agent.stream("SendStreamingMessage", { message }, options), control).finally(() =>
      setReplies((all) => all.filter((each) => each.messageId !== message.messageId || !seenIn(known.current, message.messageId))),
    );
  }

  function resume(task) {
    const control = new AbortController();
    const headers = task.place ? { "last-event-id": task.place } : {};
    return follow(agent.stream("SubscribeToTask", { id: task.id }, { signal: control.signal, headers }), control, task);
  }

  async function cancel(task) {
    try {
      put(await agent.call("CancelTask", { id: task.id }));
    } catch (failed) {
      setError(failed.message);
    }
  }

  const open = [...tasks].reverse().find((task) => ["input-required", "auth-required"].includes(stateName(task)));
  useEffect(() => {
    end.current?.scrollIntoView({ block: "end" });
  }, [tasks.length, replies.length, stateName(tasks[tasks.length - 1])]);

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
    <div class="talk">
      <header class="talk-head"><h1>${about.name}</h1>
        <span class="dim">as ${session.caller || "anonymous"}</span><span class="grow"></span>
        <button class="quiet" aria-pressed=${wire} onClick=${() => setWire(!wire)}>Wire</button></header>
      <div class="messages" tabindex="0" role="log" aria-live="polite" aria-label="Messages">
        ${!tasks.length && !replies.length && html`<${Welcome} card=${card} onPick=${(text) => send([{ text }])} />`}
        ${tasks.map((task) => html`<${TaskTalk} key=${task.id} task=${task} session=${session} running=${running.current.has(task.id)}
          onStop=${() => running.current.get(task.id)?.abort()} onResume=${() => resume(task)} onCancel=${() => cancel(task)}
          onAnswer=${(parts, more) => send(parts, { ...more, task })} />`)}
        ${replies.filter((each) => !seenIn(tasks, each.messageId)).map((each) => html`<${Message} key=${each.messageId} message=${each} />`)}
        ${busy > 0 && html`<p class="dim" role="status">The agent is working …</p>`}
        ${session.source === "agent" && html`<${Remote} session=${session} busy=${busy > 0} reload=${reload} />`}
        ${error && html`<p class="bad" role="alert">${error}</p>`}
        <div ref=${end}></div>
      </div>
      <${Composer} card=${card} answers=${open} busy=${false} route=${route}
        onSend=${(parts, more) => send(parts, { ...more, task: open })} onNew=${(parts, more) => send(parts, more)} />
    </div>
    ${wire && html`<${Wire} agent=${agent} about=${about} session=${session} onClose=${() => setWire(false)} />`}
  </section>`;
}

const seenIn = (tasks, messageId) => tasks.some((task) => (task.history || []).some((each) => each.messageId === messageId));

function Welcome({ card, onPick }) {
  if (!card) return null;
  const examples = (card.skills || []).flatMap((skill) => skill.examples || []).slice(0, 6);
  return html`<div class="welcome"><p>${plain(card.description)}</p>
    ${examples.length > 0 && html`<p class="dim">Try</p>${examples.map((text) => html`<button key=${text} class="quiet" onClick=${() => onPick(text)}>${plain(text)}</button>`)}`}
  </div>`;
}

function Message({ message }) {
  const mine = message.role === "ROLE_USER";
  const parts = (message.parts || []).filter((part) => !schemaOf(message, part)).map(drawn);
  return html`<div class=${`bubble ${mine ? "mine" : "theirs"}`}><span class="hidden">${mine ? "You" : "Agent"}: </span>
    <${Parts} parts=${parts} markdown=${!mine} /></div>`;
}

// The schema in a question is drawn as a form, not as data.
const schemaOf = (message, part) => message.metadata?.[SCHEMAS]?.asks && part.data?.properties && part.data;

function TaskTalk({ task, session, running, onStop, onResume, onCancel, onAnswer }) {
  const state = stateName(task);
  const asked = task.status?.message;
  const grant = ["input-required", "auth-required"].includes(state) ? task.metadata?.[GRANT] : null;
  const schema = asked && (asked.parts || []).map((part) => schemaOf(asked, part)).find(Boolean);
  const approve = (approved) => onAnswer([{ text: approved ? "Approved." : "Declined." }], { metadata: { [GRANT]: { id: grant.id, digest: grant.digest, approved } } });
  return html`<div class="task-talk">
    ${(task.history || []).map((message) => html`<${Message} key=${message.messageId} message=${message} />`)}
    ${(task.artifacts || []).map((artifact) => html`<div class="bubble theirs artifact" key=${artifact.artifactId}>
      ${artifact.name && html`<b>${plain(artifact.name)}</b>`}<${Parts} parts=${artifact.parts.map(drawn)} /></div>`)}
    ${asked && html`<${Message} message=${asked} />`}
    ${schema && state === "input-required" && html`<div class="bubble theirs"><${Form} schema=${schema} submit="Answer" onSend=${(data) => onAnswer([{ data }])} /></div>`}
    ${grant && !grant.used && html`<div class="bubble theirs approval"><b>May the agent do this?</b><${Json} value=${grant.operation} />
      <button onClick=${() => approve(true)}>Approve</button> <button class="quiet" onClick=${() => approve(false)}>Decline</button></div>`}
    ${state === "auth-required" && !grant && html`<p class="note">The agent waits until somebody has logged in where it says, then it goes on.</p>`}
    <p class="task-line"><span class=${`state ${state}`}>${state}</span>
      ${session.source === "app" && html`<a href=${`#/task/${task.id}`}>Log</a>`}
      ${running && html`<button class="link" onClick=${onStop}>Interrupt the stream</button>`}
      ${!running && !ended(task) && html`<button class="link" onClick=${onResume}>Resume</button>`}
      ${!ended(task) && html`<button class="link" onClick=${onCancel}>Cancel</button>`}
    </p>
  </div>`;
}

// -- what a person writes

function Composer({ card, answers, route, onSend, onNew }) {
  const [text, setText] = useState("");
  const [files, setFiles] = useState([]);
  const [skill, setSkill] = useState("");
  const [error, setError] = useState("");
  const [over, setOver] = useState(false);
  const [references, setReferences] = useState([]);
  const [more, setMore] = useState([]);
  const schemas = useMemo(() => {
    const found = (card?.capabilities?.extensions || []).find((each) => each.uri === SCHEMAS);
    return found?.params || {};
  }, [card]);

  useEffect(() => {
    const task = route.parameters.get("again");
    if (!task) return;
    try {
      const kept = JSON.parse(sessionStorage.getItem("again") || "null");
      if (kept?.task !== task) return;
      setText(kept.message.parts.filter((part) => part.text).map((part) => part.text).join("\n"));
      setMore(kept.message.parts.filter((part) => part.text === undefined));
      setReferences([task]);
    } catch {
      setError("The first message could not be read.");
    }
  }, [route.search]);

  const add = (list) => {
    const good = [...list].filter((file) => file.size <= LARGEST);
    setError(good.length < list.length ? "A file may have at most 8 MiB." : "");
    setFiles((known) => [...known, ...good]);
  };
  const send = async (event) => {
    event?.preventDefault();
    if (!text.trim() && !files.length && !more.length) return;
    const parts = text.trim() ? [{ text: text.trim() }] : [];
    parts.push(...more);
    for (const file of files) parts.push(await filePart(file));
    (references.length ? onNew : onSend)(parts, { skill, references });
    setText("");
    setFiles([]);
    setMore([]);
    setReferences([]);
  };
  const form = async (data, given) => {
    const parts = Object.keys(data).length ? [{ data }] : [];
    for (const [name, file] of Object.entries(given)) {
      if (file) parts.push({ ...(await filePart(file)), metadata: { parameter: name } });
    }
    onSend(parts.length ? parts : [{ data: {} }], { skill });
  };
  const schema = !answers && skill ? schemas[skill] : null;
  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    if (event.dataTransfer.files.length) add(event.dataTransfer.files);
  };
  return html`<div class=${`composer ${over ? "over" : ""}`} onDragOver=${(event) => (event.preventDefault(), setOver(true))}
    onDragLeave=${() => setOver(false)} onDrop=${drop}>
    ${(card?.skills || []).length > 0 && !answers && html`<label class="skill">Skill
      <select value=${skill} onChange=${(event) => setSkill(event.target.value)}>
        <option value="">the agent chooses</option>
        ${card.skills.map((each) => html`<option key=${each.id} value=${each.id}>${plain(each.name)}</option>`)}
      </select></label>`}
    ${references.length > 0 && html`<p class="dim">A new task that refers to ${shortId(references[0])}.
      <button class="link" onClick=${() => (setReferences([]), setMore([]))}>Do not</button></p>`}
    ${more.length > 0 && html`<p class="dim">${more.length} more parts of the first message are sent, too.</p>`}
    ${schema?.input || Object.keys(schema?.files || {}).length
      ? html`<${Form} key=${skill} schema=${schema.input} files=${schema.files} submit="Send" onSend=${form} />`
      : html`<form class="line" onSubmit=${send}>
          <label class="grow"><span class="hidden">Message</span><textarea rows="2" value=${text}
            placeholder=${answers ? "Your answer" : "Message; drop files here"}
            onInput=${(event) => setText(event.target.value)}
            onKeyDown=${(event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && send(event)}></textarea></label>
          <label class="button quiet attach">File<input class="hidden" type="file" multiple onChange=${(event) => (add(event.target.files), (event.target.value = ""))} /></label>
          <button>${answers ? "Answer" : "Send"}</button>
        </form>`}
    ${files.length > 0 && html`<ul class="files">${files.map((file, index) => html`<li key=${index}>${plain(file.name)}
      <button class="link" aria-label=${`Remove ${plain(file.name)}`} onClick=${() => setFiles(files.filter((_, each) => each !== index))}>Remove</button></li>`)}</ul>`}
    ${error && html`<p class="bad" role="alert">${error}</p>`}
  </div>`;
}

async function filePart(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let place = 0; place < bytes.length; place += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(place, place + 0x8000));
  }
  return { raw: btoa(text), filename: file.name, mediaType: file.type || "application/octet-stream" };
}
