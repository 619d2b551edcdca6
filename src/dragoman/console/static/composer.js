// What a person writes in the chat: a text, files, the parameters of a skill.

import { html, useEffect, useMemo, useState } from "./vendor/preact.js";
import { SCHEMAS } from "./a2a.js";
import { plain, shortId, size } from "./format.js";
import { Form } from "./forms.js";
import { prices } from "./payments.js";

const LARGEST = 8 * 1024 * 1024; // bytes of one file

export function Composer({ card, answers, route, dropped, onSend, onNew }) {
  const [text, setText] = useState("");
  const [files, setFiles] = useState([]);
  const [skill, setSkill] = useState("");
  const [error, setError] = useState("");
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
  useEffect(() => {
    if (dropped?.length) add(dropped);
  }, [dropped]);
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
  const costs = prices(card);
  const named = (card?.skills || []).filter((each) => costs[each.id] && (!skill || skill === each.id));
  const schema = !answers && skill ? schemas[skill] : null;
  return html`<div class="composer">
    ${(card?.skills || []).length > 0 && !answers && html`<label class="skill">Skill
      <select value=${skill} onChange=${(event) => setSkill(event.target.value)}>
        <option value="">the agent chooses</option>
        ${card.skills.map((each) => html`<option key=${each.id} value=${each.id}>${plain(each.name)}</option>`)}
      </select></label>`}
    ${named.length > 0 && !answers && html`<p class="price">Before it works, the agent asks for a payment, by its card: ${named.map((each) => `${plain(each.name)} costs ${costs[each.id]}`).join("; ")}.</p>`}
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
    ${files.length > 0 && html`<ul class="files" aria-label="Files to send">${files.map((file, index) => html`<li key=${index}>${plain(file.name)} <span class="dim">${size(file.size)}</span>
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
