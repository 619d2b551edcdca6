// Forms to log in as a caller, by the schemes of the agents.

import { html, useState } from "./vendor/preact.js";
import { act } from "./api.js";
import { plain } from "./format.js";

const FLOWS = { code: "in the browser", device: "with a code on another device", client: "with the client's secret, without a person" };

// In the inspector, the process of the inspector logs in at authorization servers. In the console
// of a server, the browser goes there and comes back; the server gets the token.
export function LogIn({ session, done }) {
  const [error, setError] = useState("");
  const inspector = session.source === "agent";
  const schemes = new Map((session.schemes || []).map((each) => [each.name, each]));
  const ways = (session.ways || []).map((names) => names.map((name) => schemes.get(name)));
  const given = async (values, form) => {
    try {
      const { url } = await act("caller", values);
      if (/^https?:/.test(url || "")) return location.assign(url);
      form?.reset();
      setError("");
      done();
    } catch (failed) {
      setError(failed.message);
    }
  };
  const send = (event) => {
    event.preventDefault();
    given(Object.fromEntries(new FormData(event.target)), event.target);
  };
  return html`<div>
    ${ways.map((way) => html`<${Way} key=${way.map((each) => each.name).join("\n")} way=${way} inspector=${inspector} client=${session.client}
      onSubmit=${send} onForget=${(scheme) => given({ scheme: scheme.name, forget: "yes" })} />`)}
    ${error && html`<p class="bad" role="alert">${error}</p>`}
  </div>`;
}

// The form of one scheme, or of several that are required together.
function Way({ way, inspector, client, onSubmit, onForget }) {
  const name = way.map((each) => each.name).join("\n");
  const [only] = way;
  const server = way.length === 1 && !inspector && only.kind === "oauth" && only.flows?.includes("code") && only.server;
  const [own, setOwn] = useState(!server);
  return html`<form class="box schema" data-scheme=${name} onSubmit=${onSubmit}>
    ${way.map((scheme) => html`<${Scheme} key=${scheme.name} scheme=${scheme} suffix=${way.length > 1 ? `:${scheme.name}` : ""}
      inspector=${inspector} own=${own} client=${client} />`)}
    <input type="hidden" name="scheme" value=${name} />
    ${only.used && html`<p>There are credentials for it. <button type="button" class="link" onClick=${() => onForget(only)}>Forget them</button></p>`}
    ${server && html`<p><button type="button" class="link" onClick=${() => setOwn(!own)}>${own ? "Log in at the authorization server" : "Use an access token that you have"}</button></p>`}
    ${!(inspector && only.kind === "certificate") && html`<button>${own ? "Log in" : `Log in at ${server}`}</button>`}
  </form>`;
}

function Scheme({ scheme, suffix, inspector, own, client }) {
  return html`<h2>${scheme.title} <span class="dim">${plain(scheme.name)}</span></h2>
    ${scheme.description && html`<p class="dim">${plain(scheme.description)}</p>`}
    ${own ? html`<${Fields} scheme=${scheme} inspector=${inspector} suffix=${suffix} />` : html`<${Field} name="client" label="Client id" value=${client} />`}`;
}

function Fields({ scheme, inspector, suffix }) {
  const secret = `secret${suffix}`;
  switch (scheme.kind) {
    case "basic":
      return html`<${Field} name=${`user${suffix}`} label="User" /><${Field} name=${secret} label="Password" hidden />`;
    case "certificate":
      return html`<p>${inspector ? "Start the inspector with --cert FILE." : "The browser sends its certificate."}</p>`;
    case "key":
      return html`<${Field} name=${secret} label=${`Key (${scheme.where} ${plain(scheme.field)})`} hidden />`;
    case "oauth":
      return inspector ? html`<${OAuth} scheme=${scheme} />` : html`<${Field} name=${secret} label="Access token" hidden />`;
    default:
      return html`<${Field} name=${secret} label=${scheme.title} hidden />`;
  }
}

function OAuth({ scheme }) {
  const [own, setOwn] = useState(false);
  const flows = scheme.flows || [];
  if (own || !flows.length) {
    return html`<${Field} name="token" label="Access token" hidden />
      ${flows.length > 0 && html`<p><button type="button" class="link" onClick=${() => setOwn(false)}>Log in at the authorization server</button></p>`}`;
  }
  return html`<${Field} name="client" label="Client id" />
    <${Field} name="secret" label="Client secret, if there is one" hidden optional />
    ${flows.length > 1
      ? html`<label>How<select name="flow">${flows.map((flow) => html`<option key=${flow} value=${flow}>${FLOWS[flow]}</option>`)}</select></label>`
      : html`<p class="dim">It is a log-in ${FLOWS[flows[0]]}.</p>`}
    ${scheme.foreign && html`<label class="check wide"><input type="checkbox" name="issuer" value=${scheme.server} required />
      Log in at ${plain(scheme.server)}, which the card names</label>`}
    ${flows.includes("code") && html`<p class="dim">The client's redirect URI is <span class="id">${`${location.origin}/callback`}</span></p>`}
    <p><button type="button" class="link" onClick=${() => setOwn(true)}>Use an access token that you have</button></p>`;
}

function Field({ name, label, hidden, optional, value }) {
  return html`<label>${label}<input name=${name} type=${hidden ? "password" : "text"} defaultValue=${value || ""} autocomplete="off" required=${!optional} /></label>`;
}
