// Forms to log in as a caller, by the schemes of the agents.

import { html, useState } from "./vendor/preact.js";
import { act } from "./api.js";
import { plain } from "./format.js";

export function LogIn({ session, done }) {
  const [error, setError] = useState("");
  const send = async (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(event.target));
    try {
      await act("caller", given);
      event.target.reset();
      setError("");
      done();
    } catch (failed) {
      setError(failed.message);
    }
  };
  return html`<div>
    ${(session.schemes || []).map((scheme) => html`<form class="box schema" key=${scheme.name} onSubmit=${send}>
      <h2>${scheme.title} <span class="dim">${plain(scheme.name)}</span></h2>
      ${scheme.description && html`<p class="dim">${plain(scheme.description)}</p>`}
      <input type="hidden" name="scheme" value=${scheme.name} />
      ${scheme.kind === "oauth" && html`<label>Client id<input name="client" autocomplete="off" required /></label>`}
      ${scheme.kind === "basic" && html`<label>User<input name="user" autocomplete="off" required /></label>`}
      ${scheme.kind !== "certificate" && html`<label>${{ basic: "Password", oauth: "Client secret, if there is one" }[scheme.kind] || scheme.title}
        <input name="secret" type="password" autocomplete="off" required=${scheme.kind !== "oauth"} /></label>`}
      <button>Log in</button>
    </form>`)}
    ${error && html`<p class="bad" role="alert">${error}</p>`}
  </div>`;
}
