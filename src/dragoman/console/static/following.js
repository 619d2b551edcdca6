// Sends a message and follows its task until it ends or asks, whatever happens in between: a server
// that is away for a while, a stream that breaks off, no free connection for a stream.

import { CHAT, pause, withSlot } from "./api.js";
import { Away, ended, Fault, folded, interrupted, stateName } from "./a2a.js";

const POLL = 1000; // milliseconds between two reads while no stream is free
const FIRST = 300; // milliseconds before another try
const LONGEST = 3000;

// `send` is the message to send first; without one, `task` is followed. `find` returns a known task
// by its id. `on` gets each new form of the task, `onReply` a direct reply, `online` whether the
// server answers.
export async function follow(agent, { send, task = null, find, signal, on, onReply, online }) {
  let begun = !send;
  let replied = false;
  let wait = FIRST;
  const take = ({ place, value }) => {
    begun = true;
    online(true);
    if (value.message) {
      replied = true;
      return onReply(value.message);
    }
    if (!value.task) wait = FIRST;
    const about = value.statusUpdate || value.artifactUpdate;
    task = folded(task || (about && find(about.taskId)), value);
    if (place) task = { ...task, place };
    on(task);
  };
  const stream = async () => {
    const headers = task?.place ? { "last-event-id": task.place } : {};
    const source = begun
      ? agent.stream("SubscribeToTask", { id: task.id }, { signal, headers })
      : agent.stream("SendStreamingMessage", { message: send }, { signal, headers: once(send) });
    for await (const each of source) {
      take(each);
      if (task && stateName(task) === "input-required") break; // some streams stay open then
    }
  };
  const read = async () => {
    if (begun) return take({ value: { task: await current(agent, task.id, signal) } });
    const params = { message: send, configuration: { returnImmediately: true } };
    take({ value: await agent.call("SendMessage", params, { signal, headers: once(send) }) });
  };
  const settled = () => replied || (task && (ended(task) || interrupted(task)));
  for (;;) {
    let polled = false;
    try {
      polled = !(await withSlot(stream, CHAT));
      if (polled) await read();
    } catch (error) {
      if (signal.aborted) throw error;
      if (error instanceof Away) online(false, error);
      else if (error instanceof Fault && begun && task) {
        // the task may have ended before it could be followed
        take({ value: { task: await current(agent, task.id, signal) } });
        if (!settled()) throw error;
      } else throw error;
    }
    if (settled()) return;
    await pause(polled ? POLL : wait, signal);
    if (!polled) wait = Math.min(wait * 1.6, LONGEST);
    if (signal.aborted) throw new DOMException("The stream was interrupted.", "AbortError");
  }
}

const once = (message) => ({ "idempotency-key": message.messageId });

// The task as it is now.
export const current = (agent, id, signal) => agent.call("GetTask", { id }, { signal, repeat: true });
