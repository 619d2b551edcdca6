// What an agent's list of tasks does not say: conversations without a task, and in the inspector the
// direct replies themselves, and the tasks of agents that cannot list. It is kept in this tab.

const MOST = 100; // for one conversation

const read = (name) => {
  try {
    return JSON.parse(sessionStorage.getItem(name) || "[]");
  } catch {
    return [];
  }
};

function write(name, values) {
  try {
    sessionStorage.setItem(name, JSON.stringify(values.slice(-MOST)));
  } catch {
    // the tab has no room left
  }
}

export const keptReplies = (context) => read(`replies ${context}`);

export function keepReply(context, sent, reply) {
  const at = Date.now();
  const both = [...(sent ? [{ ...sent, at }] : []), { ...reply, at: at + 1 }];
  const known = keptReplies(context).filter((each) => !both.some((one) => one.messageId === each.messageId));
  write(`replies ${context}`, [...known, ...both]);
}

export function keepTask(task) {
  if (!task.contextId) return;
  const name = `tasks ${task.contextId}`;
  const ids = read(name);
  if (!ids.includes(task.id)) write(name, [...ids, task.id]);
}

export async function keptTasks(agent, context) {
  const found = [];
  for (const id of read(`tasks ${context}`)) {
    try {
      found.push(await agent.call("GetTask", { id }));
    } catch {
      // the agent has forgotten it
    }
  }
  return found;
}

export const keptContexts = (key) => read(`contexts ${key}`);

export function keepContext(key, found) {
  const known = keptContexts(key);
  const first = known.find((each) => each.context === found.context);
  const rest = known.filter((each) => each !== first);
  write(`contexts ${key}`, [...rest, { ...found, text: first?.text || found.text }]);
}
