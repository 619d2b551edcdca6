// The processes that serve and work, with small charts of what they did.

import { html, useEffect, useState } from "./vendor/preact.js";
import { get } from "./api.js";
import { age, number, plain } from "./format.js";

export function Fleet() {
  const [found, setFound] = useState(null);
  const [error, setError] = useState("");
  useEffect(() => {
    const load = () => get("fleet").then((all) => (setFound(all.processes || []), setError("")), (failed) => setError(failed.message));
    load();
    const timer = setInterval(load, 5000);
    return () => clearInterval(timer);
  }, []);
  return html`<section class="page scrolls" aria-label="Fleet">
    ${error && html`<p class="bad" role="alert">${error}</p>`}
    ${found && !found.length && html`<p class="empty">No process has written a row. Processes write rows if the setting "fleet" is true.</p>`}
    <div class="fleet">${found?.map((each) => html`<${Process} key=${each.name} process=${each} />`)}</div>
  </section>`;
}

function Process({ process }) {
  const rows = process.rows || [];
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((name) => name !== "at" && rows.some((row) => row[name]));
  return html`<article class="box">
    <header class="talk-head"><span class=${`state ${process.gone ? "failed" : "completed"}`}>${process.gone ? "gone" : "running"}</span>
      <b class="id">${plain(process.name)}</b> <span class="dim">${plain(process.role || "")} ${plain(process.version || "")}</span></header>
    <p>${number(process.running || 0)} running turns, ${number(process.streams || 0)} streams, seen ${age(process.seen)} ago.</p>
    ${names.map((name) => html`<${Chart} key=${name} name=${name} values=${rows.map((row) => row[name] || 0)} />`)}
  </article>`;
}

export function Chart({ name, values }) {
  const most = Math.max(1, ...values);
  const width = 240;
  const step = values.length > 1 ? width / (values.length - 1) : width;
  const points = values.map((value, index) => `${(index * step).toFixed(1)},${(38 - (value / most) * 34).toFixed(1)}`).join(" ");
  const last = values[values.length - 1] || 0;
  return html`<figure class="chart"><figcaption>${plain(name.replace(/_/g, " "))} <b>${number(last)}</b> <span class="dim">at most ${number(most)}</span></figcaption>
    <svg viewBox="0 0 240 40" role="img" aria-label=${`${plain(name)}: ${last} now, at most ${most}`} preserveAspectRatio="none"><polyline points=${points} /></svg>
  </figure>`;
}
