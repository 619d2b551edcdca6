// One task: why it is where it is, its log, and what it was after any entry.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { act, address, follow, get } from "./api.js";
import { age, moment, number, plain, shortId } from "./format.js";
import { Json, Parts } from "./parts.js";
import { go } from "./route.js";
import { added, Timeline } from "./timeline.js";
import { Tree } from "./tree.js";

const FIRST = 2000; // entries that are read at once
const SAID = 50; // messages that are shown

export function Task({ id, session, onOnline }) {
  const [details, setDetails] = useState(null);
  const [items, setItems] = useState([]);
  const [missing, setMissing] = useState("");
  const [at, setAt] = useState(null); // null follows the newest entry
  const [past, setPast] = useState(null);
  const place = useRef(0);
  const [start, setStart] = useState(0);
  const version = useRef(-1);
  const reading = useRef(false);

  useEffect(() => {
    let stopped = false;
    let stop = () => {};
    setDetails(null);
    setItems([]);
    setAt(null);
    setPast(null);
    version.current = -1;
    const refresh = async () => {
      if (reading.current || stopped) return;
      reading.current = true;
      try {
        const found = await get(`tasks/${id}`);
        if (!stopped) {
          version.current = found.row.version || 0;
          setDetails(found);
        }
      } catch (error) {
        if (error.status === 404) setMissing(error.message);
      } finally {
        reading.current = false;
      }
    };
    let pending = 0;
    const later = () => {
      if (!pending) pending = setTimeout(() => ((pending = 0), refresh()), 250);
    };
    const take = (entries) => {
      if (!entries.length) return;
      place.current = Math.max(place.current, entries[entries.length - 1].number);
      setItems((known) => added(known, entries));
    };
    (async () => {
      let first;
      try {
        first = await get(`tasks/${id}`);
      } catch (error) {
        onOnline(error.status === 404, error);
        return setMissing(error.message);
      }
      if (stopped) return;
      setMissing("");
      setDetails(first);
      version.current = first.row.version || 0;
      place.current = Math.max(0, (first.row.last || 0) - FIRST);
      setStart(place.current);
      stop = follow({
        stream: () => `tasks/${id}/events?after=${place.current}`,
        on: (event, data) => {
          if (event === "entries") take(data);
          else if ((data.version || 0) !== version.current) later();
        },
        read: async (signal) => {
          for (;;) {
            const { entries } = await get(`tasks/${id}/entries?after=${place.current}&limit=1000`, signal);
            take(entries);
            if (entries.length) later();
            if (entries.length < 1000) break;
          }
          if (!first.row.over) later();
        },
        online: onOnline,
      });
    })();
    return () => {
      stopped = true;
      clearTimeout(pending);
      stop();
    };
  }, [id]);

  useEffect(() => {
    if (at === null) return setPast(null);
    const control = new AbortController();
    const timer = setTimeout(() => {
      get(`tasks/${id}/at/${at}`, control.signal).then(setPast, () => {});
    }, 30);
    return () => (clearTimeout(timer), control.abort());
  }, [at, id]);

  const earlier = async () => {
    const from = Math.max(0, start - 1000);
    const { entries } = await get(`tasks/${id}/entries?after=${from}&limit=${start - from}`);
    setItems((known) => [...added([], entries), ...known]);
    setStart(from);
  };

  if (missing) return html`<section class="page"><p class="empty">${missing[0].toUpperCase() + missing.slice(1)}. <a href="#/tasks">All tasks</a></p></section>`;
  if (!details) return html`<section class="page"><p class="empty" role="status">Reading the task …</p></section>`;
  const row = details.row;
  const last = items.length ? items[items.length - 1].to : row.last || 1;
  const shown = past && at !== null ? past : details.task;
  return html`<section class="page task" aria-label=${`Task ${id}`}>
    <header class="task-head">
      <h1><span class=${`state ${shown.state}`}>${shown.state}</span> <span class="id" title=${id}>${shortId(id)}</span>
        <span class="dim">${plain(row.agent)}${row.skill ? ` · ${plain(row.skill)}` : ""}</span></h1>
      ${details.why && html`<p class="why"><${Sentence} text=${plain(details.why)} /></p>`}
      <${Facts} row=${row} />
      <${Actions} details=${details} session=${session} id=${id} />
      <${Slider} last=${last} at=${at} onMove=${setAt} shown=${shown} />
    </header>
    <div class="task-body">
      <div class="log">
        <h2>Log <span class="dim">${number(last)} ${last === 1 ? "entry" : "entries"}</span></h2>
        ${start > 0 && html`<button class="link" onClick=${earlier}>${number(start)} earlier entries</button>`}
        <${Timeline} items=${items} task=${id} at=${at} onPick=${(n) => setAt(n >= last ? null : n)} />
      </div>
      <div class="result" aria-label="The task">
        <${State} shown=${shown} details=${details} at=${at} />
      </div>
    </div>
  </section>`;
}

export function Slider({ last, at, onMove, shown }) {
  const value = at === null ? last : at;
  return html`<div class="slider">
    <label for="place">Time travel</label>
    <input id="place" type="range" min="1" max=${Math.max(1, last)} value=${value}
      aria-valuetext=${`entry ${value} of ${last}, ${shown.state}`}
      onInput=${(event) => onMove(+event.target.value >= last ? null : +event.target.value)} />
    <output for="place">${number(value)} of ${number(last)}${at !== null && shown.at ? html` <span class="dim">${moment(shown.at)}</span>` : ""}</output>
    ${at !== null && html`<button onClick=${() => onMove(null)}>Now</button>`}
  </div>`;
}

// A sentence with its times in the form of this place.
function Sentence({ text }) {
  return text.split(/(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)/).map((piece, index) =>
    index % 2 ? html`<time datetime=${piece} title=${piece}>${moment(piece)}</time>` : piece);
}

function Facts({ row }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 5000);
    return () => clearInterval(timer);
  }, []);
  const facts = [
    ["Owner", row.owner || "anonymous"],
    ["Tenant", row.tenant],
    ["Context", row.context],
    ["Changed", row.changed && `${age(row.changed)} ago`],
    ["Attempt", row.attempt > 1 && row.attempt],
  ].filter(([, value]) => value);
  return html`<dl class="facts">
    ${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${
      name === "Context" ? html`<a href=${`#/tasks?context=${encodeURIComponent(value)}`} title=${value}>${shortId(value)}</a>` : plain(value)
    }</dd></div>`)}
  </dl>`;
}

function Actions({ details, session, id }) {
  const [busy, setBusy] = useState(false);
  const [told, setTold] = useState("");
  const [text, setText] = useState("");
  const run = async (path, body) => {
    setBusy(true);
    setTold("");
    try {
      setTold((await act(path, body)).done || "Done.");
      setText("");
    } catch (error) {
      setTold(error.message);
    } finally {
      setBusy(false);
    }
  };
  const row = details.row;
  const again = () => {
    sessionStorage.setItem("again", JSON.stringify({ task: id, agent: row.agent, message: details.first }));
    go(`/chat/${row.agent}?again=${id}`);
  };
  const may = session.acts && session.actions;
  return html`<div class="actions">
    ${may && details.asks === "approval" && html`<div class="ask" role="group" aria-label="Approval">
      <b>It asks for an approval:</b> <${Json} value=${details.operation} />
      <button disabled=${busy} onClick=${() => run(`tasks/${id}/approve`, { approved: true })}>Approve</button>
      <button disabled=${busy} class="quiet" onClick=${() => run(`tasks/${id}/approve`, { approved: false })}>Decline</button>
    </div>`}
    ${may && details.asks === "answer" && html`<form class="ask" onSubmit=${(event) => (event.preventDefault(), run(`tasks/${id}/answer`, { text }))}>
      <label for="answer">Answer for the owner</label>
      <input id="answer" value=${text} onInput=${(event) => setText(event.target.value)} required />
      <button disabled=${busy}>Answer</button>
    </form>`}
    ${may && !row.over && html`<button class="quiet" disabled=${busy} onClick=${() => run(`tasks/${id}/cancel`)}>Cancel</button>`}
    ${row.over && details.first && session.actions && html`<button class="quiet" onClick=${again}>Send again</button>`}
    <a class="button quiet" href=${address(`tasks/${id}/log`)} download>Save the log</a>
    <span role="status" class="dim">${told}</span>
  </div>`;
}

// What the task was after an entry: artifacts, messages, and the tasks around it.
export function State({ shown, details, at }) {
  return html`
    ${at !== null && html`<p class="past" role="status">The task as it was after entry ${number(shown.number)}.</p>`}
    ${details && html`<${Around} details=${details} />`}
    ${(shown.artifacts || []).map((artifact) => html`<section class="box" key=${artifact.id}>
      <h2>${plain(artifact.name || artifact.id)}</h2>
      ${artifact.description && html`<p class="dim">${plain(artifact.description)}</p>`}
      <${Parts} parts=${artifact.parts} />
    </section>`)}
    ${shown.status && html`<section class="box"><h2>Status message</h2><${Parts} parts=${shown.status.parts} /></section>`}
    ${(shown.history || []).length > 0 && html`<section class="box">
      <h2>Messages</h2>
      ${shown.history.length > SAID && html`<p class="dim">${number(shown.history.length - SAID)} earlier messages are in the log.</p>`}
      ${shown.history.slice(-SAID).map((message) => html`<div key=${message.id} class=${`said ${message.role}`}>
        <span class="dim">${message.role}</span><${Parts} parts=${message.parts} /></div>`)}
    </section>`}
    ${shown.metadata && Object.keys(shown.metadata).length > 0 && html`<section class="box"><h2>Metadata</h2><${Json} value=${shown.metadata} open=${1} /></section>`}
    ${!(shown.artifacts || []).length && !shown.status && !(shown.history || []).length && html`<p class="empty">Nothing yet.</p>`}
  `;
}

function Around({ details }) {
  return html`
    ${details.delegates && html`<${Tree} id=${details.row.id} row=${details.row} />`}
    ${(details.webhooks || []).length > 0 && html`<section class="box"><h2>Webhooks</h2><ul>${details.webhooks.map((hook) => html`<li key=${hook.id}>${plain(hook.host)} <span class="dim">${hook.parked ? "parked" : `${hook.cursor} of ${hook.last} delivered`}</span></li>`)}</ul></section>`}
  `;
}
