// A safe part of Markdown. The text becomes elements that are made here; it is never parsed as
// HTML, loads nothing, and links only to the web.

import { html } from "./vendor/preact.js";
import { linkHost, plain } from "./format.js";

const LONGEST = 100_000;
const BLOCKS = 2000;

export function Markdown({ text }) {
  const lines = plain(text.slice(0, LONGEST)).split(/\r?\n/);
  const cut = text.length > LONGEST ? html`<p class="dim">… and more</p>` : null;
  return html`<div class="markdown">${blocks(lines)}${cut}</div>`;
}

function blocks(lines) {
  const found = [];
  for (let i = 0; i < lines.length && found.length < BLOCKS; ) {
    const line = lines[i];
    let match;
    if (!line.trim()) i++;
    else if ((match = /^ {0,3}(`{3,}|~{3,})\s*([\w+-]*)/.exec(line))) {
      const code = [];
      for (i++; i < lines.length && !lines[i].trimStart().startsWith(match[1]); i++) {
        code.push(lines[i]);
      }
      i++;
      found.push(html`<pre tabindex="0"><code>${code.join("\n")}</code></pre>`);
    } else if ((match = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line))) {
      found.push(html`<p class=${`head head-${match[1].length}`}>${inline(match[2])}</p>`);
      i++;
    } else if (/^ {0,3}([-*_])( *\1){2,} *$/.test(line)) {
      found.push(html`<hr />`);
      i++;
    } else if (/^ {0,3}>/.test(line)) {
      const inner = [];
      for (; i < lines.length && /^ {0,3}>/.test(lines[i]); i++) {
        inner.push(lines[i].replace(/^ {0,3}> ?/, ""));
      }
      found.push(html`<blockquote>${inner.map((each) => html`<p>${inline(each)}</p>`)}</blockquote>`);
    } else if (/^\s*([-*+]|\d{1,9}[.)])\s+/.test(line)) {
      const ordered = /^\s*\d/.test(line);
      const entries = [];
      for (; i < lines.length && (match = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/.exec(lines[i])); i++) {
        const depth = Math.min(3, Math.floor(match[1].length / 2));
        entries.push(html`<li class=${`depth-${depth}`}>${inline(match[3])}</li>`);
      }
      found.push(ordered ? html`<ol>${entries}</ol>` : html`<ul>${entries}</ul>`);
    } else if (line.includes("|") && /^\s*\|?\s*:?-{2,}/.test(lines[i + 1] || "")) {
      const rows = [];
      for (; i < lines.length && lines[i].includes("|"); i++) rows.push(cells(lines[i]));
      found.push(table(rows));
    } else {
      const words = [];
      for (; i < lines.length && lines[i].trim() && !/^(#{1,6}\s|\s*[-*+]\s|`{3}|~{3}|>)/.test(lines[i]); i++) {
        words.push(lines[i]);
      }
      if (!words.length) words.push(lines[i++]);
      found.push(html`<p>${inline(words.join("\n"))}</p>`);
    }
  }
  return found;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").slice(0, 50);

function table([head, , ...rows]) {
  return html`<div class="scroll" tabindex="0"><table>
    <thead><tr>${head.map((cell) => html`<th scope="col">${inline(cell.trim())}</th>`)}</tr></thead>
    <tbody>${rows.map(
      (row) => html`<tr>${row.map((cell) => html`<td>${inline(cell.trim())}</td>`)}</tr>`,
    )}</tbody>
  </table></div>`;
}

const INLINE =
  /(`+)([^`]+)\1|\*\*([^*\n]+)\*\*|__([^_\n]+)__|\*([^*\s][^*\n]*)\*|!?\[([^\]\n]{0,1000})\]\(([^()\s]{1,2000})\)|(https?:\/\/[^\s<>()"'\]]{1,2000})/g;

function inline(text) {
  const found = [];
  let place = 0;
  for (const match of text.matchAll(INLINE)) {
    if (match.index > place) found.push(text.slice(place, match.index));
    if (match[2]) found.push(html`<code>${match[2]}</code>`);
    else if (match[3] || match[4]) found.push(html`<strong>${match[3] || match[4]}</strong>`);
    else if (match[5]) found.push(html`<em>${match[5]}</em>`);
    else if (match[7]) found.push(link(match[7], match[6] || match[7]));
    else if (match[8]) found.push(link(match[8], match[8]));
    place = match.index + match[0].length;
  }
  found.push(text.slice(place));
  return found;
}

export function link(url, text) {
  const host = linkHost(url);
  if (!host) return html`<span>${plain(text)}</span>`;
  return html`<a href=${url} target="_blank" rel="noopener noreferrer nofollow">${plain(text)}</a>
    <span class="dim host"> (${host})</span>`;
}
