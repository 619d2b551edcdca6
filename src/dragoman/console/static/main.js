// The page: navigation, the view of the address, and whether the server answers.

import { html, render, useCallback, useEffect, useErrorBoundary, useState } from "./vendor/preact.js";
import { act, get } from "./api.js";
import { Agents } from "./agents.js";
import { Chat } from "./chat.js";
import { Fleet } from "./fleet.js";
import { OpenLog } from "./log.js";
import { read } from "./route.js";
import { Tasks } from "./table.js";
import { Task } from "./task.js";
import { Webhooks } from "./webhooks.js";

const VIEWS = [
  ["tasks", "Tasks", ["app", "store"]],
  ["chat", "Chat", ["app", "agent"]],
  ["agents", "Agents", ["app", "agent"]],
  ["webhooks", "Webhooks", ["app", "store"]],
  ["fleet", "Fleet", ["app", "store"]],
  ["log", "Open a log", ["app", "store"]],
];

const HEARTBEAT = 3000; // milliseconds

function Console() {
  const [route, setRoute] = useState(read());
  const [session, setSession] = useState(null);
  const [offline, setOffline] = useState(null);
  const [broken] = useErrorBoundary((error) => console.error(error));

  const load = useCallback(async () => {
    try {
      setSession(await get("session"));
      setOffline(null);
    } catch (error) {
      setOffline(error);
    }
  }, []);
  useEffect(() => {
    load();
    const changed = () => setRoute(read());
    addEventListener("hashchange", changed);
    changed(); // the address may have changed since the first drawing
    return () => removeEventListener("hashchange", changed);
  }, []);
  const online = useCallback((good, error) => {
    setOffline((known) => (good ? (known ? null : known) : error || known));
  }, []);
  useEffect(() => {
    if (offline?.status !== 401 && offline && !session) {
      const timer = setTimeout(load, 1500);
      return () => clearTimeout(timer);
    }
  }, [offline, session]);

  // Tasks are followed; the other views only ask now and then whether the server is there.
  useEffect(() => {
    if (["tasks", "task"].includes(route.view)) return;
    const ask = () => !document.hidden && get("session").then(() => online(true), (error) => online(false, error));
    const timer = setInterval(ask, offline ? 1000 : HEARTBEAT);
    return () => clearInterval(timer);
  }, [route.view, !offline]);

  useEffect(() => {
    const name = VIEWS.find(([view]) => view === route.view)?.[1] || "Task";
    document.title = `${name} · Console`;
  }, [route.view]);

  if (broken) return html`<p class="empty bad" role="alert">The page has failed: ${broken.message}. Reload it.</p>`;
  const here = route.view === "task" ? "tasks" : shownView(route, session);
  const views = VIEWS.filter(([, , sources]) => session && sources.includes(session.source));
  return html`
    <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), document.getElementById("main").focus())}>Skip to the content</a>
    <nav class="top" aria-label="Console">
      <span class="brand" title=${session?.title || ""}>${session?.title || "Console"}</span>
      <div class="views">${views.map(([view, name]) => html`<a key=${view} href=${`#/${view}`} aria-current=${here === view ? "page" : undefined}>${name}</a>`)}</div>
      <span class="grow"></span>
      ${session && html`<span class="who" title=${session.acts ? "may act" : "may look"}>${session.name}${session.tenant ? ` · ${session.tenant}` : ""}</span>`}
      ${session && html`<button class="link" onClick=${async () => (await act("logout"), location.reload())}>Log out</button>`}
    </nav>
    ${offline && html`<${Offline} error=${offline} />`}
    <main id="main" tabindex="-1">${session && html`<${View} route=${route} session=${session} onOnline=${online} reload=${load} />`}</main>
  `;
}

function Offline({ error }) {
  if (error.status === 401) {
    return html`<p class="offline" role="alert">The session has ended. <a href="/console/">Log in again</a>; on this machine, open the address that the server has printed on its terminal.</p>`;
  }
  if (error.status) return html`<p class="offline" role="alert">${error.message}</p>`;
  return html`<p class="offline" role="alert">The server does not answer. The page goes on where it was when it is back.</p>`;
}

// The inspector has no tasks, so it begins with the chat.
const shownView = (route, session) => (session?.source === "agent" && route.view === "tasks" ? "chat" : route.view);

function View({ route, session, onOnline, reload }) {
  switch (shownView(route, session)) {
    case "task":
      return html`<${Task} key=${route.argument} id=${route.argument} session=${session} onOnline=${onOnline} />`;
    case "chat":
      return html`<${Chat} route=${route} session=${session} reload=${reload} onOnline=${onOnline} />`;
    case "log":
      return html`<${OpenLog} />`;
    case "agents":
      return html`<${Agents} />`;
    case "webhooks":
      return html`<${Webhooks} session=${session} />`;
    case "fleet":
      return html`<${Fleet} />`;
    default:
      return html`<${Tasks} route=${route} session=${session} onOnline=${onOnline} />`;
  }
}

render(html`<${Console} />`, document.getElementById("app"));
