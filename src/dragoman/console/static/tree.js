// The tree of delegations: the tasks that led to this one, and those that it has begun.

import { html, useEffect, useState } from "./vendor/preact.js";
import { get } from "./api.js";
import { age, plain, shortId } from "./format.js";
import { link } from "./markdown.js";

const EVERY = 3000; // milliseconds between two reads while something in the tree still goes on

export function Tree({ id, row }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState("");
  useEffect(() => {
    const control = new AbortController();
    let timer = 0;
    const read = async () => {
      try {
        const tree = await get(`tasks/${id}/tree`, control.signal);
        setFound(tree);
        setError("");
        if (!row.over || moving(tree.below)) timer = setTimeout(read, EVERY);
      } catch (failed) {
        if (control.signal.aborted) return;
        setError(failed.message);
        timer = setTimeout(read, EVERY);
      }
    };
    read();
    return () => (clearTimeout(timer), control.abort());
  }, [id, row.over]);
  if (error && !found) return html`<section class="box"><h2>Delegation</h2><p class="bad" role="alert">${error}</p></section>`;
  if (!found || !((found.above || []).length + (found.below || []).length)) return null;
  let tree = html`<li><${Place} each=${{ ...row, task: id, agent: row.agent }} mine=${true} /><${Below} each=${found} /></li>`;
  for (const each of [...(found.above || [])].reverse()) {
    tree = html`<li><${Place} each=${each} /><ul class="tree">${tree}</ul></li>`;
  }
  return html`<section class="box" aria-label="Delegation"><h2>Delegation</h2><ul class="tree">${tree}</ul></section>`;
}

const moving = (below) => (below || []).some((each) => (each.here && !each.over) || moving(each.below));

function Below({ each }) {
  if (!(each.below || []).length && !each.cut) return null;
  return html`<ul class="tree">
    ${(each.below || []).map((inner, index) => html`<li key=${index}><${Place} each=${inner} /><${Below} each=${inner} /></li>`)}
    ${each.cut && html`<li class="dim">${each.here ? "More tasks: open this one to see them." : "More tasks are in the log."}</li>`}
  </ul>`;
}

function Place({ each, mine }) {
  const name = plain(each.agent || "unknown agent");
  const id = html`<span class="id" title=${plain(each.task)}>${shortId(plain(each.task))}</span>`;
  return html`<div class=${`place-line ${mine ? "mine" : ""}`} aria-current=${mine ? "true" : undefined}>
    ${each.state && html`<span class=${`state ${each.state}`}>${each.state}</span>`}
    ${each.here && !mine ? html`<a href=${`#/task/${encodeURIComponent(each.task)}`}><b>${name}</b> ${id}</a>` : html`<span><b>${name}</b> ${id}</span>`}
    ${mine && html`<span class="dim">this task</span>`}
    ${!each.here && !mine && html`<span class="dim">${each.seen ? `seen ${age(each.seen)} ago` : "in another store"}</span>`}
    ${each.address && html`<span>${link(each.address, "its agent")}</span>`}
  </div>`;
}
