// What only the inspector has: log-in by the card's schemes, own headers, extensions, metadata.

import { html, useEffect, useState } from "./vendor/preact.js";
import { act, get } from "./api.js";
import { link } from "./markdown.js";
import { LogIn } from "./login.js";

export function Remote({ session, busy }) {
  const [prompt, setPrompt] = useState(null);
  const [open, setOpen] = useState("");
  useEffect(() => {
    if (!busy) return setPrompt(null);
    const timer = setInterval(() => get("prompt").then((found) => setPrompt(found.url ? found : null), () => {}), 1000);
    return () => clearInterval(timer);
  }, [busy]);
  return html`<div>
    ${prompt && html`<p class="note" role="alert">Log in at ${link(prompt.url, "the authorization server")}${prompt.code && html` with the code <b class="id">${prompt.code}</b>`}.</p>`}
    <p class="task-line">
      ${(session.schemes || []).length > 0 && html`<button class="link" aria-expanded=${open === "login"} onClick=${() => setOpen(open === "login" ? "" : "login")}>Log in</button>`}
      <button class="link" aria-expanded=${open === "options"} onClick=${() => setOpen(open === "options" ? "" : "options")}>Headers, extensions, metadata</button></p>
    ${open === "login" && html`<${LogIn} session=${session} done=${() => setOpen("")} />`}
    ${open === "options" && html`<${Options} done=${() => setOpen("")} />`}
  </div>`;
}

function Options({ done }) {
  const [error, setError] = useState("");
  const save = async (event) => {
    event.preventDefault();
    const given = new FormData(event.target);
    try {
      const headers = {};
      for (const line of given.get("headers").split("\n").filter((each) => each.trim())) {
        const colon = line.indexOf(":");
        if (colon < 1) throw new Error(`Headers: "${line}" has no colon`);
        headers[line.slice(0, colon).trim()] = line.slice(colon + 1).trim();
      }
      const extensions = given.get("extensions").split(/\s+/).filter(Boolean);
      const metadata = JSON.parse(given.get("metadata") || "{}");
      await act("options", { headers, extensions, metadata });
      done();
    } catch (failed) {
      setError(failed.message);
    }
  };
  return html`<form class="box schema" onSubmit=${save}>
    <label>Headers, one per line<textarea name="headers" rows="3" spellcheck="false" placeholder="X-Name: value"></textarea></label>
    <label>URIs of extensions<textarea name="extensions" rows="3" spellcheck="false"></textarea></label>
    <label>Metadata as JSON<textarea name="metadata" rows="3" spellcheck="false" placeholder="{}"></textarea></label>
    ${error && html`<p class="bad" role="alert">${error}</p>`}
    <button>Use</button>
  </form>`;
}
