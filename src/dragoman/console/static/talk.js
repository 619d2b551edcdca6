// What is said in a conversation: messages, artifacts, questions, approvals.

import { html } from "./vendor/preact.js";
import { drawn, ended, GRANT, interrupted, SCHEMAS, stateName } from "./a2a.js";
import { plain } from "./format.js";
import { Form } from "./forms.js";
import { Json, Parts } from "./parts.js";
import { payment } from "./payments.js";

export function Welcome({ card, onPick }) {
  if (!card) return null;
  const examples = (card.skills || []).flatMap((skill) => skill.examples || []).slice(0, 6);
  return html`<div class="welcome"><p>${plain(card.description)}</p>
    ${examples.length > 0 && html`<p class="dim">Try</p>${examples.map((text) => html`<button key=${text} class="quiet" onClick=${() => onPick(text)}>${plain(text)}</button>`)}`}
  </div>`;
}

export function Message({ message }) {
  const mine = message.role === "ROLE_USER";
  const parts = (message.parts || []).filter((part) => !schemaOf(message, part)).map(drawn);
  return html`<div class=${`bubble ${mine ? "mine" : "theirs"}`}><span class="hidden">${mine ? "You" : "Agent"}: </span>
    <${Parts} parts=${parts} markdown=${!mine} /></div>`;
}

// The schema in a question is drawn as a form, not as data.
const schemaOf = (message, part) => message.metadata?.[SCHEMAS]?.asks && part.data?.properties && part.data;

export function TaskTalk({ task, session, running, onStop, onResume, onCancel, onAnswer }) {
  const state = stateName(task);
  const asked = task.status?.message;
  const grant = interrupted(task) ? task.metadata?.[GRANT] : null;
  const price = interrupted(task) && payment(asked?.metadata);
  const schema = asked && (asked.parts || []).map((part) => schemaOf(asked, part)).find(Boolean);
  const approve = (approved) => onAnswer([{ text: approved ? "Approved." : "Declined." }], { metadata: { [GRANT]: { id: grant.id, digest: grant.digest, approved } } });
  return html`<div class="task-talk">
    ${(task.history || []).map((message) => html`<${Message} key=${message.messageId} message=${message} />`)}
    ${(task.artifacts || []).map((artifact) => html`<div class="bubble theirs artifact" key=${artifact.artifactId}>
      ${artifact.name && html`<b>${plain(artifact.name)}</b>`}<${Parts} parts=${artifact.parts.map(drawn)} /></div>`)}
    ${asked && html`<${Message} message=${asked} />`}
    ${schema && state === "input-required" && html`<div class="bubble theirs"><${Form} schema=${schema} submit="Answer" onSend=${(data) => onAnswer([{ data }])} /></div>`}
    ${grant && !grant.used && html`<div class="bubble theirs approval"><b>May the agent do this?</b><${Json} value=${grant.operation} />
      <p class="task-line"><button onClick=${() => approve(true)}>Approve</button> <button class="quiet" onClick=${() => approve(false)}>Decline</button></p></div>`}
    ${price?.asks && html`<p class="note payment">The agent asks for a payment of ${plain(price.price)}. Nothing was paid: the console has no wallet. <code>dragoman task pay URL ${task.id} --pay-max AMOUNT</code> pays it.</p>`}
    ${state === "auth-required" && !grant && html`<p class="note">The agent waits until somebody has logged in where it says, then it goes on.</p>`}
    <p class="task-line"><span class=${`state ${state}`}>${state}</span>
      ${session.source === "app" && html`<a href=${`#/task/${task.id}`}>Log</a>`}
      ${running && html`<button class="link" onClick=${onStop}>Interrupt the stream</button>`}
      ${!running && !ended(task) && state !== "input-required" && !grant && html`<button class="link" onClick=${onResume}>Resume</button>`}
      ${!ended(task) && html`<button class="link" onClick=${onCancel}>Cancel</button>`}
    </p>
  </div>`;
}
