// What a skill costs and what a task asks for, by the A2A x402 extension. The words are not the agent's.

import { plain } from "./format.js";

export const URIS = [
  "https://github.com/google-agentic-commerce/a2a-x402/blob/main/spec/v0.2",
  "https://github.com/google-a2a/a2a-x402/v0.1",
];
const KEY = "x402.payment.";
const NAMES = { "eip155:84532": "base-sepolia", "eip155:8453": "base" };
const USDC = {
  "base-sepolia": "0x036cbd53842c5426634e7929541ec2318f3dcf7e",
  base: "0x833589fcd6edb6e08f4c7c32d4f71b54bda02913",
};
const LOOKS = { "payment-completed": "completed", "payment-failed": "failed", "payment-rejected": "failed" };
const SHOWN = 3; // ways to pay

// A payment in the metadata of a message; null if there is none.
export function payment(metadata) {
  const status = metadata?.[KEY + "status"];
  if (typeof status !== "string") return null;
  const accepts = metadata[KEY + "required"]?.accepts;
  const ways = Array.isArray(accepts) ? [...new Set(accepts.map(words))] : [];
  const receipts = metadata[KEY + "receipts"];
  const last = Array.isArray(receipts) ? receipts[receipts.length - 1] : null;
  const said = [
    ways.slice(0, SHOWN).join(" or ") + (ways.length > SHOWN ? ` or ${ways.length - SHOWN} other ways` : ""),
    metadata[KEY + "error"],
    last?.transaction && `transaction ${last.transaction}`,
  ];
  return {
    asks: status === "payment-required",
    status: plain(status),
    look: LOOKS[status] || "input-required",
    price: said[0] || "a payment inside of another protocol",
    words: said.filter((each) => typeof each === "string" && each).map(plain).join(", "),
  };
}

// Whether a task waits for a payment: no words of a person are the answer.
export const asksPayment = (task) => Boolean(payment(task?.status?.message?.metadata)?.asks);

// The prices on a card, by the ids of the skills. The offer of the agent counts.
export function prices(card) {
  const found = {};
  for (const each of card?.capabilities?.extensions || []) {
    if (!URIS.includes(each.uri) || typeof each.params?.prices !== "object") continue;
    for (const [skill, price] of Object.entries(each.params.prices || {})) {
      if (typeof price?.amount === "string") found[skill] = plain(`${price.amount} on ${NAMES[price.network] || price.network}`);
    }
  }
  return found;
}

function words(way) {
  const network = NAMES[way?.network] || way?.network;
  const units = String(way?.amount ?? way?.maxAmountRequired ?? "");
  const known = USDC[network] && USDC[network] === String(way.asset).toLowerCase() && /^\d{1,78}$/.test(units);
  const amount = known ? `${decimal(units, 6)} USDC` : `${units} units of ${way?.asset}`;
  return `${amount} on ${network} to ${way?.payTo}`;
}

function decimal(units, places) {
  const digits = units.padStart(places + 1, "0");
  const whole = digits.slice(0, -places).replace(/^0+(?=\d)/, "");
  const rest = digits.slice(-places).replace(/0+$/, "");
  return rest ? `${whole}.${rest}` : whole;
}
