// The wire: each request and answer of the chat, as it was sent.

import { html, useEffect, useState } from "./vendor/preact.js";
import { act, get } from "./api.js";
import { clock, plain } from "./format.js";
import { Json } from "./parts.js";

export function Wire({ agent, about, session, onClose }) {
  if (session.source === "agent") return html`<${RemoteWire} about=${about} onClose=${onClose} />`;
  return html`<${OwnWire} agent=${agent} about=${about} onClose=${onClose} />`;
}

// What the inspector has sent to the agent, as the server of the inspector recorded it.
function RemoteWire({ about, onClose }) {
  const [exchanges, setExchanges] = useState([]);
  const [open, setOpen] = useState(0);
  useEffect(() => {
    const load = () => get("wire").then((found) => setExchanges((found.exchanges || []).reverse()), () => {});
    load();
    const timer = setInterval(load, 1000);
    return () => clearInterval(timer);
  }, []);
  return html`<aside class="wire" aria-label="Wire">
    <header><h2>Wire</h2><span class="grow"></span><button class="link" onClick=${onClose}>Close</button></header>
    ${!exchanges.length && html`<p class="dim">Nothing was sent yet.</p>`}
    ${exchanges.map((each) => html`<article key=${each.number} class="box">
      <button class="fold line" aria-expanded=${open === each.number} onClick=${() => setOpen(open === each.number ? 0 : each.number)}>
        <b>${each.call || each.method}</b> <span class="clip">${plain(each.url)}</span>
        <span class=${each.error || each.status >= 400 ? "bad" : "dim"}>${each.status || (each.error ? "failed" : "")} ${clock(each.at)}</span></button>
      ${open === each.number && html`<${RemoteExchange} number=${each.number} about=${about} />`}
    </article>`)}
  </aside>`;
}

function RemoteExchange({ number, about }) {
  const [each, setEach] = useState(null);
  useEffect(() => {
    const load = () => get(`wire/${number}`).then(setEach, () => {});
    load();
    const timer = setInterval(load, 1000); // an answer may grow
    return () => clearInterval(timer);
  }, [number]);
  if (!each) return null;
  return html`<div class="exchange"><h3>Request</h3><pre tabindex="0">${each.method} ${plain(each.url)}${"\n"}${lines(each.sent)}</pre><${Body} text=${each.body || ""} />
    <h3>Answer ${each.status || ""}</h3><pre tabindex="0">${lines(each.received)}</pre>
    ${each.error && html`<p class="bad">${plain(each.error)}</p>`}
    ${each.undecoded && html`<p class="bad">It could not be decoded: ${plain(each.undecoded)}</p>`}
    <${Body} text=${each.answer || ""} />
    ${each.call && html`<${Others} about=${about} method=${each.call} params=${each.params} />`}</div>`;
}

const HIDDEN = ["x-dragoman-console"];
const lines = (headers) => Object.entries(headers || {}).filter(([name]) => !HIDDEN.includes(name)).map(([name, value]) => `${name}: ${plain(value)}`).join("\n");

function OwnWire({ agent, about, onClose }) {
  const [, redraw] = useState(0);
  const [open, setOpen] = useState("");
  useEffect(() => {
    let waiting = 0;
    const listener = () => {
      waiting ||= setTimeout(() => ((waiting = 0), redraw((n) => n + 1)), 100);
    };
    agent.wire.listeners.add(listener);
    return () => (agent.wire.listeners.delete(listener), clearTimeout(waiting));
  }, [agent]);
  const exchanges = [...agent.wire.exchanges].reverse();
  return html`<aside class="wire" aria-label="Wire">
    <header><h2>Wire</h2><span class="grow"></span><button class="link" onClick=${onClose}>Close</button></header>
    ${!exchanges.length && html`<p class="dim">Nothing was sent yet.</p>`}
    ${exchanges.map((each) => html`<article key=${each.key} class="box">
      <button class="fold line" aria-expanded=${open === each.key} onClick=${() => setOpen(open === each.key ? "" : each.key)}>
        <b>${each.method}</b>${each.times > 1 ? ` ×${each.times}` : ""} <span class=${`state ${{ done: "completed", closed: "completed", failed: "failed", interrupted: "input-required" }[each.state] || "working"}`}>${each.status || ""} ${each.state}</span>
        <span class="dim">${clock(each.at / 1000)}</span></button>
      ${open === each.key && html`<${Exchange} each=${each} about=${about} />`}
    </article>`)}
  </aside>`;
}

function Exchange({ each, about }) {
  return html`<div class="exchange">
    <h3>Request</h3><pre tabindex="0">POST ${each.url}${"\n"}${lines(each.sent)}</pre><${Body} text=${JSON.stringify(each.body)} />
    <h3>Answer ${each.status || ""}</h3>
    ${each.status > 0 && html`<pre tabindex="0">${lines(each.received)}</pre>`}
    ${each.error && html`<p class="bad">${plain(each.error)}</p>`}
    ${each.undecoded && html`<p class="bad">It could not be decoded: ${plain(each.undecoded)}</p>`}
    ${each.events.map((event, index) => html`<div key=${index}>${event.id && html`<span class="dim id">id: ${event.id}</span>`}<${Body} text=${event.data} /></div>`)}
    <${Others} about=${about} method=${each.method} params=${each.params} />
  </div>`;
}

// The same call in other versions and bindings, made but not sent.
function Others({ about, method, params }) {
  const [others, setOthers] = useState(null);
  const [error, setError] = useState("");
  const show = async () => {
    try {
      setOthers((await act("requests", { agent: about.key, method, params: params || {} })).requests);
    } catch (failed) {
      setError(failed.message);
    }
  };
  return html`<div>
    <button class="link" onClick=${show}>The same call in other versions and bindings</button>
    ${error && html`<p class="bad">${error}</p>`}
    ${others && others.map((other) => html`<div key=${other.title}><h3>${other.title} <span class="dim">made, not sent</span></h3>
      ${other.error ? html`<p class="dim">${plain(other.error)}</p>` : html`<pre tabindex="0">${other.method} ${plain(other.url)}${"\n"}${lines(other.headers)}</pre><${Body} text=${other.body} />`}</div>`)}
  </div>`;
}

function Body({ text }) {
  const [raw, setRaw] = useState(false);
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return text ? html`<pre tabindex="0">${plain(text)}</pre>` : null;
  }
  return html`<div><button class="link" aria-pressed=${raw} onClick=${() => setRaw(!raw)}>${raw ? "Tree" : "Bytes"}</button>
    ${raw ? html`<pre class="text" tabindex="0">${plain(text)}</pre>` : html`<${Json} value=${value} open=${4} />`}</div>`;
}
