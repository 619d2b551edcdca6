// Addresses inside the page: what follows the # has a path and parameters.

export function read() {
  const text = location.hash.replace(/^#/, "") || "/tasks";
  const [path, search = ""] = text.split("?");
  const [, view = "tasks", ...rest] = path.split("/");
  let argument = rest.join("/");
  try {
    argument = decodeURIComponent(argument);
  } catch {
    argument = "";
  }
  return { view: view || "tasks", argument, search, parameters: new URLSearchParams(search) };
}

export function go(address) {
  location.hash = address;
}

// The address with other parameters; empty ones are left out.
export function withParameters(path, parameters, changes) {
  const found = new URLSearchParams(parameters);
  for (const [name, value] of Object.entries(changes)) {
    value ? found.set(name, value) : found.delete(name);
  }
  const text = found.toString();
  return text ? `${path}?${text}` : path;
}
