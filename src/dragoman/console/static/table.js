// The table of tasks: filters in the address, counts, keys.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { follow, get } from "./api.js";
import { age, moment, number, plain, shortId } from "./format.js";
import { go, withParameters } from "./route.js";
import { Virtual } from "./virtual.js";

const STATES = [
  "submitted", "working", "input-required", "auth-required", "completed", "failed", "canceled", "rejected",
];
const FIELDS = ["agent", "owner", "tenant", "skill", "context", "id", "text"];
const PAGE = 200;

export function Tasks({ route, session, onOnline }) {
  const [page, setPage] = useState(null);
  const [more, setMore] = useState([]);
  const [next, setNext] = useState("");
  const [error, setError] = useState("");
  const [selected, setSelected] = useState(-1);
  const [, tick] = useState(0);
  const keys = useRef({ rows: [], selected: -1 });
  const search = useRef(null);
  const query = useMemo(() => {
    const found = new URLSearchParams();
    for (const name of [...FIELDS, "state"]) {
      if (route.parameters.has(name)) found.set(name, route.parameters.get(name));
    }
    found.set("size", PAGE);
    return found.toString();
  }, [route.search]);

  useEffect(() => {
    setMore([]);
    setSelected(-1);
    setError("");
    const show = (found) => {
      setPage(found);
      setNext((known) => known || found.next || "");
      setError("");
    };
    setNext("");
    const searching = route.parameters.has("text");
    if (searching) {
      const control = new AbortController();
      get(`tasks?${query}`, control.signal).then(show, (failed) => setError(failed.message));
      return () => control.abort();
    }
    return follow({
      stream: () => `tasks/events?${query}`,
      on: (_, found) => show(found),
      read: async (signal) => show(await get(`tasks?${query}`, signal)),
      online: (good, failed) => {
        onOnline(good, failed);
        if (failed && failed.status === 400) setError(failed.message);
      },
    });
  }, [query]);

  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 5000);
    return () => clearInterval(timer);
  }, []);

  const rows = useMemo(() => {
    const first = page?.rows || [];
    const known = new Set(first.map((row) => row.id));
    return [...first, ...more.filter((row) => !known.has(row.id))];
  }, [page, more]);

  keys.current.rows = rows;
  keys.current.selected = selected;
  useEffect(() => {
    const choose = (n) => setSelected((keys.current.selected = n));
    const pressed = (event) => {
      const { rows, selected } = keys.current;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
      if (event.key === "Escape") {
        if (typing) event.target.blur();
        else choose(-1);
      } else if (typing) return;
      else if (event.key === "j") choose(Math.min(rows.length - 1, selected + 1));
      else if (event.key === "k") choose(Math.max(0, selected - 1));
      else if (event.key === "Enter" && rows[selected] && event.target.tagName !== "A" && event.target.tagName !== "BUTTON") go(`/task/${rows[selected].id}`);
      else if (event.key === "/") search.current?.focus();
      else return;
      if (!typing) event.preventDefault();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);

  const set = (changes) => go(withParameters("/tasks", route.parameters, changes));
  const load = async () => {
    const found = await get(`tasks?${query}&cursor=${encodeURIComponent(next)}`);
    setMore([...more, ...found.rows]);
    setNext(found.next || "");
  };
  const tenants = session.everywhere;
  return html`<section class="page tasks" aria-label="Tasks">
    <${Filters} route=${route} session=${session} set=${set} search=${search} />
    <${Counts} page=${page} route=${route} set=${set} />
    ${error && html`<p class="bad" role="alert">${error}</p>`}
    ${page?.searched > 0 && html`<p class="dim note" role="status">${number(page.searched)} tasks were searched, the latest first${page.stopped ? "; older ones were not" : ""}.</p>`}
    <div class="columns head" aria-hidden="true">
      <span>State</span><span>Task</span><span>Agent</span><span>Owner</span><span>Last status</span>
      <span>Age</span>
    </div>
    ${page && rows.length === 0
      ? html`<${Nothing} route=${route} session=${session} />`
      : html`<${Virtual}
          items=${rows}
          keyOf=${(row) => row.id}
          selected=${selected}
          label="Tasks, the latest status first. J and K select, Enter opens."
          draw=${(row, index) => html`<${Row} row=${row} chosen=${index === selected} tenants=${tenants} />`}
        />`}
    ${next && html`<button class="more" onClick=${load}>Older tasks</button>`}
  </section>`;
}

function Row({ row, chosen, tenants }) {
  const owner = row.owner || "anonymous";
  return html`<a class=${`columns row ${chosen ? "chosen" : ""}`} href=${`#/task/${row.id}`} role="listitem"
    aria-current=${chosen ? "true" : undefined}>
    <span><span class=${`state ${row.state}`}>${row.state}</span></span>
    <span class="id" title=${row.id}>${shortId(row.id)}</span>
    <span class="clip" title=${row.skill}>${plain(row.agent)}${row.skill && html` <span class="dim">${plain(row.skill)}</span>`}</span>
    <span class="clip" title=${row.realm}>${plain(owner)}${tenants && row.tenant ? html` <span class="dim">${plain(row.tenant)}</span>` : ""}</span>
    <span class="clip text">${plain(row.text || "")}${row.attempt > 1 && html` <span class="dim">attempt ${row.attempt}</span>`}</span>
    <time datetime=${row.changed} title=${moment(row.changed)}>${age(row.changed)}</time>
  </a>`;
}

function Nothing({ route, session }) {
  if (route.search) return html`<p class="empty">No task matches the filters. <a href="#/tasks">Show all tasks</a></p>`;
  return html`<p class="empty">There are no tasks yet. ${session.source === "app" && html`<a href="#/chat">Send the first message</a>`}</p>`;
}

function Counts({ page, route, set }) {
  if (!page?.counts) return route.parameters.has("text") ? null : html`<div class="counts"></div>`;
  const chosen = new Set((route.parameters.get("state") || "").split(",").filter(Boolean));
  const toggle = (state) => {
    chosen.has(state) ? chosen.delete(state) : chosen.add(state);
    set({ state: [...chosen].join(",") });
  };
  const all = Object.values(page.counts).reduce((sum, each) => sum + each, 0);
  return html`<div class="counts" role="group" aria-label="States">
    <button aria-pressed=${chosen.size === 0} onClick=${() => set({ state: "" })}>all <b>${number(all)}${page.complete === false ? "+" : ""}</b></button>
    ${STATES.filter((state) => page.counts[state] || chosen.has(state)).map(
      (state) => html`<button key=${state} aria-pressed=${chosen.has(state)} onClick=${() => toggle(state)}>
        <span class=${`dot ${state}`} aria-hidden="true"></span>${state} <b>${number(page.counts[state] || 0)}</b>
      </button>`,
    )}
  </div>`;
}

function Filters({ route, session, set, search }) {
  const [open, setOpen] = useState(false);
  const value = (name) => route.parameters.get(name) || "";
  const typed = (name) => ({
    name,
    value: value(name),
    onChange: (event) => set({ [name]: event.target.value.trim() }),
  });
  const active = ["owner", "tenant", "skill", "context", "id"].filter((name) => route.parameters.has(name)).length;
  return html`<form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
    <label class="grow"><span class="hidden">Text in the tasks</span>
      <input ref=${search} type="search" placeholder="Search the text of these tasks  ( / )" ...${typed("text")} /></label>
    <label><span class="hidden">Agent</span>
      <select value=${value("agent")} onChange=${(event) => set({ agent: event.target.value })}>
        <option value="">All agents</option>
        ${(session.agents || []).map((agent) => html`<option key=${agent.key} value=${agent.key}>${agent.name}</option>`)}
        ${value("agent") && !(session.agents || []).some((agent) => agent.key === value("agent")) && html`<option value=${value("agent")}>${value("agent")}</option>`}
      </select></label>
    <button type="button" aria-expanded=${open} onClick=${() => setOpen(!open)}>Filters${active ? ` (${active})` : ""}</button>
    ${(open || active > 0) &&
    html`<div class="more-filters">
      <label>Owner <input ...${typed("owner")} /></label>
      ${session.everywhere && html`<label>Tenant <input ...${typed("tenant")} /></label>`}
      <label>Skill <input ...${typed("skill")} /></label>
      <label>Context <input ...${typed("context")} /></label>
      <label>Task id begins with <input ...${typed("id")} /></label>
      ${active > 0 && html`<button type="button" class="link" onClick=${() => set({ owner: "", tenant: "", skill: "", context: "", id: "" })}>Clear</button>`}
    </div>`}
  </form>`;
}
