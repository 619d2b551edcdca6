// A log that was saved as a file, opened here. Nothing of it is sent to the server.

import { html, useMemo, useState } from "./vendor/preact.js";
import { plain, shortId } from "./format.js";
import { Slider, State } from "./task.js";
import { added, Timeline } from "./timeline.js";

const LARGEST = 200 * 1024 * 1024;

export function OpenLog() {
  const [log, setLog] = useState(null);
  const [error, setError] = useState("");
  const [at, setAt] = useState(null);
  const open = async (file) => {
    if (!file) return;
    try {
      if (file.size > LARGEST) throw new Error("it has more than 200 MiB");
      setLog(parsed(await file.text()));
      setAt(null);
      setError("");
    } catch (failed) {
      setError(`This file is not a log of a task: ${failed.message}.`);
    }
  };
  const last = log ? log.entries[log.entries.length - 1]?.number || 1 : 1;
  const shown = useMemo(() => log && folded(log.entries, at ?? last), [log, at]);
  const items = useMemo(() => (log ? added([], log.entries) : []), [log]);
  return html`<section class=${`page ${log ? "task" : ""}`} aria-label="Open a log"
    onDragOver=${(event) => event.preventDefault()} onDrop=${(event) => (event.preventDefault(), open(event.dataTransfer.files[0]))}>
    <header class="task-head">
      <h1>${log ? html`<span class=${`state ${shown.state}`}>${shown.state}</span> <span class="id" title=${log.row.id}>${shortId(plain(log.row.id || ""))}</span> <span class="dim">${plain(log.row.agent || "")}</span>` : "Open a log"}</h1>
      <p><label class="button quiet attach">Choose a file<input class="hidden" type="file" accept=".jsonl,application/x-ndjson" onChange=${(event) => open(event.target.files[0])} /></label>
        <span class="dim"> that "Save the log" has made, or drop it here. It stays in this browser.</span></p>
      ${error && html`<p class="bad" role="alert">${plain(error)}</p>`}
      ${log && html`<${Slider} last=${last} at=${at} onMove=${setAt} shown=${shown} />`}
    </header>
    ${log && html`<div class="task-body">
      <div class="log"><${Timeline} items=${items} task="" at=${at} onPick=${(n) => setAt(n >= last ? null : n)} /></div>
      <div class="result"><${State} shown=${shown} details=${null} at=${at} /></div>
    </div>`}
  </section>`;
}

function parsed(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  const head = JSON.parse(lines[0] || "{}");
  if (head.format !== "dragoman-task-log" || head.version !== 1) throw new Error("it has another form");
  const entries = lines.slice(1).map((line) => JSON.parse(line));
  if (!entries.every((each) => Number.isInteger(each.number) && typeof each.kind === "string")) {
    throw new Error("an entry has no number");
  }
  for (const entry of entries) for (const part of entry.parts || []) delete part.path; // everything is in it
  return { row: head.row || {}, entries };
}

// The task after an entry, as the server folds it.
function folded(entries, number) {
  let state = "submitted";
  let status = null;
  let at = "";
  const history = [];
  const artifacts = new Map();
  for (const entry of entries) {
    if (entry.number > number) break;
    const said = { id: entry.id || "", role: entry.role || "agent", parts: entry.parts || [] };
    if (entry.kind === "message" || entry.kind === "reply") {
      if (status) history.push(status);
      status = null;
      history.push(said);
    } else if (entry.kind === "status") {
      if (status) history.push(status);
      [state, at] = [entry.state, entry.at];
      status = entry.parts?.length ? said : null;
    } else if (entry.kind === "artifact") {
      const known = entry.append && artifacts.get(entry.id);
      if (known) known.parts = joined(known.parts, entry.parts || []);
      else artifacts.set(entry.id, { id: entry.id, name: entry.name, description: entry.description, parts: entry.parts || [] });
    }
  }
  return { number, state, at, status, history, artifacts: [...artifacts.values()] };
}

function joined(parts, more) {
  const found = [...parts];
  for (const part of more) {
    const last = found[found.length - 1];
    if (last?.kind === "text" && part.kind === "text" && !part.filename) found[found.length - 1] = { ...last, text: (last.text || "") + (part.text || "") };
    else found.push(part);
  }
  return found;
}
