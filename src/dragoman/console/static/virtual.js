// A list that draws only what is visible. Rows may have different heights.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact.js";

const EXTRA = 600; // pixels that are drawn above and below

export function Virtual({ items, keyOf, draw, height = 44, label, role = "list", tail, selected }) {
  const box = useRef(null);
  const heights = useRef(new Map());
  const atEnd = useRef(false);
  const [view, setView] = useState({ top: 0, size: 800 });
  const [, redraw] = useState(0);

  const known = heights.current;
  const offsets = new Float64Array(items.length + 1);
  for (let i = 0; i < items.length; i++) {
    offsets[i + 1] = offsets[i] + (known.get(keyOf(items[i])) || height);
  }
  const total = offsets[items.length];
  const first = Math.max(0, lower(offsets, view.top - EXTRA) - 1);
  const last = Math.min(items.length, lower(offsets, view.top + view.size + EXTRA) + 1);

  useEffect(() => {
    const element = box.current;
    const measure = () => setView({ top: element.scrollTop, size: element.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    measure();
    return () => observer.disconnect();
  }, []);

  useLayoutEffect(() => {
    let changed = false;
    for (const child of box.current.firstChild.children) {
      const size = child.offsetHeight;
      if (child.dataset.key && size && known.get(child.dataset.key) !== size) {
        known.set(child.dataset.key, size);
        changed = true;
      }
    }
    if (changed) redraw((n) => n + 1);
    if (tail && atEnd.current) box.current.scrollTop = box.current.scrollHeight;
  });

  useEffect(() => {
    if (selected === undefined || selected < 0) return;
    const element = box.current;
    const [start, end] = [offsets[selected], offsets[selected + 1]];
    if (start < element.scrollTop) element.scrollTop = start;
    else if (end > element.scrollTop + element.clientHeight) {
      element.scrollTop = end - element.clientHeight;
    }
  }, [selected]);

  const scrolled = (event) => {
    const element = event.currentTarget;
    atEnd.current = element.scrollTop + element.clientHeight > element.scrollHeight - 40;
    setView({ top: element.scrollTop, size: element.clientHeight });
  };
  const rows = [];
  for (let i = first; i < last; i++) {
    const key = keyOf(items[i]);
    rows.push(html`<div class="row-box" key=${key} data-key=${key}>${draw(items[i], i)}</div>`);
  }
  return html`<div class="virtual" ref=${box} onScroll=${scrolled} role=${role} aria-label=${label}
    tabindex="0">
    <div style=${{ paddingTop: `${offsets[first]}px`, paddingBottom: `${total - offsets[last]}px` }}>
      ${rows}
    </div>
  </div>`;
}

// The first index whose offset is not below the value.
function lower(offsets, value) {
  let low = 0;
  let high = offsets.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (offsets[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
