// The desk on the JavaScript SDK: all three bindings, with webhooks.

import { randomUUID } from "node:crypto";

import { sdk, serve, work } from "./announcing.mjs";

const a2a = await sdk();
const { AgentEvent, DefaultRequestHandler, InMemoryTaskStore } = await sdk("server/");
const web = await sdk("server/express/");
const { A2AService, grpcService } = await sdk("server/grpc/");

const message = (text) => ({ messageId: randomUUID(), role: "ROLE_AGENT", parts: [{ text }] });

const status = (name, said) => ({
  state: `TASK_STATE_${name.toUpperCase().replace("-", "_")}`,
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
    const publish = (artifact, append) => {
      const update = { ...ids, artifact, append };
      bus.publish(AgentEvent.artifactUpdate(a2a.TaskArtifactUpdateEvent.fromJSON(update)));
    };
    const write = (artifactId, text, append) => publish({ artifactId, parts: [{ text }] }, append);
    const { parts = [] } = a2a.Message.toJSON(userMessage);
    const echo = () => publish({ artifactId: randomUUID(), name: "echo", parts }, false);
    const text = parts.map((part) => part.text ?? "").join("");
    if (text.startsWith("say ")) {
      bus.publish(AgentEvent.message(a2a.Message.fromJSON(message(text.slice(4)))));
      return;
    }
    // the SDK wants a task at the beginning of every turn
    const begun = task ?? a2a.Task.fromJSON({ id: taskId, contextId });
    begun.status = a2a.TaskStatus.fromJSON(status("working"));
    bus.publish(AgentEvent.task(begun));
    const canceled = new Promise((resolve) => {
      this.cancels.set(taskId, () => resolve(move("canceled")));
    });
    await work(text, echo, { move, write, canceled });
  }

  async cancelTask(taskId) {
    this.cancels.get(taskId)();
  }
}

const card = (url, address) =>
  a2a.AgentCard.fromJSON({
    name: "Desk",
    description: "Does what the text says.",
    version: "1.0.0",
    supportedInterfaces: [
      { url: `${url}/rpc`, protocolBinding: "JSONRPC", protocolVersion: "1.0" },
      { url: `${url}/rest`, protocolBinding: "HTTP+JSON", protocolVersion: "1.0" },
      { url: address, protocolBinding: "GRPC", protocolVersion: "1.0" },
    ],
    capabilities: { streaming: true, pushNotifications: true, extendedAgentCard: true },
    defaultInputModes: ["text/plain"],
    defaultOutputModes: ["text/plain"],
    skills: [{ id: "desk", name: "desk", description: "Works.", tags: ["desk"] }],
  });

serve((app, grpc, url, address) => {
  const requestHandler = new DefaultRequestHandler(
    card(url, address),
    new InMemoryTaskStore(),
    new Desk(),
    ...[undefined, undefined, undefined], // the bus and the webhooks are its own
    async () => ({ ...card(url, address), description: "Known to few." }),
  );
  const options = { requestHandler, userBuilder: web.UserBuilder.noAuthentication };
  const cards = web.agentCardHandler({ agentCardProvider: requestHandler });
  app.use("/.well-known/agent-card.json", cards);
  app.use("/rpc", web.jsonRpcHandler(options));
  app.use("/rest", web.restHandler(options));
  grpc.addService(A2AService, grpcService(options));
});
