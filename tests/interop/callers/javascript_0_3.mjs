// The client of the JavaScript SDK, 0.3: JSON-RPC, HTTP+JSON and gRPC.

import { newId, play, sdk } from "./scenes.mjs";

const { ClientFactory, JsonRpcTransportFactory, RestTransportFactory } = await sdk("client/");
const { GrpcTransportFactory } = await sdk("client/transports/grpc/");

const TRANSPORTS = {
  JSONRPC: JsonRpcTransportFactory,
  "HTTP+JSON": RestTransportFactory,
  GRPC: GrpcTransportFactory,
};

const named = ({ pushNotificationConfig: { id, url, token } }) => ({ id, url, token });

function part({ text, data, bytes, url, name, type }) {
  if (text !== undefined) return { kind: "text", text };
  if (data !== undefined) return { kind: "data", data };
  const held = bytes ? { bytes } : { uri: url };
  return { kind: "file", file: { ...held, name, mimeType: type } };
}

function asking(parts, { task, context, wait = true, webhook } = {}) {
  const message = {
    kind: "message",
    messageId: newId(),
    role: "user",
    parts: parts.map(part),
    ...(task && { taskId: task }),
    ...(context && { contextId: context }),
  };
  const hook = webhook && { pushNotificationConfig: webhook };
  return { message, configuration: { blocking: wait, ...hook } };
}

await play(async (url, binding) => {
  const factory = new ClientFactory({ transports: [new TRANSPORTS[binding]()] });
  const client = await factory.createFromUrl(url);
  const card = client.agentCard;
  return {
    card() {
      const more = (card.additionalInterfaces ?? []).map((one) => one.transport);
      return {
        name: card.name,
        version: card.protocolVersion,
        transports: [...new Set([card.preferredTransport ?? "JSONRPC", ...more])].sort(),
        streaming: card.capabilities.streaming,
      };
    },
    send: (parts, options) => client.sendMessage(asking(parts, options)),
    stream: (parts) => client.sendMessageStream(asking(parts)),
    subscribe: (id) => client.resubscribeTask({ id }),
    get: (id, historyLength) => client.getTask({ id, historyLength }),
    cancel: (id) => client.cancelTask({ id }),
    addWebhook: async (taskId, pushNotificationConfig) =>
      named(await client.setTaskPushNotificationConfig({ taskId, pushNotificationConfig })),
    webhook: async (id, pushNotificationConfigId) =>
      named(await client.getTaskPushNotificationConfig({ id, pushNotificationConfigId })),
    webhooks: async (id) => (await client.listTaskPushNotificationConfig({ id })).map(named),
    deleteWebhook: (id, pushNotificationConfigId) =>
      client.deleteTaskPushNotificationConfig({ id, pushNotificationConfigId }),
    extendedCard: () => client.getAgentCard(),
  };
});
