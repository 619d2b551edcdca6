// The desk on the JavaScript SDK: JSON-RPC and HTTP+JSON, with webhooks.
// Usage: node desk.mjs PORT [--public URL], in a folder that has the packages.

import { randomUUID } from "node:crypto";
import { createRequire } from "node:module";
import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";

const require = createRequire(`${process.cwd()}/`); // the packages are not beside this file
const express = require("express");
const a2a = require("@a2a-js/sdk");
const { AgentEvent, DefaultRequestHandler, InMemoryTaskStore } = require("@a2a-js/sdk/server");
const web = require("@a2a-js/sdk/server/express");

const message = (text) => ({ messageId: randomUUID(), role: "ROLE_AGENT", parts: [{ text }] });

const status = (name, said) => ({
  state: `TASK_STATE_${name}`,
  message: said && message(said),
  timestamp: new Date().toISOString(),
});

class Desk {
  cancels = new Map();

  // Does what the text says.
  async execute({ userMessage, taskId, contextId, task }, bus) {
    const ids = { taskId, contextId };
    const move = (name, said) => {
      const update = { ...ids, status: status(name, said) };
      bus.publish(AgentEvent.statusUpdate(a2a.TaskStatusUpdateEvent.fromJSON(update)));
    };
    const write = (artifact, append = false) => {
      const update = { ...ids, artifact, append };
      bus.publish(AgentEvent.artifactUpdate(a2a.TaskArtifactUpdateEvent.fromJSON(update)));
    };
    const { parts } = a2a.Message.toJSON(userMessage);
    const text = parts.map((part) => part.text ?? "").join("");
    const [verb, rest] = text.split(" ");
    if (verb === "say") {
      bus.publish(AgentEvent.message(a2a.Message.fromJSON(message(rest))));
      return;
    }
    // the SDK wants a task at the beginning of every turn
    const begun = task ?? a2a.Task.fromJSON({ id: taskId, contextId });
    begun.status = a2a.TaskStatus.fromJSON(status("WORKING"));
    bus.publish(AgentEvent.task(begun));
    const canceled = new Promise((resolve) => {
      this.cancels.set(taskId, () => resolve(move("CANCELED")));
    });
    if (verb === "ask") return move("INPUT_REQUIRED", "Which?");
    if (verb === "wait") return canceled;
    if (verb === "fail") return move("FAILED", "as told");
    if (verb === "crash") throw new Error("as told");
    if (verb === "count") {
      for (let n = 0; n < Number(rest); n++) {
        write({ artifactId: "count", parts: [{ text: `${n},` }] }, n > 0);
        await pause(5);
      }
    } else {
      write({ artifactId: randomUUID(), name: "echo", parts });
    }
    move("COMPLETED");
  }

  async cancelTask(taskId) {
    this.cancels.get(taskId)();
  }
}

const card = (url) =>
  a2a.AgentCard.fromJSON({
    name: "Desk",
    description: "Does what the text says.",
    version: "1.0.0",
    supportedInterfaces: [
      { url: `${url}/rpc`, protocolBinding: "JSONRPC", protocolVersion: "1.0" },
      { url: `${url}/rest`, protocolBinding: "HTTP+JSON", protocolVersion: "1.0" },
    ],
    capabilities: { streaming: true, pushNotifications: true, extendedAgentCard: true },
    defaultInputModes: ["text/plain"],
    defaultOutputModes: ["text/plain"],
    skills: [{ id: "desk", name: "desk", description: "Works.", tags: ["desk"] }],
  });

function serve(app, url) {
  const requestHandler = new DefaultRequestHandler(
    card(url),
    new InMemoryTaskStore(),
    new Desk(),
    ...[undefined, undefined, undefined], // the bus and the webhooks are its own
    async () => ({ ...card(url), description: "Known to few." }),
  );
  const options = { requestHandler, userBuilder: web.UserBuilder.noAuthentication };
  const cards = web.agentCardHandler({ agentCardProvider: requestHandler });
  app.use("/.well-known/agent-card.json", cards);
  app.use("/rpc", web.jsonRpcHandler(options));
  app.use("/rest", web.restHandler(options));
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { public: { type: "string" } },
});
console.info = () => {}; // standard output is for the address alone
const app = express();
const server = app.listen(Number(positionals[0]), "127.0.0.1", () => {
  const url = `http://127.0.0.1:${server.address().port}`;
  serve(app, values.public ?? url);
  console.log(url);
});
// whoever started this holds the other end of its standard input
process.stdin.on("end", () => process.exit()).resume();
