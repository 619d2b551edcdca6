// The log of a task as a timeline. Chunks of one artifact that follow each other are one item.

import { html, useState } from "./vendor/preact.js";
import { GRANT } from "./a2a.js";
import { get } from "./api.js";
import { clock, moment, number, plain, shortId } from "./format.js";
import { Json, Parts } from "./parts.js";
import { payment } from "./payments.js";
import { Virtual } from "./virtual.js";

const TAIL = 20_000; // characters of a text that grows by chunks

// Adds entries to a list of items, and returns a new list.
export function added(items, entries) {
  const found = items.slice();
  for (const entry of entries) {
    const last = found[found.length - 1];
    if (last && entry.number <= last.to) continue; // it was read twice
    if (entry.kind === "artifact" && last?.kind === "artifact" && last.id === entry.id && entry.append) {
      found[found.length - 1] = grown(last, entry);
    } else {
      found.push({ ...entry, from: entry.number, to: entry.number, count: 1 });
    }
  }
  return found;
}

function grown(item, entry) {
  const parts = item.parts ? item.parts.slice() : [];
  for (const part of entry.parts || []) {
    const last = parts[parts.length - 1];
    if (last?.kind === "text" && part.kind === "text") {
      const text = (last.text || "") + (part.text || "");
      const cut = Math.max(0, text.length - TAIL);
      parts[parts.length - 1] = { ...last, text: text.slice(cut), before: (last.before || 0) + cut };
    } else if (parts.length < 50) parts.push(part);
  }
  return { ...item, parts, to: entry.number, count: item.count + 1, lastChunk: entry.lastChunk };
}

const TITLES = {
  message: "Message",
  status: "Status",
  artifact: "Artifact",
  reply: "Direct reply",
  cancel: "Cancel requested",
  private: "Private entry",
  attempt: "Attempt failed",
};

// Private entries, which only the agent and operators see, by the first word of their name.
const PRIVATE = {
  step: "Step", begun: "Step begun", failed: "Step failed", uncertain: "Step interrupted",
  sleep: "Sleep", slept: "Awake", now: "Time", asked: "Question", answered: "Answer taken",
  listening: "Waits for a message", heard: "Message taken", waiting: "Waits for another agent's task",
  waited: "Another agent's task has ended", subscribed: "Follows another agent's task",
  sent: "Sent to another agent", seen: "State at another agent", saved: "Value saved",
  postponed: "Postponed", handed_over: "Handed over", written: "Written from outside", version: "Version of the code",
};
const SHORT = 300; // characters of a value that is shown at once

function named(item) {
  const [kind, ...rest] = (item.name || "").split(" ");
  const value = item.value;
  if (kind === "sent" || kind === "seen") {
    const state = value?.state ? stateWord(value.state) : "";
    return [PRIVATE[kind], `${kind === "sent" ? value?.agent || value?.address || "" : ""} ${shortId(String(value?.id || ""))} ${state}`];
  }
  if (["sleep", "listening"].includes(kind) && typeof value === "number") return [PRIVATE[kind], `until ${moment(value)}`];
  return PRIVATE[kind] ? [PRIVATE[kind], rest.join(" ")] : [TITLES.private, item.name || ""];
}

// What a message says about an approval.
function said(item) {
  const grant = item.kind === "message" && item.metadata?.[GRANT];
  return grant && typeof grant === "object" ? (grant.approved ? "approves" : "declines") : "";
}

const stateWord = (state) => String(state).replace(/^TASK_STATE_/, "").toLowerCase().replace(/_/g, "-");

export function Timeline({ items, task, at, onPick }) {
  return html`<${Virtual}
    items=${items}
    keyOf=${(item) => String(item.from)}
    height=${72}
    label="Timeline"
    tail=${at === null}
    selected=${at === null ? undefined : items.findIndex((item) => item.to >= at)}
    draw=${(item) => html`<${Item} item=${item} task=${task} at=${at} onPick=${onPick} />`}
  />`;
}

function Item({ item, task, at, onPick }) {
  const later = at !== null && item.from > at;
  const many = item.count > 1;
  const paid = payment(item.metadata);
  const place = many ? `${number(item.from)}–${number(item.to)}` : number(item.from);
  return html`<article class=${`entry ${item.kind} ${later ? "later" : ""}`} role="listitem">
    <header>
      <button class="place" title="Show the task as it was then" onClick=${() => onPick?.(item.to)}
        aria-label=${`Entry ${place}: show the task as it was then`}>${place}</button>
      <b>${item.kind === "private" ? named(item)[0] : TITLES[item.kind] || item.kind}</b>
      ${item.state && html` <span class=${`state ${item.state}`}>${item.state}</span>`}
      ${item.kind === "artifact" && html` <span>${plain(item.name || item.id)}</span>`}
      ${item.kind === "private" && html` <span>${plain(named(item)[1])}</span>`}
      ${said(item) && html` <span class=${`state ${said(item) === "approves" ? "completed" : "failed"}`}>${said(item)}</span>`}
      ${item.who && html` <span class="dim">from ${plain(item.who)}</span>`}
      ${item.skill && html` <span class="dim">skill ${plain(item.skill)}</span>`}
      ${paid && html` <span class=${`state ${paid.look}`}>${paid.status}</span> <span>${paid.words}</span>`}
      ${many && html` <span class="dim">${number(item.count)} chunks</span>`}
      ${item.at && html`<time class="dim" datetime=${item.at} title=${moment(item.at)}>${clock(item.at)}</time>`}
    </header>
    <${Body} item=${item} task=${task} />
  </article>`;
}

function Body({ item, task }) {
  const [open, setOpen] = useState(false);
  const [chunks, setChunks] = useState(null);
  if (item.kind === "attempt") {
    const failed = item.value || {};
    return html`<div class="entry-body"><p>${plain(failed.text || failed.reason || "")}</p>
      <p class="dim">Attempt ${failed.attempt}${failed.worker ? html` on <span class="id">${plain(failed.worker)}</span>` : ""}${failed.correlation ? html`, correlation id <span class="id">${plain(failed.correlation)}</span>` : ""}</p>
      ${failed.traceback && html`<pre class="text" tabindex="0">${plain(failed.traceback)}</pre>`}</div>`;
  }
  if (item.kind === "private") {
    if (item.sealed) return html`<p class="dim">It is encrypted, and the key is not here.</p>`;
    return html`<${Details} value=${item.value} begin=${!/^(sent|seen) ?/.test(item.name || "") && size(item.value) <= SHORT} />`;
  }
  const before = item.parts?.reduce((sum, part) => sum + (part.before || 0), 0);
  const unfold = async () => {
    setOpen(!open);
    if (!chunks && task) {
      const { entries } = await get(`tasks/${task}/entries?after=${item.from - 1}&limit=${Math.min(1000, item.to - item.from + 1)}`);
      setChunks(entries);
    }
  };
  return html`<div class="entry-body">
    ${before > 0 && html`<p class="dim">${number(before)} characters before this are not shown.</p>`}
    <${Parts} parts=${item.parts} />
    ${item.count > 1 && task &&
    html`<button class="link" aria-expanded=${open} onClick=${unfold}>
      ${open ? "Fold the chunks" : "Show each chunk"}
    </button>`}
    ${open && chunks &&
    html`<ol class="chunks">
      ${chunks.map((each) => html`<li key=${each.number}><span class="dim">${each.number}</span>
        <${Parts} parts=${each.parts} markdown=${false} /></li>`)}
      ${item.count > chunks.length && html`<li class="dim">${number(item.count - chunks.length)} more</li>`}
    </ol>`}
    ${item.metadata && Object.keys(item.metadata).length > 0 && html`<${Details} title="Metadata" value=${item.metadata} />`}
  </div>`;
}

const size = (value) => JSON.stringify(value ?? null).length;

export function Details({ title = "Value", value, begin = false }) {
  const [open, setOpen] = useState(begin);
  if (value === undefined || value === null) return null;
  return html`<div>
    <button class="link" aria-expanded=${open} onClick=${() => setOpen(!open)}>${title}</button>
    ${open && html`<${Json} value=${value} />`}
  </div>`;
}
