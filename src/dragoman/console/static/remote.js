// What only the inspector has: log-in by the card's schemes, own headers, extensions, metadata.

import { html, useEffect, useState } from "./vendor/preact.js";
import { act, get } from "./api.js";
import { link } from "./markdown.js";
import { LogIn } from "./login.js";

export function Remote({ session, busy, reload }) {
  const [prompt, setPrompt] = useState(null);
  const [open, setOpen] = useState("");
  const [asked, setAsked] = useState(0); // how often somebody has logged in
  useEffect(() => {
    if (!busy && !asked) return;
    let timer = 0;
    const load = async () => {
      try {
        const found = await get("prompt");
        setPrompt(found);
        if (!busy && !["trying", "waiting"].includes(found.state)) return reload();
      } catch {
        // the page says that the server does not answer
      }
      timer = setTimeout(load, 700);
    };
    load();
    return () => clearTimeout(timer);
  }, [busy, asked]);
  const begun = () => (setOpen(""), setAsked((n) => n + 1));
  return html`<div>
    <${Prompt} prompt=${prompt} />
    <p class="task-line">
      ${(session.schemes || []).length > 0 && html`<button class="link" aria-expanded=${open === "login"} onClick=${() => setOpen(open === "login" ? "" : "login")}>Log in</button>`}
      <button class="link" aria-expanded=${open === "options"} onClick=${() => setOpen(open === "options" ? "" : "options")}>Headers, extensions, metadata</button></p>
    ${open === "login" && html`<${LogIn} session=${session} done=${begun} />`}
    ${open === "options" && html`<${Options} done=${() => setOpen("")} />`}
  </div>`;
}

function Prompt({ prompt }) {
  switch (prompt?.state) {
    case "trying":
      return html`<p class="note" role="status">Asking the agent …</p>`;
    case "waiting":
      return html`<p class="note" role="alert">Log in at ${link(prompt.url, "the authorization server")}${prompt.code && html` with the code <b class="id">${prompt.code}</b>`}.</p>`;
    case "done":
      return html`<p class="note" role="status">Logged in: the agent accepts the credentials.</p>`;
    case "failed":
      return html`<p class="bad" role="alert">Not logged in: ${prompt.error}</p>`;
    default:
      return null;
  }
}

function Options({ done }) {
  const [known, setKnown] = useState(null);
  const [error, setError] = useState("");
  useEffect(() => {
    get("options").then(setKnown, (failed) => setError(failed.message));
  }, []);
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
  if (!known) return error && html`<p class="bad" role="alert">${error}</p>`;
  const headers = Object.entries(known.headers || {}).map(([name, text]) => `${name}: ${text}`);
  const metadata = Object.keys(known.metadata || {}).length ? JSON.stringify(known.metadata, null, 2) : "";
  return html`<form class="box schema" onSubmit=${save}>
    <label>Headers, one per line<textarea name="headers" rows="3" spellcheck="false" placeholder="X-Name: value" defaultValue=${headers.join("\n")}></textarea></label>
    ${headers.length > 0 && html`<p class="dim">*** keeps the value that the header has.</p>`}
    <label>URIs of extensions<textarea name="extensions" rows="3" spellcheck="false" defaultValue=${(known.extensions || []).join("\n")}></textarea></label>
    <label>Metadata as JSON<textarea name="metadata" rows="3" spellcheck="false" placeholder="{}" defaultValue=${metadata}></textarea></label>
    ${error && html`<p class="bad" role="alert">${error}</p>`}
    <button>Use</button>
  </form>`;
}
