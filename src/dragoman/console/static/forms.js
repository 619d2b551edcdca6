// Forms made of a JSON Schema, for the parameters of a skill or for a question.

import { html, useState } from "./vendor/preact.js";
import { plain } from "./format.js";

// The schema with what it refers to in place, to a depth that ends.
function resolved(schema, root, depth = 0) {
  if (!schema || typeof schema !== "object" || depth > 8) return {};
  if (typeof schema.$ref === "string" && schema.$ref.startsWith("#/")) {
    let found = root;
    for (const name of schema.$ref.slice(2).split("/")) {
      found = Object.hasOwn(found || {}, name) ? found[name] : undefined;
    }
    return { ...resolved(found, root, depth + 1), ...omit(schema, "$ref") };
  }
  const options = schema.anyOf || schema.oneOf;
  if (Array.isArray(options)) {
    const some = options.filter((each) => each?.type !== "null");
    if (some.length === 1) return { ...resolved(some[0], root, depth + 1), ...omit(schema, "anyOf", "oneOf"), optional: some.length < options.length };
  }
  return schema;
}

function omit(object, ...names) {
  return Object.fromEntries(Object.entries(object).filter(([name]) => !names.includes(name)));
}

export function Form({ schema, files = {}, submit, onSend, busy }) {
  const root = schema || {};
  const fields = Object.entries(root.properties || {});
  const required = new Set(root.required || []);
  const [values, setValues] = useState({});
  const [given, setGiven] = useState({});
  const [error, setError] = useState("");
  const send = (event) => {
    event.preventDefault();
    const data = {};
    try {
      for (const [name, inner] of fields) {
        const value = read(values[name], resolved(inner, root), name);
        if (value !== undefined) data[name] = value;
      }
    } catch (failed) {
      return setError(failed.message);
    }
    setError("");
    onSend(data, given);
    setValues({});
    setGiven({});
  };
  return html`<form class="schema" onSubmit=${send}>
    ${fields.map(([name, inner]) => html`<${Field} key=${name} name=${name} schema=${resolved(inner, root)}
      required=${required.has(name)} value=${values[name]}
      onValue=${(value) => setValues({ ...values, [name]: value })} />`)}
    ${Object.entries(files).map(([name, about]) => html`<label key=${name}>${plain(name)}
      <input type="file" required=${about.required !== false} onChange=${(event) => setGiven({ ...given, [name]: event.target.files[0] })} />
      ${about.description && html`<small class="dim">${plain(about.description)}</small>`}</label>`)}
    ${error && html`<p class="bad" role="alert">${error}</p>`}
    <button disabled=${busy}>${submit}</button>
  </form>`;
}

function Field({ name, schema, required, value, onValue }) {
  const about = schema.description && html`<small class="dim">${plain(schema.description)}</small>`;
  const title = html`<span>${plain(schema.title || name)}${required ? "" : html` <span class="dim">optional</span>`}</span>`;
  const shown = value === undefined ? (schema.default ?? "") : value;
  const onInput = (event) => onValue(event.target.value);
  if (Array.isArray(schema.enum)) {
    return html`<label>${title}
      <select value=${JSON.stringify(value ?? schema.default ?? null)} required=${required} onChange=${(event) => onValue(JSON.parse(event.target.value))}>
        ${(!required || value === undefined) && html`<option value="null"></option>`}
        ${schema.enum.map((each) => html`<option key=${String(each)} value=${JSON.stringify(each)}>${plain(each)}</option>`)}
      </select>${about}</label>`;
  }
  const kind = Array.isArray(schema.type) ? schema.type.find((each) => each !== "null") : schema.type;
  switch (kind) {
    case "boolean":
      return html`<label class="check"><input type="checkbox" checked=${Boolean(value ?? schema.default)} onChange=${(event) => onValue(event.target.checked)} /> ${title}${about}</label>`;
    case "integer":
    case "number":
      return html`<label>${title}<input type="number" value=${shown} required=${required && schema.default === undefined}
        min=${schema.minimum} max=${schema.maximum} step=${kind === "integer" ? 1 : "any"} onInput=${onInput} />${about}</label>`;
    case "string": {
      const type = { date: "date", email: "email", uri: "url" }[schema.format] || "text";
      return html`<label>${title}<input type=${type} value=${shown} required=${required && schema.default === undefined}
        minlength=${schema.minLength} maxlength=${schema.maxLength} onInput=${onInput} />${about}</label>`;
    }
    default:
      return html`<label>${title}<textarea rows="3" spellcheck="false" required=${required} placeholder="JSON"
        value=${typeof shown === "string" ? shown : JSON.stringify(shown)} onInput=${onInput}></textarea>${about}</label>`;
  }
}

function read(value, schema, name) {
  if (value === undefined || value === "" || value === null) return undefined;
  const kind = Array.isArray(schema.type) ? schema.type.find((each) => each !== "null") : schema.type;
  if (Array.isArray(schema.enum) || kind === "boolean" || kind === "string") return value;
  if (kind === "integer" || kind === "number") return Number(value);
  try {
    return typeof value === "string" ? JSON.parse(value) : value;
  } catch {
    throw new Error(`${name}: this is not JSON`);
  }
}
