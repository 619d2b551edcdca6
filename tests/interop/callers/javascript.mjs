// The client of the JavaScript SDK, 1.x: JSON-RPC, HTTP+JSON and gRPC.

import { newId, play, sdk } from "./scenes.mjs";

const a2a = await sdk();
const { ClientFactory, JsonRpcTransportFactory, RestTransportFactory } = await sdk("client/");
const { GrpcTransportFactory } = await sdk("client/transports/grpc/");

const TRANSPORTS = {
  JSONRPC: JsonRpcTransportFactory,
  "HTTP+JSON": RestTransportFactory,
  GRPC: GrpcTransportFactory,
};

const hook = (given) => a2a.TaskPushNotificationConfig.fromJSON(given);
const named = ({ id, url, token }) => ({ id, url, token });

function asking(parts, { task = "", context = "", wait = true, webhook } = {}) {
  const message = {
    messageId: newId(),
    role: "ROLE_USER",
    taskId: task,
    contextId: context,
    parts: parts.map(({ bytes, name, type, ...rest }) => ({
      ...rest,
      ...(bytes && { raw: bytes }),
      ...(name && { filename: name, mediaType: type }),
    })),
  };
  const configuration = { returnImmediately: !wait, taskPushNotificationConfig: webhook };
  return a2a.SendMessageRequest.fromJSON({ message, configuration });
}

// The SDK answers with a task or a message, and does not say which.
const told = (result) => ("status" in result ? a2a.Task : a2a.Message).toJSON(result);

async function* events(stream) {
  for await (const event of stream) yield a2a.StreamResponse.toJSON(event);
}

await play(async (url, binding) => {
  const factory = new ClientFactory({ transports: [new TRANSPORTS[binding]()] });
  const client = await factory.createFromUrl(url);
  const card = client.agentCard;
  return {
    card: () => ({
      name: card.name,
      version: card.supportedInterfaces.find((one) => one.protocolBinding === binding)
        .protocolVersion,
      transports: [...new Set(card.supportedInterfaces.map((one) => one.protocolBinding))].sort(),
      streaming: card.capabilities.streaming,
    }),
    send: async (parts, options) => told(await client.sendMessage(asking(parts, options))),
    stream: (parts) => events(client.sendMessageStream(asking(parts))),
    subscribe: (id) => events(client.resubscribeTask({ id, tenant: "" })),
    get: async (id, historyLength) =>
      a2a.Task.toJSON(await client.getTask({ id, historyLength, tenant: "" })),
    async list(contextId) {
      const found = await client.listTasks(a2a.ListTasksRequest.fromJSON({ contextId }));
      return found.tasks.map((task) => a2a.Task.toJSON(task));
    },
    cancel: async (id) =>
      a2a.Task.toJSON(await client.cancelTask(a2a.CancelTaskRequest.fromJSON({ id }))),
    addWebhook: async (taskId, given) =>
      named(await client.createTaskPushNotificationConfig(hook({ taskId, ...given }))),
    webhook: async (taskId, id) =>
      named(await client.getTaskPushNotificationConfig({ taskId, id, tenant: "" })),
    async webhooks(taskId) {
      const asked = a2a.ListTaskPushNotificationConfigsRequest.fromJSON({ taskId });
      return (await client.listTaskPushNotificationConfig(asked)).configs.map(named);
    },
    deleteWebhook: (taskId, id) =>
      client.deleteTaskPushNotificationConfig({ taskId, id, tenant: "" }),
    extendedCard: () => client.getAgentCard(),
  };
});
