// Parts of messages and artifacts: text, data, files and links.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { address } from "./api.js";
import { plain, size } from "./format.js";
import { link, Markdown } from "./markdown.js";

export const Parts = ({ parts, markdown = true }) =>
  (parts || []).map((part, index) => html`<${Part} key=${index} part=${part} markdown=${markdown} />`);

function Part({ part, markdown }) {
  switch (part.kind) {
    case "text":
      return html`<${Text} part=${part} markdown=${markdown} />`;
    case "data":
      return html`<${Json} value=${part.data} />`;
    case "file":
      return html`<${File} part=${part} />`;
    default:
      return html`<p class="file">${link(part.url || "", part.filename || part.url || "")}
        ${part.mediaType && html` <span class="dim">${plain(part.mediaType)}</span>`}</p>`;
  }
}

const PLAIN = /^(text\/(plain|html|css|csv|xml)|image\/svg\+xml|application\/(json|xml|javascript))/;

function Text({ part, markdown }) {
  const text = part.text || "";
  const cut = part.cut ? html`<p class="dim">${part.cut} more characters are not shown.</p>` : null;
  const name = part.filename ? html`<p class="dim">${plain(part.filename)}</p>` : null;
  if (!markdown && !part.mediaType) return html`<p class="text said-text">${plain(text)}</p>${cut}`;
  if (!markdown || PLAIN.test(part.mediaType || "")) {
    return html`${name}<pre class="text">${plain(text)}</pre>${cut}`;
  }
  return html`${name}<${Markdown} text=${text} />${cut}`;
}

function File({ part }) {
  if (part.raw !== undefined) return html`<${Sent} part=${part} />`;
  const name = plain(part.filename || "file");
  const url = part.path && address(part.path);
  const image = part.image && url;
  return html`<p class="file">
    ${image && html`<img src=${url} alt=${name} loading="lazy" />`}
    <span>${name}</span> <span class="dim">${plain(part.mediaType || "")} ${size(part.size || 0)}</span>
    ${url && html` <a href=${url} download=${name} aria-label=${`Save ${name}`}>Save</a>`}
  </p>`;
}

// -- a file whose content is here

const IMAGES = { "iVBORw0KGgo": "image/png", "/9j/": "image/jpeg", R0lGOD: "image/gif", UklGR: "image/webp" };

function Sent({ part }) {
  const canvas = useRef(null);
  const name = plain(part.filename || "file");
  const type = Object.entries(IMAGES).find(([start]) => part.raw.startsWith(start))?.[1];
  useEffect(() => {
    if (!type) return;
    createImageBitmap(blob(part.raw, type)).then((image) => {
      const element = canvas.current;
      if (!element) return;
      const scale = Math.min(1, 640 / image.width, 480 / image.height);
      element.width = image.width * scale;
      element.height = image.height * scale;
      element.getContext("2d").drawImage(image, 0, 0, element.width, element.height);
    }, () => {});
  }, [part.raw]);
  const save = () => {
    const url = URL.createObjectURL(blob(part.raw, "application/octet-stream"));
    const anchor = document.createElement("a");
    anchor.href = url;
    anchor.download = name;
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  };
  return html`<p class="file">${type && html`<canvas ref=${canvas} role="img" aria-label=${name}></canvas>`}
    <span>${name}</span> <span class="dim">${plain(part.mediaType || "")} ${size(part.size || 0)}</span>
    <button class="link" aria-label=${`Save ${name}`} onClick=${save}>Save</button></p>`;
}

function blob(raw, type) {
  const text = atob(raw.replace(/-/g, "+").replace(/_/g, "/"));
  return new Blob([Uint8Array.from(text, (each) => each.charCodeAt(0))], { type });
}

// -- JSON as a tree

const FEW = 100;

export function Json({ value, open = 2 }) {
  return html`<div class="json"><${Node} value=${value} open=${open} /></div>`;
}

function Node({ name, value, open }) {
  const [shown, setShown] = useState(open > 0);
  const [most, setMost] = useState(FEW);
  const label = name === undefined ? null : html`<span class="key">${plain(name)}: </span>`;
  if (value === null || typeof value !== "object") {
    const kind = value === null ? "null" : typeof value;
    const text = kind === "string" ? JSON.stringify(plain(value)) : String(value);
    return html`<div class="leaf">${label}<span class=${`value ${kind}`}>${text}</span></div>`;
  }
  const many = Array.isArray(value);
  const keys = Object.keys(value);
  const sum = many ? `[${keys.length}]` : `{${keys.length}}`;
  if (!keys.length) return html`<div class="leaf">${label}<span class="dim">${many ? "[]" : "{}"}</span></div>`;
  return html`<div class="node">
    <button class="fold" aria-expanded=${shown} onClick=${() => setShown(!shown)}>
      <span aria-hidden="true">${shown ? "▾" : "▸"}</span> ${label}<span class="dim">${sum}</span>
    </button>
    ${shown &&
    html`<div class="inner">
      ${keys
        .slice(0, most)
        .map((key) => html`<${Node} key=${key} name=${key} value=${value[key]} open=${open - 1} />`)}
      ${keys.length > most &&
      html`<button class="link" onClick=${() => setMost(most + 500)}>${keys.length - most} more</button>`}
    </div>`}
  </div>`;
}
