// Webhooks with something to deliver: where they are, the last answer, the next attempt.

import { html, useEffect, useState } from "./vendor/preact.js";
import { act, get } from "./api.js";
import { age, moment, number, plain, shortId } from "./format.js";

export function Webhooks({ session }) {
  const [found, setFound] = useState(null);
  const [told, setTold] = useState("");
  const load = () => get("webhooks").then((all) => setFound(all.webhooks || []), (failed) => setTold(failed.message));
  useEffect(() => {
    load();
    const timer = setInterval(load, 3000);
    return () => clearInterval(timer);
  }, []);
  const redrive = async (hook) => {
    try {
      setTold((await act("webhooks/redrive", { task: hook.task, webhook: hook.id })).done);
      load();
    } catch (failed) {
      setTold(failed.message);
    }
  };
  return html`<section class="page scrolls" aria-label="Webhooks">
    <p role="status" class="dim">${told}</p>
    ${found && !found.length && html`<p class="empty">All webhooks have received everything.</p>`}
    ${found?.map((hook) => html`<article class="box" key=${hook.task + hook.id}>
      <header class="talk-head"><span class=${`state ${hook.parked ? "failed" : "working"}`}>${hook.parked ? "parked" : "waiting"}</span>
        <b>${plain(hook.host)}</b> <a href=${`#/task/${hook.task}`}>${shortId(hook.task)}</a> <span class="dim">${plain(hook.agent)}</span><span class="grow"></span>
        ${hook.parked && session.acts && html`<button onClick=${() => redrive(hook)}>Deliver again</button>`}</header>
      <p>${number(hook.cursor)} of ${number(hook.last)} entries${hook.attempts ? html`, ${hook.attempts} failed attempts` : ""}${!hook.parked && hook.due ? html`, next attempt ${hook.due * 1000 > Date.now() ? `at ${moment(hook.due)}` : `due for ${age(hook.due)}`}` : ""}.</p>
      ${hook.reason && html`<p class="bad">${plain(hook.reason)}</p>`}
    </article>`)}
  </section>`;
}
