// The agents: their cards as served, and what the card checker says.

import { html, useEffect, useState } from "./vendor/preact.js";
import { get } from "./api.js";
import { plain } from "./format.js";
import { link } from "./markdown.js";
import { Json } from "./parts.js";
import { prices } from "./payments.js";

export function Agents() {
  const [found, setFound] = useState(null);
  const [error, setError] = useState("");
  useEffect(() => {
    get("agents").then((all) => setFound(all.agents || []), (failed) => setError(failed.message));
  }, []);
  return html`<section class="page scrolls" aria-label="Agents">
    ${error && html`<p class="bad" role="alert">${error}</p>`}
    ${!found && !error && html`<p class="empty" role="status">Reading the cards …</p>`}
    ${found?.map((agent) => html`<${Card} key=${agent.key} agent=${agent} />`)}
  </section>`;
}

function Card({ agent }) {
  const [open, setOpen] = useState(false);
  const card = agent.card || {};
  const costs = prices(card);
  const findings = agent.findings || [];
  return html`<article class="box">
    <header class="talk-head"><h1>${plain(agent.name)}</h1> <span class="dim">${plain(card.version || "")}</span><span class="grow"></span>
      <span class="pair"><a class="button quiet" href=${`#/chat/${agent.key}`}>Chat</a> <a class="button quiet" href=${`#/tasks?agent=${encodeURIComponent(agent.key)}`}>Tasks</a></span></header>
    ${agent.error && html`<p class="bad">${plain(agent.error)}</p>`}
    <p>${plain(card.description || "")}</p>
    ${card.provider && html`<p class="dim">by ${link(card.provider.url || "", card.provider.organization || "")}</p>`}
    <h2>Skills</h2>
    <ul class="skills">${(card.skills || []).map((skill) => html`<li key=${skill.id}><b>${plain(skill.name)}</b> <span class="dim">${plain((skill.tags || []).join(", "))}</span>
      ${costs[skill.id] && html` <span class="dim">costs ${costs[skill.id]}</span>`}
      <p>${plain(skill.description)}</p>${(skill.examples || []).length > 0 && html`<p class="dim">For example: ${plain(skill.examples.join(" · "))}</p>`}</li>`)}</ul>
    <h2>The card checker</h2>
    ${findings.length ? html`<ul>${findings.map((each, index) => html`<li key=${index}><span class=${`state ${{ error: "failed", warning: "input-required" }[each.level] || ""}`}>${each.level}</span>
      ${each.path && html` <code>${plain(each.path)}</code>`} ${plain(each.text)}</li>`)}</ul>` : html`<p class="dim">It finds nothing wrong.</p>`}
    <button class="link" aria-expanded=${open} onClick=${() => setOpen(!open)}>The card as served</button>
    ${open && html`<${Json} value=${card} open=${3} />`}
  </article>`;
}
