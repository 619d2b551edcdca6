// The desk on the JavaScript SDK before 1.0: all three bindings, with webhooks.

import { randomUUID } from "node:crypto";

import { sdk, serve, work } from "./announcing.mjs";

const { DefaultRequestHandler, InMemoryTaskStore } = await sdk("server/");
const web = await sdk("server/express/");
const { A2AService, grpcService } = await sdk("server/grpc/");

const message = (text) => ({
  kind: "message",
  messageId: randomUUID(),
  role: "agent",
  parts: [{ kind: "text", text }],
});

const status = (state, said) => ({
  state,
  message: said && message(said),
  timestamp: new Date().toISOString(),
});

class Desk {
  cancels = new Map();

  // Does what the text says.
  async execute({ userMessage, taskId, contextId, task }, bus) {
    const ids = { taskId, contextId };
    const move = (state, said) =>
      bus.publish({ kind: "status-update", ...ids, status: status(state, said), final: true });
    const publish = (artifact, append) =>
      bus.publish({ kind: "artifact-update", ...ids, artifact, append });
    const write = (artifactId, text, append) =>
      publish({ artifactId, parts: [{ kind: "text", text }] }, append);
    const { parts } = userMessage;
    const echo = () => publish({ artifactId: randomUUID(), name: "echo", parts }, false);
    const text = parts.map((part) => part.text ?? "").join("");
    if (text.startsWith("say ")) {
      bus.publish(message(text.slice(4)));
      return;
    }
    const begun = task ?? { kind: "task", id: taskId, contextId, history: [userMessage] };
    bus.publish({ ...begun, status: status("working") });
    const canceled = new Promise((resolve) => {
      this.cancels.set(taskId, () => resolve(move("canceled")));
    });
    await work(text, echo, { move, write, canceled });
    bus.finished();
  }

  async cancelTask(taskId) {
    this.cancels.get(taskId)();
  }
}

const card = (url, address) => ({
  name: "Desk",
  description: "Does what the text says.",
  version: "1.0.0",
  protocolVersion: "0.3.0",
  url: `${url}/rpc`,
  preferredTransport: "JSONRPC",
  additionalInterfaces: [
    { url: `${url}/rpc`, transport: "JSONRPC" },
    { url: `${url}/rest`, transport: "HTTP+JSON" },
    { url: address, transport: "GRPC" },
  ],
  capabilities: { streaming: true, pushNotifications: true },
  defaultInputModes: ["text/plain"],
  defaultOutputModes: ["text/plain"],
  skills: [{ id: "desk", name: "desk", description: "Works.", tags: ["desk"] }],
  supportsAuthenticatedExtendedCard: true,
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
